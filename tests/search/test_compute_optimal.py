"""Compute-optimal search: which strategy a problem gets, and what the estimate costs."""

from __future__ import annotations

from typing import Any

import pytest

from search import DVTS, BestOfN, ComputeOptimal, SelfConsistency, solve
from tests.helpers.backends import FakeBackend
from tests.helpers.searches import ByQuestion
from tests.helpers.trees import HandMadeTree, searched


def test_the_mean_score_of_the_first_samples_picks_the_strategy() -> None:
    kinds = (BestOfN, 5), (SelfConsistency, 3), (BestOfN, 1)
    strategies = tuple(kind(n=n, max_tokens=4) for kind, n in kinds)
    search = ComputeOptimal(n=2, max_tokens=3, edges=(0.3, 0.6), strategies=strategies)
    questions = ["hard 0.2", "edge 0.3", "middle 0.5", "easy 0.9"]
    backend = FakeBackend(letters="123456789")
    results = solve(search, problem=questions, engine=backend, verifier=ByQuestion())
    assert [len(r.tree) - 1 for r in results] == [2 + 5, 2 + 3, 2 + 3, 2 + 1]
    assert [r.usage.generated_tokens for r in results] == [2 * 3 + 4 * n for n in (5, 3, 3, 1)]
    # the estimate is charged
    assert [r.usage.verifier_tokens for r in results] == [2 + 5, 2, 2, 2 + 1]
    assert not backend.live
    for result in results:
        assert [result.best] == result.branches and len(result.best.generated) == 4


def test_the_strategy_chooses_by_its_own_rule() -> None:
    vote = SelfConsistency(n=9, max_tokens=1)
    search = ComputeOptimal(n=1, max_tokens=1, strategies=(vote,))
    result = solve(search, problem="q 0.5", engine=FakeBackend("12"), verifier=ByQuestion())
    texts = [node.text for node in result.tree[2:]]
    assert result.answer == max(texts, key=lambda text: (texts.count(text), -texts.index(text)))


@pytest.mark.parametrize(("n", "beam_width"), [(1, 2), (3, 2), (2, 3)])
def test_subtrees_are_counted_from_the_first_step_of_the_strategy(n: int, beam_width: int) -> None:
    """The first samples are forked from the same root before it."""
    tree = HandMadeTree({"": [*["s."] * n, *(f"{i}" for i in range(2 * beam_width))]})
    kept: list[list[str]] = []

    class Watched(DVTS):
        def choose(self, candidates: Any, extract: Any) -> Any:
            kept.append([branch.text for branch in candidates])
            return super().choose(candidates, extract)

    watched = Watched(subtrees=2, beam_width=beam_width, max_steps=1, delimiter=None)
    search = ComputeOptimal(n=n, strategies=(watched,))
    searched(search, tree, {})
    assert kept == [["0", str(beam_width)]]  # the first of equals in each half


def test_a_budget_that_is_spent_leaves_the_first_samples_to_choose_from() -> None:
    search = ComputeOptimal(n=2, max_tokens=3, strategies=(BestOfN(n=5, max_tokens=4),))
    rated = {"engine": FakeBackend("12"), "verifier": ByQuestion()}
    result = solve(search, problem="q 0.5", max_tokens=8, **rated)
    assert result.stopped == "max_tokens" and result.best.score == 0.5
