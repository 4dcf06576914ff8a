"""Features drawn at random and used together: texts, trees and choices are those of each problem
alone, with all KV on the device."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
import torch

from search import BeamSearch, BestFirst, BestOfN, Problem, Result, Search, SelfConsistency, solve
from tests.helpers.models import build, small
from tests.helpers.searches import exactly
from tests.helpers.tokenizers import Letters
from ttc import (
    BeamGroups,
    BlockCache,
    Capture,
    Engine,
    Headwise,
    Layerwise,
    Paged,
    PromptLookup,
    Resident,
)
from ttc.tree.branch import Branch

FAMILIES = ("small", "llama", "gemma3", "gpt2")
POLICIES = (Resident, Layerwise, BeamGroups, Paged, Headwise, Capture)
QUESTIONS = ("1 + 1", "2 + 3 * 4", "9", "4 - 4 + 12", "7 * 8", "30 + 2")
SEARCHES: tuple[Search, ...] = (
    BestOfN(n=4, max_tokens=9),
    SelfConsistency(n=3, max_tokens=7),
    BeamSearch(beam_size=2, beam_width=2, step_tokens=4, max_steps=3),
    BestFirst(beam_size=1, beam_width=3, step_tokens=3, max_steps=5, finish=4),
)


class Looks:
    """Rates a branch by a hash of its tokens, after passes over its KV and over branches beside
    it."""

    def rate(self, branches: list[Branch], questions: list[str], backend: Any) -> list[list[float]]:
        backend.score(branches, [[[65], [66, 67]]] * len(branches))
        beside = backend.side_branches(branches, [branch.tokens[-12:] for branch in branches])
        backend.release(beside)
        return [[sum(i * t for i, t in enumerate(b.tokens)) % 101 / 101.0] for b in branches]


@cache
def model_of(family: str) -> Any:
    return small(context=256).double() if family == "small" else build(family, torch.float64)


def engine_of(family: str, **options: Any) -> Engine:
    return Engine(model_of(family), Letters(), **options)


def seen(result: Result) -> Any:
    rows = [(b.tokens, b.path, b.finish_reason, b.score) for b in result.branches]
    return result.answer, rows, exactly(result.tree), result.error


def solved(search: Search, engine: Engine, questions: list[str], **options: Any) -> list[Any]:
    verifier = Looks() if search.needs_verifier else None
    problems = [Problem(question, question) for question in questions]
    results = solve(search, problem=problems, engine=engine, verifier=verifier, **options)
    assert engine.kv_bytes() == 0
    return [seen(result) for result in results]


@cache
def alone(family: str, place: int, question: str) -> tuple[Any, int]:
    """What a problem gives alone, and the bytes that it took."""
    engine = engine_of(family)
    (found,) = solved(SEARCHES[place], engine, [question])
    return found, engine.memory.device.peak_bytes


@pytest.mark.filterwarnings("ignore:memory=capture")
@pytest.mark.parametrize(
    "seed", [n if n < 12 else pytest.param(n, marks=pytest.mark.slow) for n in range(240)]
)
def test_a_problem_has_its_own_result_in_any_combination(seed: int) -> None:
    draw = random.Random(seed)
    family = draw.choice(FAMILIES)
    place = draw.randrange(len(SEARCHES))
    questions = draw.sample(QUESTIONS, draw.randint(2, 6))
    peak = max(alone(family, place, question)[1] for question in questions)
    policy = draw.choice(POLICIES)
    budget = draw.choice([None, 1.5, 3.0])
    options: dict[str, Any] = {} if policy is Resident else {"block_tokens": draw.choice([4, 16])}
    engine = engine_of(
        family,
        memory=policy(budget and budget * peak / 2**30, **options),
        cache=draw.choice(
            [
                None,
                BlockCache(draw.randint(1, 12), block_tokens=4),
                BlockCache(draw.randint(1, 12), block_tokens=4, order="lru"),
            ]
        ),
        speculation=draw.choice([None, PromptLookup(max_rows=16)]),
        prefill_tokens=draw.choice([8, 64, 512]),
    )
    together = {
        "concurrency": draw.choice([None, 2, 3]),
        "max_rows": draw.choice([None, 5, 9]),
    }
    found = solved(SEARCHES[place], engine, questions, **together)
    assert found == [alone(family, place, question)[0] for question in questions]
