"""The repetition penalty of a sampling, against transformers' own."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from search import BeamSearch, SelfConsistency, solve
from tests.helpers.draws import by_torch, draw
from tests.helpers.engines import GREEDY
from tests.helpers.models import build, small
from tests.helpers.tiers import examples
from tests.helpers.tokenizers import EOS, Ascii, Letters
from tests.ttc.test_generation_settings import PROMPTS
from ttc import Engine, InvalidInput, Layerwise, Sampling
from ttc.draws import random_states
from ttc.step import Step

PENALISED = Sampling(0, repetition_penalty=1.3)


@pytest.mark.parametrize("way", [draw, by_torch], ids=["compiled", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@given(
    seed=st.integers(0, 10**6),
    penalty=st.sampled_from([0.5, 1.0, 1.05, 1.7, 30.0]),
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
    top_p=st.sampled_from([0.9, 1.0]),
)
@settings(max_examples=examples(24))
def test_draws_are_those_of_transformers_scores_and_figures_the_models_own(
    way: Any, dtype: torch.dtype, seed: int, penalty: float, temperature: float, top_p: float
) -> None:
    numbers = np.random.default_rng(seed)
    logits = torch.from_numpy(numbers.normal(size=(9, 700)) * 4).to(dtype)
    texts = [numbers.integers(0, 700, numbers.integers(1, 60)) for _ in logits]
    theirs = RepetitionPenaltyLogitsProcessor(penalty)
    scores = torch.cat(
        [
            theirs(torch.from_numpy(text)[None], row[None])
            for text, row in zip(texts, logits.float(), strict=True)
        ]
    )
    states = random_states([seed] * 9, range(9))
    plain = Sampling(temperature, top_p=top_p)
    penalised = Sampling(temperature, top_p=top_p, repetition_penalty=penalty)
    drawn = way(logits, penalised, states, statistics=True, texts=texts)
    assert drawn.tokens == way(scores, plain, states).tokens
    own = logits.double().log_softmax(-1)
    chosen = own.gather(1, torch.tensor(drawn.tokens)[:, None])[:, 0]
    atol = 1e-5 if dtype == torch.float32 or way is draw else 0.2  # PyTorch rounds to bfloat16
    np.testing.assert_allclose(drawn.logprobs, chosen, atol=atol)
    without = way(logits, plain, states, statistics=True)
    assert (drawn.top1, drawn.entropy) == (without.top1, without.entropy)


@pytest.mark.parametrize("way", [draw, by_torch], ids=["compiled", "torch"])
@pytest.mark.parametrize("penalty", [0.6, 1.8])
def test_it_stands_beside_a_mask(way: Any, penalty: float) -> None:
    numbers = np.random.default_rng(3)
    logits = torch.from_numpy(numbers.normal(size=(40, 700)) * 4).float()
    texts = [numbers.integers(0, 700, 300) for _ in logits]
    allowed = numbers.integers(0, 2**32, (40, 22), dtype=np.uint32)
    free = np.unpackbits(allowed.view(np.uint8), bitorder="little").reshape(40, -1)[:, :700]
    theirs = RepetitionPenaltyLogitsProcessor(penalty)
    rows = zip(texts, logits, strict=True)
    scores = torch.cat([theirs(torch.from_numpy(text)[None], row[None]) for text, row in rows])
    scores = scores.masked_fill(torch.from_numpy(free == 0), float("-inf"))
    states = random_states([5] * 40, range(40))
    sampling = Sampling(0.8, top_p=0.9, repetition_penalty=penalty)
    drawn = way(logits, sampling, states, texts=texts, allowed=allowed)
    assert drawn.tokens == way(scores, Sampling(0.8, top_p=0.9), states).tokens
    own = logits.double().log_softmax(-1)
    chosen = own.gather(1, torch.tensor(drawn.tokens)[:, None])[:, 0]
    np.testing.assert_allclose(drawn.logprobs, chosen, atol=1e-5)


def generated(model: Any, tokens: list[int], **asked: Any) -> list[int]:
    out = model.generate(
        torch.tensor([tokens]), do_sample=False, max_new_tokens=10, pad_token_id=0, **asked
    )
    return [int(token) for token in out[0, len(tokens) :]]


@pytest.mark.parametrize("memory", [None, Layerwise(0.0001)])
def test_forks_are_penalised_for_all_that_stands_before_them(memory: Any) -> None:
    """As `generate` does with the whole text, beside branches without a penalty."""
    model = build("llama")
    model.generation_config.eos_token_id = None
    expected = [generated(model, tokens, repetition_penalty=1.3) for tokens in PROMPTS]
    plain = [generated(model, tokens) for tokens in PROMPTS]
    assert expected != plain
    engine = Engine(build("llama"), Letters(), memory=memory)
    roots = engine.roots(PROMPTS).result()
    batch = engine.running_batch(None)
    free = [child for root in roots for child in engine.fork(root, 1)]
    batch.add(free, Step(10), GREEDY)
    batch.add(roots, Step(4), PENALISED)
    while len(batch):
        batch.step()
    children = [child for root in roots for child in engine.fork(root, 2)]
    engine.release(roots)
    engine.generate(children, 6, sampling=PENALISED)
    assert [child.generated for child in free] == plain
    assert [child.generated for child in children] == [e for e in expected for _ in range(2)]


def test_the_requests_penalty_stands_in_for_that_of_the_models_files() -> None:
    model = build("llama")
    model.generation_config.repetition_penalty = 1.6
    model.generation_config.no_repeat_ngram_size = 2
    model.generation_config.eos_token_id = None
    for penalty in (None, 1.0, 1.2):
        asked = {} if penalty is None else {"repetition_penalty": penalty}
        expected = [generated(model, tokens, **asked) for tokens in PROMPTS]
        engine = Engine(copy.deepcopy(model), Letters())
        branches = engine.roots(PROMPTS).result()
        engine.generate(branches, 10, sampling=Sampling(0, repetition_penalty=penalty))
        assert [branch.generated for branch in branches] == expected


def test_searches_take_it_and_results_do_not_depend_on_what_runs_beside() -> None:
    engine = Engine(small(context=1024, eos=EOS), Ascii())
    search = SelfConsistency(n=3, max_tokens=12, repetition_penalty=1.5)
    problems: Any = ["what is 12 + 3", "go on"]
    together = solve(search, problem=problems, engine=engine, seed=2)
    for problem, result in zip(problems, together, strict=True):
        alone = solve(search, problem=problem, engine=engine, seed=2)
        other = solve(SelfConsistency(n=3, max_tokens=12), problem=problem, engine=engine, seed=2)
        assert alone.best is not None and result.best is not None and other.best is not None
        assert [b.tokens for b in alone.branches] == [b.tokens for b in result.branches]
        assert [b.tokens for b in alone.branches] != [b.tokens for b in other.branches]


@pytest.mark.parametrize("wrong", [0, -1.0, 1e9, float("nan"), "much"])
def test_what_is_no_penalty_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="repetition_penalty="):
        Sampling(repetition_penalty=wrong)
    with pytest.raises(InvalidInput, match="repetition_penalty="):
        BeamSearch(repetition_penalty=wrong)
