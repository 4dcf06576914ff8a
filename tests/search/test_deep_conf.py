"""Votes by the model's own confidence: what is left out, when a sample is stopped, and when
sampling ends."""

from __future__ import annotations

from typing import Any

import pytest
from hydra.utils import instantiate

from search import DeepConf, solve
from tests.helpers.backends import Dictated
from tests.helpers.configurations import configuration


def solved(search: DeepConf, texts: list[str], sure: list[list[float]], **options: Any) -> Any:
    backend = Dictated(texts, sure)
    result = solve(search, problem="q", engine=backend, **options)
    assert result.error is None and not backend.live
    return result


def lengths(result: Any) -> dict[int, int]:
    """How many tokens each sample grew to, by its index."""
    found: dict[int, int] = {}
    for node in result.tree[1:]:
        found[node.path[0]] = max(found.get(node.path[0], 0), node.tokens)
    return found


# ---------------------------------------------------------------- offline


@pytest.mark.parametrize(("keep", "answer"), [(1.0, "8"), (0.7, "7"), (0.5, "9"), (0.1, "9")])
def test_offline_the_most_confident_share_votes_with_its_confidence(
    keep: float, answer: str
) -> None:
    """All together 8 has 6.5, 7 has 6.2 and 9 has 4; of the four surest 7 has 6.2, of the upper
    half 9 has most."""
    texts = ["8", "8", "8", "7", "7", "9"]
    sure = [[1.0], [2.0], [3.5], [3.0], [3.2], [4.0]]
    result = solved(DeepConf(n=6, keep=keep, window=1), texts, sure)
    assert result.answer == answer and len(result.branches) == 6


# ---------------------------------------------------------------- online

WARM = [[2.0] * 8, [4.0] * 8, [4.0] * 8]
"""Three finished samples, of which the last two disagree. With keep=0.5 the threshold is 4."""

TEXTS = ["11111116", "11111117", "11111118", "11111119", "11111110", "11111112"]


def online(**settings: Any) -> DeepConf:
    usual = {"n": 4, "warmup": 3, "block": 1, "max_tokens": 8, "window": 2}
    usual |= {"step_tokens": 1, "keep": 0.5, "least_votes": 1}
    return DeepConf(mode="online", **(usual | settings))


@pytest.mark.parametrize(("step_tokens", "tokens"), [(1, 4), (2, 4), (3, 6), (8, 8)])
def test_a_sample_is_stopped_when_a_full_window_falls_below_the_threshold(
    step_tokens: int, tokens: int
) -> None:
    """Its windows of two are 5, 5, 3, ...: the third is the first below 4, after four tokens."""
    sure = [*WARM, [5.0, 5.0, 5.0, 1.0, 9.0, 9.0, 9.0, 9.0]]
    result = solved(online(step_tokens=step_tokens), TEXTS, sure)
    assert lengths(result) == {0: 8, 1: 8, 2: 8, 3: tokens}
    assert [branch.text for branch in result.branches] == TEXTS[1:3] and result.answer == TEXTS[1]


def test_a_window_that_is_not_full_stops_nothing() -> None:
    sure = [*WARM, [0.0, 0.0, 0.0, 16.0, 16.0, 16.0, 16.0, 16.0]]
    result = solved(online(window=4), TEXTS, sure)
    assert lengths(result)[3] == 8 and [b.text for b in result.branches] == TEXTS[1:4]
    shorter = solved(online(window=4), [*TEXTS[:3], "19"], [*WARM, [0.0, 0.0]])
    assert lengths(shorter)[3] == 2  # it ended by itself
    # but it is less sure than the threshold, as a whole
    assert [b.text for b in shorter.branches] == TEXTS[1:3]


def test_samples_that_vote_reach_the_threshold_those_of_the_warm_up_too() -> None:
    result = solved(online(n=6), TEXTS, [*WARM, [6.0] * 8, [3.9] * 8, [4.0] * 8])
    assert [b.text for b in result.branches] == [TEXTS[i] for i in (1, 2, 3, 5)]
    assert result.answer == TEXTS[3]


def test_no_more_samples_are_made_once_the_weights_agree() -> None:
    texts = ["8"] * 20
    result = solved(online(n=20, window=1, keep=1.0), texts, [[3.0]] * 20)
    assert lengths(result).keys() == {0, 1, 2}
    texts[0] = "7"
    result = solved(online(n=20, window=1, keep=1.0, consensus=0.8), texts, [[3.0]] * 20)
    assert len(lengths(result)) == 5  # 12 of 15
    result = solved(online(n=6, window=1, keep=1.0, consensus=1.0), texts, [[3.0]] * 20)
    assert len(lengths(result)) == 6  # the most there are


def test_agreement_counts_once_there_are_enough_votes() -> None:
    sure = [[3.0]] * 20
    for least, made in ((1, 3), (3, 3), (4, 4), (6, 6)):
        result = solved(online(n=20, window=1, keep=1.0, least_votes=least), ["8"] * 20, sure)
        assert len(lengths(result)) == made
    search = online(n=20, window=1, keep=1.0, least_votes=4)
    silent = solved(search, ["8", "-", *["8"] * 18], sure)
    assert len(lengths(silent)) == 5  # a sample without an answer is no vote


@pytest.mark.slow
def test_the_defaults_are_the_published_ones_and_the_configurations_window_fits_its_texts() -> None:
    search = DeepConf(mode="online", max_tokens=64_000)
    assert (search.window, search.warmup, search.keep, search.consensus) == (2048, 16, 0.9, 0.95)
    short = instantiate(configuration("run", "search=deep_conf", "search.mode=online").search)
    assert (short.window, short.max_tokens, short.consensus) == (32, 256, 0.95)
    free = instantiate(configuration("run", "search=deep_conf", "search.consensus=null").search)
    assert free.consensus is None


@pytest.mark.parametrize("most", [5, 17, 20, 23, 30])
def test_a_budget_leaves_the_samples_that_are_done(most: int) -> None:
    texts = TEXTS[:4]
    result = solved(online(warmup=2, keep=1.0), texts, [[3.0] * 8] * 4, max_tokens=most)
    assert result.usage.generated_tokens == most and result.stopped == "max_tokens"
    texts = [texts[0][:most]] if most < 8 else texts[: most // 8]
    assert [branch.text for branch in result.branches] == texts


def test_without_a_consensus_the_whole_budget_is_spent() -> None:
    result = solved(online(n=9, window=1, keep=1.0, consensus=None), ["8"] * 9, [[3.0]] * 9)
    assert len(lengths(result)) == 9 and result.answer == "8"
