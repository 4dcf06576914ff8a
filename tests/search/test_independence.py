"""Results don't depend on how many problems are under way, on their order, or on where keys and
values lie."""

from __future__ import annotations

from typing import Any

import pytest

from search import Problem, Search, SelfConsistency, solve
from search.selection import by_path
from tests.helpers.backends import FakeBackend
from tests.helpers.engines import make_engine
from tests.helpers.searches import Costly, all_searches, seen
from tests.helpers.tiers import some_quick
from ttc import BeamGroups, BlockCache, Engine, Headwise, Layerwise, Paged

SEARCHES = all_searches(
    n=3, max_tokens=5, beam_width=2, step_tokens=3, max_steps=3, max_depth=3, max_states=4
)
BUDGET = 90_000 / 2**30
POLICIES: list[dict[str, Any]] = [  # taken in turn
    {"memory": Layerwise(budget_gib=BUDGET, block_tokens=8)},
    {"memory": BeamGroups(budget_gib=BUDGET, block_tokens=8)},
    {"memory": Paged(budget_gib=BUDGET, block_tokens=8)},
    {"memory": Headwise(budget_gib=BUDGET)},
    {"cache": BlockCache(2)},
]
QUESTIONS = ["1 + 1", "2 + 3 * 4"]


def solved(search: Search, engine: Engine, questions: list[str], **options: Any) -> dict[str, Any]:
    if search.needs_verifier:
        options["verifier"] = Costly(0)
    results = solve(search, problem=questions, engine=engine, **options)
    assert engine.kv_bytes() == 0 and not any(result.error for result in results)
    return {result.problem.question: seen(result) for result in results}


NAMES = [type(search).__name__ for search in SEARCHES]
FIRST = [place for place, name in enumerate(NAMES) if name not in NAMES[:place]]
"""One of each search; the others are variants of it."""


@pytest.mark.few(5)
@pytest.mark.parametrize(
    "place", some_quick(range(len(SEARCHES)), FIRST), ids=lambda place: NAMES[place]
)
def test_results_depend_on_no_company_no_order_and_no_policy(place: int) -> None:
    search, policy = SEARCHES[place], POLICIES[place % len(POLICIES)]
    plain = make_engine(context=160)
    alone = {
        q: found for question in QUESTIONS for q, found in solved(search, plain, [question]).items()
    }
    assert solved(search, plain, QUESTIONS[::-1], concurrency=2) == alone
    assert solved(search, make_engine(context=160, **policy), QUESTIONS) == alone


# ---------------------------------------------------------------- one question asked again


def samples(problems: list[Any], **options: Any) -> list[list[str]]:
    backend, search = FakeBackend(), SelfConsistency(n=3, max_tokens=20)
    results = solve(search, problem=problems, engine=backend, **options)
    assert not backend.live
    return [[branch.text for branch in by_path(result.branches)] for result in results]


def test_a_question_that_comes_again_has_samples_of_its_own() -> None:
    again = samples(["q", "q", "r", "q"])
    assert len({tuple(texts) for texts in again}) == 4
    assert samples(["q"]) == again[:1]
    assert samples(["r", "q"]) == [again[2], again[0]]
    assert samples(["q", "r", "q", "q"], concurrency=1) == [again[0], again[2], again[1], again[3]]
    assert samples(["q", "q"], seed=1) != again[:2]


def test_problems_with_ids_have_the_samples_of_their_ids() -> None:
    named = [Problem("q", "a"), Problem("q", "b"), Problem("q", "a")]
    first, second, third = samples(named)
    assert first == third != second
    mixed = samples([Problem("q", "a"), "q", "q"])
    assert mixed[0] == first and mixed[1:] == samples(["q", "q"])
