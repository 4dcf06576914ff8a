"""What a model's generation_config asks for: the engine against transformers' `generate`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig
from transformers.generation import logits_process as hf

from experiments.standins import small_models
from tests.helpers.draws import by_torch, draw
from tests.helpers.engines import GREEDY
from tests.helpers.models import VOCAB, build, prompt
from tests.helpers.tokenizers import Letters
from ttc import Engine, InvalidInput, Layerwise, Paged, Sampling, UnsupportedModel
from ttc.draws import random_states
from ttc.model.generation_settings import end_tokens

PROMPTS = [prompt(1, 12), prompt(1, 12)[:9] + prompt(2, 3), prompt(3, 5), [17]]
"""Several lengths, two with a common beginning, one of a single token."""

LONG = 8
"""Tokens that each branch is grown by."""

HONOURED: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.3},
    "repetition of the prompt": {"encoder_repetition_penalty": 1.5},
    "2-grams": {"no_repeat_ngram_size": 2},
    "1-grams of the prompt": {"encoder_no_repeat_ngram_size": 1, "repetition_penalty": 0.5},
    "suppressed": {"suppress_tokens": list(range(0, VOCAB, 2))},
    "suppressed first": {"begin_suppress_tokens": list(range(3, VOCAB))},
    "bad words": {
        "bad_words_ids": [[t] for t in range(0, VOCAB, 3)] + [[t, t + 3] for t in range(1, 99, 3)]
    },
    "bias": {"sequence_bias": [[[5], 6.0], [[5, 6], 40.0], [[5, 6, 7], 40.0]]},
    "forced first": {"forced_bos_token_id": 9, "begin_suppress_tokens": list(range(3, VOCAB))},
    "forced last": {"forced_eos_token_id": [3], "eos_token_id": [3], "max_length": 15},
    "forced last, new tokens": {"forced_eos_token_id": 3, "eos_token_id": 3, "max_new_tokens": 4},
    "least length": {"min_length": 9, "eos_token_id": list(range(40))},
    "least new tokens": {"min_length": 90, "min_new_tokens": 5, "eos_token_id": list(range(40))},
    "decay": {"exponential_decay_length_penalty": (2, 1.5), "eos_token_id": [3, 4]},
    "invalid values": {"remove_invalid_values": True},
    "banned, decay, invalid values": {
        "bad_words_ids": [[t] for t in range(3, VOCAB, 3)],
        "remove_invalid_values": True,
        "exponential_decay_length_penalty": (1, 1.2),
        "eos_token_id": [3, 4],
    },
    "several": {
        "repetition_penalty": 1.2,
        "no_repeat_ngram_size": 3,
        "bad_words_ids": [[4], [5, 6]],
        "min_new_tokens": 6,
        "eos_token_id": list(range(30)),
        "renormalize_logits": True,
    },
}
CASES = [("llama", name) for name in HONOURED] + [
    ("qwen2", "repetition"),
    ("qwen2", "several"),
    ("lfm2", "several"),
]
"""LFM 2 has recurrent layers."""


@cache
def plain(family: str) -> Any:
    return small_models.build(family) if family == "lfm2" else build(family)


def with_settings(family: str, settings: dict[str, Any]) -> Any:
    model = copy.deepcopy(plain(family))
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    return model


def generated(model: Any, tokens: Sequence[int], count: int = LONG) -> list[int]:
    """What greedy `generate` writes, alone. The model may be over its own attention only."""
    config = model.generation_config
    longest = {} if config.max_length or config.max_new_tokens else {"max_new_tokens": count}
    out = model.generate(torch.tensor([list(tokens)]), do_sample=False, **longest)
    return [int(token) for token in out[0, len(tokens) :]]


@cache
def without_settings(family: str) -> list[list[int]]:
    return [generated(with_settings(family, {}), tokens) for tokens in PROMPTS]


@pytest.mark.few(1)
@pytest.mark.parametrize(("family", "name"), CASES)
def test_greedy_branches_are_those_of_generate(family: str, name: str) -> None:
    model = with_settings(family, HONOURED[name])
    expected = [generated(model, tokens) for tokens in PROMPTS]
    assert expected != without_settings(family) or name == "invalid values", (
        "the setting changes nothing here"
    )
    engine = Engine(copy.deepcopy(model), Letters(), prefill_tokens=16)
    branches = engine.roots(PROMPTS).result()
    engine.generate(
        branches, 30 if "forced_eos_token_id" in HONOURED[name] else LONG, sampling=GREEDY
    )
    assert [branch.generated for branch in branches] == expected


@pytest.mark.slow
@pytest.mark.parametrize("memory", [None, Layerwise(0.0001), Paged(0.0001, block_tokens=8)])
def test_forks_and_steps_go_on_as_one_text(memory: Any) -> None:
    """A fork's text is the whole path: what it says again was said above it. The prompt ends where
    it ended."""
    settings = HONOURED["several"] | {
        "begin_suppress_tokens": list(range(3, 100)),
        "min_new_tokens": 5,
    }
    model = with_settings("llama", settings)
    engine, prompts = Engine(copy.deepcopy(model), Letters(), memory=memory), PROMPTS[1:]
    expected = [generated(model, tokens) for tokens in prompts]
    roots = engine.roots(prompts).result()
    engine.generate(roots, [3, 1, 2], sampling=GREEDY)
    children = [child for root in roots for child in engine.fork(root, 2)]
    engine.release(roots)
    while unfinished := [
        child for child in children if not child.finished and len(child.generated) < LONG
    ]:
        engine.generate(unfinished, [1 + i % 3 for i in range(len(unfinished))], sampling=GREEDY)
    for place, child in enumerate(children):
        assert child.generated[:LONG] == expected[place // 2]


def test_a_new_turn_begins_a_text_of_its_own() -> None:
    """Its prompt is all that stands before it, as it is for `generate`."""
    model = with_settings(
        "llama", {"min_new_tokens": 6, "eos_token_id": list(range(60)), "repetition_penalty": 1.2}
    )
    engine = Engine(copy.deepcopy(model), Letters())
    branch = engine.root(PROMPTS[0])
    engine.generate([branch], 20, sampling=GREEDY)
    assert branch.finish_reason == "eos"
    branch.reopen()
    engine.extend([branch], [prompt(8, 4)]).result()
    branch.begin_answer()
    before = list(branch.tokens)
    engine.generate([branch], 20, sampling=GREEDY)
    assert branch.generated == generated(model, before, 20) and len(branch.generated) > 5


def test_figures_stay_the_models_own() -> None:
    """Log-probabilities and statistics are of the model's logits, also of a token that a setting
    forced."""
    settings = {"repetition_penalty": 1.5, "suppress_tokens": list(range(0, VOCAB, 2))}
    engine = Engine(with_settings("llama", settings), Letters())
    branch = engine.root(PROMPTS[0])
    engine.generate([branch], 12, sampling=Sampling(0.9), statistics=True)
    logits = (
        plain("llama")(torch.tensor([branch.tokens]))
        .logits[0]
        .double()[branch.prompt_length - 1 : -1]
    )
    expected = logits.log_softmax(-1)
    own = expected.gather(1, torch.tensor(branch.generated)[:, None])[:, 0]
    np.testing.assert_allclose(branch.logprobs, own.detach(), atol=1e-4)
    np.testing.assert_allclose(branch.top1, expected.exp().amax(-1).detach(), atol=1e-4)
    np.testing.assert_allclose(
        branch.entropies, torch.special.entr(expected.exp()).sum(-1).detach(), atol=1e-3
    )
    np.testing.assert_allclose(
        branch.top_k_logprobs, expected.topk(20).values.mean(-1).detach(), atol=1e-4
    )
    assert all(token % 2 for token in branch.generated)
    scored = engine.score([engine.root(branch.tokens[:-1])], [[[branch.tokens[-1]]]]).result()
    assert scored[0][0][0] == pytest.approx(branch.logprobs[-1], abs=1e-4)


# ---------------------------------------------------------------- samples


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(0.7, top_p=0.9), Sampling(1.5, top_k=9), Sampling(min_p=0.1), GREEDY],
)
def test_samples_of_changed_logits_are_the_same_by_the_compiled_draw_and_by_torch(
    sampling: Sampling,
) -> None:
    logits = torch.randn(200, 3000, generator=torch.Generator().manual_seed(5)) * 4
    scores = hf.RepetitionPenaltyLogitsProcessor(1.4)(
        torch.arange(200 * 9).view(200, 9) % 3000, logits
    )
    scores[:, ::2] = float("-inf")
    states = random_states([3] * 200, range(200))
    compiled, torchs = (
        way(logits, sampling, states, statistics=True, scores=scores) for way in (draw, by_torch)
    )
    assert compiled.tokens == torchs.tokens == draw(scores, sampling, states).tokens
    assert all(token % 2 for token in compiled.tokens)
    for ours, theirs in zip(compiled[1:], torchs[1:], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    expected = (
        logits.double().log_softmax(-1).gather(1, torch.tensor(compiled.tokens)[:, None])[:, 0]
    )
    np.testing.assert_allclose(compiled.logprobs, expected, atol=1e-5)


def test_samples_do_not_depend_on_what_is_beside_them() -> None:
    model = with_settings("qwen2", HONOURED["several"])
    texts = []
    for order in ([0, 1, 2, 3], [3, 1], [2, 0]):
        engine = Engine(copy.deepcopy(model), Letters())
        branches = engine.roots([PROMPTS[i] for i in order], seeds=order).result()
        engine.generate(branches, 15, sampling=Sampling(1.0))
        texts.append({i: branch.generated for i, branch in zip(order, branches, strict=True)})
    assert texts[1].items() <= texts[0].items() and texts[2].items() <= texts[0].items()


def test_no_token_left_is_said() -> None:
    engine = Engine(with_settings("llama", {"suppress_tokens": list(range(VOCAB))}), Letters())
    with pytest.raises(InvalidInput, match="leave no token to choose"):
        engine.generate([engine.root(PROMPTS[0])], 2)


def test_invalid_logits_are_replaced_where_the_file_says_so() -> None:
    """Else they are refused. What is kept of such a token is not a number."""
    broken = torch.randn(1, 1, VOCAB)
    broken[..., 5] = float("nan")
    for removed in (True, False):
        engine = Engine(with_settings("llama", {"remove_invalid_values": removed}), Letters())
        branch = engine.root(PROMPTS[0])
        engine.runner.forward = lambda *_: broken[0]  # type: ignore[method-assign]
        if removed:
            engine.generate([branch], 1, sampling=GREEDY)
            assert branch.generated == [int(broken.nan_to_num(0.0).argmax())]
            assert np.isnan(branch.logprobs[0]) and np.isnan(branch.top1[0])
        else:
            with pytest.raises(UnsupportedModel, match="not finite"):
                engine.generate([branch], 1, sampling=GREEDY)


# ---------------------------------------------------------------- searches


# ---------------------------------------------------------------- refused, and the switch


REFUSED: dict[str, Any] = {
    "guidance_scale": 1.5,
    "num_beams": 4,
    "force_words_ids": [[1]],
    "watermarking_config": {"bias": 2.5},
    "token_healing": True,
    "stop_strings": ["."],
    "max_time": 2.0,
    "typical_p": 0.9,
    "eta_cutoff": 3e-4,
    "is_assistant": True,
    "cache_implementation": "quantized",
    "forced_eos_token_id": 3,
    "repetition_penalty": -1.0,
    "no_repeat_ngram_size": 2.5,
    "bad_words_ids": [[VOCAB]],
    "exponential_decay_length_penalty": (5, 1.1),
}


def test_other_settings_are_refused_by_name() -> None:
    for name, value in REFUSED.items():
        model = with_settings("llama", {name: value})
        with pytest.raises(UnsupportedModel, match=name) as refusal:
            Engine(model, Letters())
        assert "generation_settings=False" in str(refusal.value)
        assert "model.generation_settings=false" in str(refusal.value)
    whole = Engine(model, Letters(), generation_settings=False)
    assert whole.generation_settings.honoured == {}


NO_CHANGE: dict[str, Any] = {
    "guidance_scale": 1.0,
    "temperature": 0.6,
    "top_k": 20,
    "do_sample": True,
    "max_new_tokens": 3,
    "num_return_sequences": 2,
    "cache_implementation": "static",
    "penalty_alpha": 0.0,
    "early_stopping": True,
    "renormalize_logits": True,
    "use_cache": False,
}
"""Settings that change nothing, and what a search sets itself."""


def test_settings_that_change_nothing_are_taken() -> None:
    defaults = plain("llama").generation_config._get_default_generation_params()
    engine = Engine(with_settings("llama", defaults | NO_CHANGE), Letters())
    assert engine.generation_settings.honoured == {} and engine.generation_settings.processors == ()
    branch = engine.root(PROMPTS[0])
    engine.generate([branch], LONG, sampling=GREEDY)
    assert branch.generated == generated(with_settings("llama", {}), PROMPTS[0])


def test_the_switch_leaves_them_out() -> None:
    model = with_settings("qwen2", HONOURED["several"])
    engine = Engine(model, Letters(), generation_settings=False)
    branch = engine.root(PROMPTS[0])
    engine.generate([branch], LONG, sampling=GREEDY)
    ends = {"eos_token_id": HONOURED["several"]["eos_token_id"]}
    assert branch.generated == generated(with_settings("qwen2", ends), PROMPTS[0])


@pytest.mark.slow
def test_a_saved_models_settings_are_read(tmp_path: Any) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    model = with_settings("qwen2", {"repetition_penalty": 1.3})
    model.save_pretrained(tmp_path)
    inner = Tokenizer(models.WordLevel({str(i): i for i in range(VOCAB)}, unk_token="0"))
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="7").save_pretrained(tmp_path)
    for switch, settings in ((True, {"repetition_penalty": 1.3}), (False, {})):
        engine = Engine.from_pretrained(
            tmp_path, device="cpu", dtype="float32", generation_settings=switch, runner="modules"
        )
        assert dict(engine.generation_settings.honoured) == settings
        branch = engine.root(PROMPTS[0])
        engine.generate([branch], LONG, sampling=GREEDY)
        assert branch.generated == generated(with_settings("qwen2", settings), PROMPTS[0])
    with pytest.raises(InvalidInput, match="generation_settings"):
        Engine.from_pretrained(tmp_path, device="cpu", generation_settings="ignore")


# ---------------------------------------------------------------- end tokens


class EndsAtSeven(Letters):
    eos_token_id = 7  # type: ignore[assignment]


def test_end_tokens_that_are_no_numbers_are_refused() -> None:
    for listed in ([3, None], "</s>", 2.5):
        model = with_settings("llama", {"eos_token_id": listed})
        with pytest.raises(UnsupportedModel, match=r"eos_token_id=.* no numbers of tokens"):
            Engine(model, Letters())
    assert end_tokens(GenerationConfig(eos_token_id=torch.tensor([3, 4]))) == {3, 4}


@pytest.mark.parametrize("listed", [None, 11, [11, 40]])
def test_a_text_ends_at_the_tokens_that_the_generation_config_lists(listed: Any) -> None:
    """The tokenizer's end token alone ends nothing, as in `generate`."""
    model = with_settings(
        "llama", {"eos_token_id": listed, "sequence_bias": [[[7], 9.0], [[11], 8.0], [[40], 8.0]]}
    )
    expected = [generated(model, tokens) for tokens in PROMPTS]
    assert any(7 in tokens for tokens in expected)
    engine = Engine(copy.deepcopy(model), EndsAtSeven())
    assert engine.limits.eos_ids == frozenset(
        [] if listed is None else np.atleast_1d(listed).tolist()
    )
    branches = engine.roots(PROMPTS).result()
    engine.generate(branches, LONG, sampling=GREEDY)
    assert [branch.generated for branch in branches] == expected
