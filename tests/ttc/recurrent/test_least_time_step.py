"""Models whose Mamba 2 layers have a least time step, against `generate`: a run over the prompt,
then single tokens."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from transformers.models.nemotron_h import modeling_nemotron_h

from experiments.standins import small_models
from tests.helpers.engines import GREEDY
from tests.helpers.exactness import assert_like_plain, assert_scores_like_plain, grow
from tests.helpers.models import prompt
from tests.helpers.ownership import assert_nothing_left, assert_whole
from tests.helpers.tokenizers import Letters
from ttc import BlockCache, Engine, Paged, Sampling

CASES = ["nemotron_h", "zamba2"]


@cache
def plain(case: str) -> Any:
    return small_models.build(case)


def engine_of(case: str, **options: Any) -> Engine:
    return Engine(copy.deepcopy(plain(case)), Letters(), **options)


@pytest.mark.few(1)
@pytest.mark.parametrize("case", CASES)
def test_a_tree_of_branches_is_what_generate_computes(case: str) -> None:
    engine = engine_of(case, prefill_tokens=5)
    assert engine.runner.recurrent is not None and engine.runner.recurrent.knows_opening
    branches = grow(engine)
    assert_whole(engine, branches)
    for branch in branches:
        assert_like_plain(plain(case), branch, as_generate=True)
    with pytest.raises(AssertionError):  # the two ways of transformers do differ
        assert_like_plain(plain(case), branches[0])
    assert_nothing_left(engine, branches)


@pytest.mark.parametrize("case", CASES)
def test_in_16_bits_the_least_time_step_is_found_too(case: str) -> None:
    recurrent = Engine(copy.deepcopy(plain(case)).to(torch.bfloat16), Letters()).runner.recurrent
    assert recurrent is not None and recurrent.knows_opening


def test_a_least_time_step_in_all_code_of_transformers_needs_no_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = copy.deepcopy(plain("nemotron_h"))
    least = next(m.time_step_limit[0] for m in model.modules() if hasattr(m, "time_step_limit"))
    own = modeling_nemotron_h.mamba2_selective_state_update

    def update(
        state: Any,
        hidden: Any,
        dt: Any,
        *others: Any,
        dt_bias: Any,
        dt_softplus: bool,
        **options: Any,
    ) -> Any:
        dt = dt if dt_bias is None else dt + dt_bias
        dt = torch.nn.functional.softplus(dt) if dt_softplus else dt
        return own(state, hidden, dt.clamp(min=least), *others, **options)

    monkeypatch.setattr(modeling_nemotron_h, "mamba2_selective_state_update", update)
    engine = Engine(copy.deepcopy(model), Letters())
    assert engine.runner.recurrent is not None and not engine.runner.recurrent.knows_opening
    for branch in grow(engine):
        assert_like_plain(model, branch)


@pytest.mark.few
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("length", [1, 2, 17])
def test_tokens_are_those_of_generate(case: str, length: int) -> None:
    engine, ids = engine_of(case), prompt(1, length)
    branches = engine.fork(engine.root(ids), 2)
    engine.generate(branches, 6, sampling=GREEDY)
    expected = plain(case).generate(
        torch.tensor([ids]),
        max_new_tokens=6,
        min_new_tokens=6,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=0,
    )
    for branch in branches:
        assert branch.tokens == expected.sequences[0].tolist()
        for token, logprob, logits in zip(
            branch.generated, branch.logprobs, expected.logits, strict=True
        ):
            assert logprob == pytest.approx(
                float(logits[0].double().log_softmax(-1)[token]), abs=2e-4
            )


@pytest.mark.parametrize("case", CASES)
def test_a_prompt_does_not_share_what_was_generated(case: str) -> None:
    engine, ids = engine_of(case), prompt(1, 20)
    first = engine.root(ids)
    engine.generate([first], 9, sampling=GREEDY)
    second = engine.root([*first.tokens, *prompt(2, 9)])  # the same tokens, all of a prompt
    # the first prompt without its last token, which is fed with what follows
    assert second.usage.shared_tokens == 19
    third = engine.root([*first.tokens, *prompt(2, 9)])
    assert third.usage.shared_tokens == len(third.tokens) - 1
    engine.extend([first], [prompt(2, 9)]).result()
    engine.generate([first, second, third], 4, sampling=GREEDY)
    for branch in (first, second, third):
        assert_like_plain(plain(case), branch, as_generate=True)
    assert second.generated == third.generated
    assert_nothing_left(engine, [first, second, third])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_tokens_that_follow_one_by_one(case: str) -> None:
    engine, more, continuations = (
        engine_of(case),
        prompt(3, 3),
        [prompt(4, 3), prompt(4, 1) + prompt(5, 3)],
    )
    root = engine.root(prompt(1, 21))
    fresh, begun = engine.fork(root, 2)
    engine.generate([begun], 5, sampling=GREEDY)
    scores = engine.score([fresh, begun], [continuations] * 2, given=[more] * 2).result()
    for branch, first, found in zip((fresh, begun), (24, 21), scores, strict=True):
        assert_scores_like_plain(plain(case), branch, more, continuations, found, first)
    assert_nothing_left(engine, [root, fresh, begun])


def test_neither_batches_nor_eviction_nor_a_policy_change_what_is_sampled() -> None:
    def sample(together: bool, **options: Any) -> list[list[int]]:
        engine = engine_of("nemotron_h", **options)
        root = engine.root(prompt(1, 17), seed=3)
        branches = engine.fork(root, 4)
        engine.release([root])
        engine.extend(branches[:3], [[11], [12, 13], [14]]).result()
        for count in (5, 3):
            for group in [branches] if together else [[branch] for branch in branches[::-1]]:
                engine.generate(group, count, sampling=Sampling(0.8))
        if "cache" in options:
            assert engine.cache is not None and engine.cache.evictions > 0
        return [branch.generated for branch in branches]

    expected = sample(together=True)
    assert sample(together=False) == expected
    assert sample(together=False, cache=BlockCache(capacity_blocks=4, block_tokens=8)) == expected
    assert sample(together=True, memory=Paged(1.0, block_tokens=4)) == expected
