"""REBASE: the shares of the budget, on their own and on trees made by hand."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search import REBASE
from search.rebase import balanced
from tests.helpers.trees import HandMadeTree, searched, texts


@pytest.mark.parametrize(
    ("scores", "shares"),
    [
        ([0.9, 0.5, 0.1], [14, 2, 0]),
        ([0.5, 0.5, 0.5], [6, 5, 5]),
        ([0.1, 0.9, 0.5], [0, 14, 2]),  # whatever their order
        ([0.3], [16]),
    ],
)
def test_the_published_shares(scores: list[float], shares: list[int]) -> None:
    assert balanced(scores, 16, 0.2) == shares


@given(
    st.lists(st.floats(-50, 50), min_size=1, max_size=20),
    st.integers(0, 64),
    st.sampled_from([1e-3, 0.2, 1.0, 10.0]),
)
def test_shares_are_exactly_the_budget_and_never_less_for_a_better_branch(
    scores: list[float], budget: int, temperature: float
) -> None:
    shares = balanced(scores, budget, temperature)
    assert sum(shares) == budget and min(shares) >= 0
    order = sorted(range(len(scores)), key=lambda place: -float(f"{scores[place]:.6g}"))
    for better, worse in pairwise(order):
        assert shares[better] >= shares[worse]


def test_scores_far_apart_neither_underflow_nor_overflow() -> None:
    assert balanced([-4000.0, -4001.0, 0.0], 5, 0.2) == [0, 0, 5]
    assert balanced([-4000.0, -4000.0], 5, 1e-3) == [3, 2]
    assert not any(map(math.isnan, balanced([1e300, -1e300], 4, 0.2)))


def test_a_finished_branch_takes_its_continuation_out_of_the_budget() -> None:
    backend = HandMadeTree({"": ["a.", "b", "c", "d."], "b": ["e", "f"], "c": ["g", "h"]})
    result = searched(REBASE(n=4, max_steps=3), backend, {"b": 0.5, "c": 0.5})
    assert backend.calls == [4, 2, 2]
    assert [node.text for node in result.tree[5:7]] == ["e", "g"]
    assert texts(result) == ["a.", "d."]  # the finished ones alone


def test_the_best_open_branch_gets_the_most_continuations() -> None:
    backend = HandMadeTree({"": [*"abc"]})
    search = REBASE(n=16, max_steps=2, balance_temperature=0.2)
    result = searched(search, backend, {"a": 0.1, "b": 0.9, "c": 0.5})
    on = {parent: sum(node.parent == parent for node in result.tree) for parent in range(1, 17)}
    # five of "b" rated alike, then five of "c": ceil(16 / 5.79), ceil(13 / 4.79), ... and what is
    # left to the first "c"
    assert backend.calls == [16, 16]
    assert {parent: n for parent, n in on.items() if n} == {2: 3, 5: 3, 8: 3, 11: 3, 14: 3, 3: 1}
    assert len(result.branches) == 16 and not any(branch.finished for branch in result.branches)


def test_the_search_ends_when_every_branch_is_finished() -> None:
    backend = HandMadeTree({"": ["a.", "b"], "b": ["c."]})
    result = searched(REBASE(n=2), backend, {})
    assert backend.calls == [2, 1] and texts(result) == ["a.", "bc."]


def test_children_that_the_budget_cuts_do_not_lower_the_width() -> None:
    backend = HandMadeTree({"": ["aa", "bb"]}, other="xx")
    result = searched(REBASE(n=4, step_tokens=2, max_steps=2), backend, {}, max_tokens=5)
    assert backend.calls == [2, 1] and result.usage.generated_tokens == backend.written == 5
    assert result.stopped == "max_tokens"


def test_the_answer_has_the_highest_total_or_the_highest_score() -> None:
    tree, scores = {"": ["a.", "a.", "b."]}, {"a.": 0.5, "b.": 0.9}
    assert searched(REBASE(n=3), HandMadeTree(tree), scores).answer == "a."
    assert searched(REBASE(n=3, answer="best"), HandMadeTree(tree), scores).answer == "b."
