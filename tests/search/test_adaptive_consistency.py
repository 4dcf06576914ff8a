"""Sampling that stops once the vote is decided: the papers' rules, in index order and within
budgets."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from search import AdaptiveConsistency, SelfConsistency, solve
from search.adaptive_consistency import majority_probability
from tests.helpers.backends import Dictated, FakeBackend


@pytest.mark.parametrize(
    ("votes", "p"), [((3, 0), 0.9375), ((4, 0), 0.96875), ((5, 1), 0.9375), ((6, 1), 0.96484375)]
)
def test_the_probability_of_the_majority_is_that_of_the_beta_distribution(
    votes: tuple[int, int], p: float
) -> None:
    assert majority_probability(*votes) == p
    x = (np.arange(100_000) + 0.5) / 200_000  # the integral from 0 to 1/2, over that from 0 to 1
    first, second = votes
    below, above = (sum(y**first * (1 - y) ** second) for y in (x, 1 - x))
    assert majority_probability(*votes) == pytest.approx(1 - below / (below + above), abs=1e-6)


def sampled(answers: list[str], search: AdaptiveConsistency, **options: Any) -> tuple[int, Any]:
    """How many samples a search makes of these answers, and its result."""
    result = solve(search, problem="q", engine=Dictated(answers), **options)
    assert result.error is None
    return len(result.tree) - 1, result


@pytest.mark.parametrize(
    ("answers", "made"),
    [
        ("7777777777", 4),
        ("7877777777", 7),  # 5 to 1 is not enough
        ("7878787878", 10),
        ("7,,777,,,,", 6),  # samples without an answer have no vote
        (",,,,,,,,,,", 10),
    ],
)
def test_sampling_ends_as_soon_as_the_majority_is_clear(answers: str, made: int) -> None:
    count, result = sampled(list(answers), AdaptiveConsistency(n=10))
    assert count == made
    assert result.answer == (None if set(answers) == {","} else "7")


@pytest.mark.parametrize(
    ("answers", "made"),
    [("777", 3), ("778888777", 6), ("7" + "87" * 5, 11), (",,,777", 6), ("7,7888", 6)],
)
def test_a_window_ends_sampling_when_all_of_it_agrees(answers: str, made: int) -> None:
    """The windows follow one another; agreement across two of them does not count."""
    search = AdaptiveConsistency(n=11, block=3, rule="window")
    assert sampled([*answers, *"1212121212"], search)[0] == made


def test_a_last_block_that_is_cut_short_is_no_window() -> None:
    assert sampled(list("1234512"), AdaptiveConsistency(n=7, block=3, rule="window"))[0] == 7
    search = AdaptiveConsistency(n=6, block=3, rule="window")
    count, result = sampled(["11", "22", "33", "44", "55", "55"], search, max_tokens=10)
    assert (count, result.stopped) == (5, "max_tokens")


def test_blocks_go_by_index_and_not_by_which_sample_is_done_first() -> None:
    """The block's short answers are not looked at before its long ones."""
    answers = ["9", "111118", "9", "111118", "9", "111118", "9", "111118"]
    count, result = sampled(answers, AdaptiveConsistency(n=8, block=4))
    assert count == 8 and result.answer == "9"
    assert [branch.text for branch in result.branches] == answers


@pytest.mark.parametrize("block", [1, 3, 5])
def test_the_samples_are_the_first_of_self_consistency(block: int) -> None:
    """It makes the same samples in the same order, and no more than the rule needs: told by a loop
    over all of them."""
    questions = [f"question {i}" for i in range(6)]
    searches = SelfConsistency(n=20), AdaptiveConsistency(n=20, block=block)
    every, some = (
        solve(replace(search, max_tokens=1), problem=questions, engine=FakeBackend("11112"))
        for search in searches
    )
    lengths = set()
    for whole, part in zip(every, some, strict=True):
        texts = [branch.text for branch in whole.branches]
        ends = range(block, 21, block)
        sure = (n for n in ends if majority_probability(*both(texts[:n])) >= 0.95)
        count = next(sure, 20)
        assert [branch.text for branch in part.branches] == texts[:count]
        lengths.add(count)
    assert len(lengths) > 1


def both(texts: list[str]) -> tuple[int, int]:
    counts = sorted(Counter(texts).values(), reverse=True)
    return counts[0], counts[1] if len(counts) > 1 else 0
