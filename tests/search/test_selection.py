"""Which candidate each selection rule chooses, ties, missing figures and DeepConf's confidences
among them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search import Case, Expand, Rate, Search, SearchSteps, Step, solve
from search.selection import (
    Sample,
    all_rules,
    best,
    borda,
    confidence_vote,
    majority,
    score_weights,
    soft_best_of_n,
    trace_confidence,
    vote,
    voted,
    weighted_majority,
)
from tests.helpers.trees import HandMadeTree, Scores
from ttc import Branch, InvalidInput
from ttc.text.answers import extract_answer


def samples(answers: Sequence[str | None], **columns: Sequence[Any]) -> list[Sample]:
    rows = zip(*columns.values(), strict=True) if columns else [()] * len(answers)
    return [
        Sample(answer, **dict(zip(columns, row, strict=True)))
        for answer, row in zip(answers, rows, strict=True)
    ]


def test_the_majority_counts_equal_numbers_as_one_answer_and_no_answer_as_none() -> None:
    assert majority(samples(["7", "8", "7.0", None, " ", "8", "$7"])) == 0
    assert majority(samples([None, " "])) is None and majority([]) is None


def test_ties_go_to_the_answer_that_was_found_first() -> None:
    assert majority(samples(["8", "7", "7", "8"])) == 0
    assert best(samples(["8", "7", "9"], score=[0.2, 0.5, 0.5])) == 1
    assert best(samples(["8", "7"], score=[0.2, 0.2000001])) == 0  # they agree in six digits
    assert best(samples(["8", "7"], score=[0.2, 0.200001])) == 1  # and these do not
    assert voted(samples(["8", "7", "7"]), [0.3, 0.1, 0.2]) == 0  # 0.1 + 0.2 is not 0.3 in binary
    assert borda(samples(["8", "7"], self_certainty=[1.0, 1.0])) == 0


def sigmoid(score: float) -> float:
    return 1 / (1 + math.exp(-score))


def test_probabilities_weigh_as_they_are_and_logits_their_sigmoid() -> None:
    for scores in ([0.1, 0.9], [0.1, 0.9, 1.0]):
        assert score_weights(samples(["7"] * len(scores), score=scores)) == pytest.approx(scores)
    logits = [3.0, -2.0, 0.5, -1e4]
    expected = [sigmoid(3), sigmoid(-2), sigmoid(0.5), 0.0]
    assert score_weights(samples(["7"] * 4, score=logits)) == pytest.approx(expected)
    # half as far out of [0, 1] as makes it a logit
    half = samples(["7"] * 3, score=[1.5, 0.8, None])
    assert score_weights(half) == pytest.approx(
        [0.5 + 0.5 * sigmoid(1.5), 0.4 + 0.5 * sigmoid(0.8), 0.0]
    )
    assert weighted_majority(samples(["7", "8", "7"], score=[0.1, 0.9, 0.2])) == 1


@given(
    st.lists(st.tuples(st.sampled_from("789"), st.floats(-0.3, 1.3)), min_size=1, max_size=6),
    st.floats(-1e-6, 1e-6),
)
def test_a_tiny_shift_of_all_scores_changes_no_clear_vote(
    pairs: list[tuple[str, float]], tiny: float
) -> None:
    """Wherever they lie: at 0 and at 1, below which and above which scores are no probabilities,
    too."""
    answers, scores = [answer for answer, _ in pairs], [score for _, score in pairs]
    for edge in (0.0, min(scores), max(scores) - 1):  # so that one of them lies on the edge
        before, after = (
            score_weights(samples(answers, score=[score - edge + shift for score in scores]))
            for shift in (0, tiny)
        )
        assert after == pytest.approx(before, abs=2.1e-6, rel=0)
        totals = sorted(
            (sum(w for a, w in zip(answers, before, strict=True) if a == x) for x in "789"),
            reverse=True,
        )
        if totals[0] - totals[1] > 1e-4:
            chosen = [voted(samples(answers), weights) for weights in (before, after)]
            assert answers[chosen[0]] == answers[chosen[1]]  # type: ignore[index]


@given(st.lists(st.floats(-30, 30), min_size=2, max_size=6))
def test_a_higher_score_never_weighs_less(scores: list[float]) -> None:
    weights = score_weights(samples(["7"] * len(scores), score=scores))
    order = sorted(range(len(scores)), key=scores.__getitem__)
    assert all(
        0 <= weights[a] <= weights[b] + 1e-12 <= 1 + 1e-9 for a, b in itertools.pairwise(order)
    )


def test_one_with_an_answer_comes_before_one_without_whatever_their_scores() -> None:
    mixed = samples([None, "8", "7"], score=[0.5, 0.5, 0.5])
    assert best(mixed) == 1 and best(samples([" ", "8"], score=[0.6, 0.5])) == 1
    assert soft_best_of_n(samples([" ", "8"], score=[9.0, 0.5])) == [0, 1]
    assert best(samples([" ", None], score=[0.5, 0.6])) == 1
    assert best(samples([None, "8"], logprob=[-1.0, -1.0]), "logprob") == 1
    ranks = samples([None, "8", "7", "7"], self_certainty=[2.0, 2.0, 1.0, 0.5])
    assert borda(ranks, power=0.9) == 1  # 4^.9 against 2^.9 + 1; as rank 2 it had 3^.9


def test_what_a_gate_cut_off_has_no_say_beside_what_is_whole() -> None:
    cut = samples(
        ["7", "7", "8"], score=[9.0, 9.0, 1.0], self_certainty=[3.0] * 3, gated=[True, True, False]
    )
    assert [rule(cut) for rule in (majority, weighted_majority, best, borda)] == [2] * 4
    assert soft_best_of_n(cut) == [0, 0, 1]
    everything = samples(["7", "7", "8"], gated=[True] * 3)
    assert majority(everything) == 0


def test_borda_votes_weigh_by_rank() -> None:
    """Ranks 1, 2, 3: votes of 3^p, 2^p, 1. The two worst win together at p = 0.5 and lose at p =
    3."""
    found = samples(["9", "7", "9"], self_certainty=[2.0, 5.0, 3.0])
    assert 2**0.5 + 1 > 3**0.5 and 2**3 + 1 < 3**3
    assert borda(found) == 0 and borda(found, power=3) == 1
    assert borda(found, power=0) == majority(found) == 0
    # rank 1 has no answer: 1 against 2
    assert borda(samples([None, "7", "8"], self_certainty=[9.0, 1.0, 2.0])) == 2


def test_soft_best_of_n_draws_in_proportion_to_the_exponential_of_the_score() -> None:
    chances = soft_best_of_n(samples(["7", "8", "9"], score=[0.1, 0.3, None]), temperature=0.2)
    assert chances == pytest.approx([1 / (1 + math.e), math.e / (1 + math.e), 0])
    # nothing overflows
    assert soft_best_of_n(samples(["7", "8"], score=[5.0, 5000.0]), temperature=1e-3) == [0, 1]
    assert soft_best_of_n(samples(["7", "8"], score=[1.0, 2.0]), temperature=1e9) == pytest.approx(
        [0.5, 0.5]
    )
    assert soft_best_of_n(samples(["7"])) == [0] and soft_best_of_n([]) == []
    with pytest.raises(InvalidInput, match="temperature=0 must be more than 0"):
        soft_best_of_n(samples(["7"], score=[1.0]), temperature=0)


VALUES = [5.0, 4.0, 1.0, 2.0, 6.0, 9.0]


@pytest.mark.parametrize(
    ("measure", "window", "expected"),
    [
        ("mean", 2, 4.5),
        ("tail", 2, 7.5),
        ("lowest", 2, 1.5),  # the groups are 4.5, 2.5, 1.5, 4, 7.5
        ("lowest", 1, 1.0),
        ("lowest", 6, 4.5),
        ("lowest", 2048, 4.5),  # a text shorter than a window is one group
        ("tail", 2048, 4.5),
        ("bottom", 2, 1.5),
        ("bottom", 2048, 4.5),
    ],
)
def test_the_confidence_of_a_text(measure: Any, window: int, expected: float) -> None:
    assert trace_confidence(VALUES, measure, window) == pytest.approx(expected)
    assert trace_confidence([], measure, window) == 0


@given(st.lists(st.floats(0, 20), min_size=1, max_size=80), st.integers(1, 30))
def test_groups_are_the_means_of_all_full_windows(values: list[float], window: int) -> None:
    groups = [
        float(np.mean(values[i : i + window])) for i in range(max(1, len(values) - window + 1))
    ]
    assert trace_confidence(values, "lowest", window) == pytest.approx(min(groups), abs=1e-9)
    lowest = sorted(groups)[: max(1, len(groups) // 10)]
    assert trace_confidence(values, "bottom", window) == pytest.approx(
        float(np.mean(lowest)), abs=1e-9
    )


def test_a_measure_that_is_unknown_and_a_window_of_nothing_are_named() -> None:
    with pytest.raises(
        InvalidInput, match="measure='min' is unknown; use one of mean, tail, lowest, bottom"
    ):
        trace_confidence(VALUES, "min")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="window=0 must be at least 1"):
        trace_confidence(VALUES, "lowest", 0)
    for keep in (0, 1.5):
        with pytest.raises(InvalidInput, match=f"keep={keep} must be more than 0 and at most 1"):
            confidence_vote(samples(["7"]), keep=keep)


def test_the_most_confident_samples_vote_with_their_confidence() -> None:
    found = samples(["7", "7", "7", "8", "8"], confidences=[[1.0], [1.1], [1.2], [3.0], [4.0]])
    assert majority(found) == 0
    assert confidence_vote(found) == 3  # 3.3 against 7
    assert confidence_vote(found, keep=0.1) == 3  # the best sample alone, and its answer's first
    only = samples(["7", "8", "8", "9"], confidences=[[1.0], [2.0], [2.5], [4.0]])
    assert confidence_vote(only) == 1 and confidence_vote(only, keep=0.1) == 3
    assert confidence_vote(only, keep=0.5) == 3  # 2.5 against 4
    assert confidence_vote(samples(["7", "8"], confidences=[[1.0, 1.0], [3.0, 0.5]]), window=1) == 0


def test_samples_without_an_answer_are_left_out_before_the_filter() -> None:
    """Else the most confident tenth could be samples that say nothing."""
    found = samples(["7", None, None], confidences=[[1.0], [5.0], [6.0]])
    assert confidence_vote(found, keep=0.1) == 0
    assert confidence_vote(found[1:], keep=0.1) is None


def test_the_top_tenth_and_the_top_nine_tenths_are_quantiles() -> None:
    """Of 10 samples the 90th percentile lies between the two highest, the 10th between the two
    lowest."""
    answers, sure = [str(i) for i in range(10)], [[float(10 + i)] for i in range(10)]
    found = samples(answers, confidences=sure)
    assert confidence_vote(found, keep=0.1) == 9
    everyone_else = samples(["x", *["y"] * 9], confidences=[[100.0], *[[10.0]] * 9])
    # 100 against 90: those at the threshold stay
    assert confidence_vote(everyone_else, keep=0.9) == 0
    lowest_out = samples(["x", "y", "y"], confidences=[[1.5], [1.0], [1.0]])
    assert confidence_vote(lowest_out, keep=1.0) == 1 and confidence_vote(lowest_out, keep=0.1) == 0


def test_a_rule_that_does_not_draw_is_sure() -> None:
    found = samples(
        ["7", "8", "8"],
        score=[0.9, 0.1, 0.2],
        logprob=[-1.0, -2.0, -0.5],
        self_certainty=[3, 2, 1],
        confidences=[[1.0], [2.0], [3.0]],
    )
    chosen = {rule.name: rule.chances(found) for rule in all_rules(temperature=1e-6)}
    assert {name: row.index(max(row)) for name, row in chosen.items()} == {
        "majority": 2,
        "weighted": 0,
        "best": 0,
        "soft_best": 0,
        "borda_score": 2,
        "likeliest": 2,
        "self_certainty": 0,
        "borda": 2,
        "confidence": 2,
        "confidence_top90": 2,
        "confidence_top10": 2,
    }
    assert all(sum(row) == pytest.approx(1) for row in chosen.values())
    assert {rule.name: sum(rule.chances([])) for rule in all_rules()} == dict.fromkeys(chosen, 0)


def test_a_sample_is_read_from_a_record() -> None:
    row = {"answer": "7", "score": 0.5, "logprob": -1.0, "finish_reason": "gate", "text": "7"}
    assert Sample.of_record(row) == Sample("7", 0.5, -1.0, gated=True)
    assert Sample.of_record({"answer": None, "finish_reason": "eos"}) == Sample(None)


# ---------------------------------------------------------------- ties


@dataclass(frozen=True)
class Backwards(Search):
    """Samples, the last one first."""

    weighted: bool = False

    def run(self, root: Branch, case: Case) -> SearchSteps:
        made = yield Expand([root], 4, Step(9, end=case.end), self.sampling)
        yield Rate(made)
        return made[::-1]


TIED = {"": ["so.", "is 8.", "is 7.", "is 8."]}


def test_a_vote_without_an_answer_gives_the_first_that_is_whole() -> None:
    tree = HandMadeTree({"": ["so.", "if.", "or."]})
    made = tree.fork(tree.root([1], seed=0), 3)
    tree.generate(made, 9)
    assert vote(made, extract_answer) == (made[0], None)
    made[0].finish_reason = "gate"
    assert vote(made, extract_answer) == (made[1], None)
    assert vote([], extract_answer) == (None, None)


def test_a_search_breaks_ties_as_the_rules_do_on_its_records() -> None:
    tree = HandMadeTree(TIED)
    result = solve(Backwards(), problem="q", engine=tree, verifier=Scores({}))
    assert result.answer == "8" and result.best.path == (1,)
    # no answer comes last of equals
    assert [branch.path for branch in result.branches] == [(1,), (2,), (3,), (0,)]
    rows = [
        Sample(extract_answer(b.text), b.score)
        for b in sorted(result.branches, key=lambda b: b.path)
    ]
    assert best(rows) == 1


@pytest.mark.parametrize("weighted", [False, True])
def test_votes_that_are_equal_go_to_the_first_in_the_tree(weighted: bool) -> None:
    """The first by its path, and not by its score or by when the search gave it."""

    class Voting(Backwards):
        def choose(self, candidates: Any, extract: Any) -> Any:
            return vote(candidates, extract, self.weighted)

    tree = HandMadeTree({"": ["is 8.", "is 7.", "is 7.", "is 8."]})
    scores = {"is 8.": 0.5, "is 7.": 0.5}
    result = solve(Voting(weighted=weighted), problem="q", engine=tree, verifier=Scores(scores))
    assert result.answer == "8" and result.best.path == (0,)


def test_the_lowest_of_raw_scores_still_has_a_vote() -> None:
    assert weighted_majority(samples(["7", "8", "8", "8"], score=[-2.9, -3.0, -3.0, -3.0])) == 1
    assert weighted_majority(samples(["7", "8", "8", "8"], score=[12.0, 4.0, 4.0, 4.0])) == 1
