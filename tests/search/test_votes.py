"""Every vote groups answers as the grader of the problem does."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from experiments.runs.records import chosen_branch
from experiments.runs.schema import SEARCHES
from experiments.runs.summary import votes
from search import (
    MCTS,
    REBASE,
    AdaptiveConsistency,
    CertaintyProbe,
    ComputeOptimal,
    DeepConf,
    Search,
    SelfConsistency,
    solve,
)
from search.selection import Sample, majority, vote
from tests.helpers.backends import Dictated
from ttc import Branch
from ttc.text.equality import AnswerReader, ballots_by

MATH = AnswerReader("math")
VOTES = [r"\boxed{5 cm}", r"\boxed{x=5}", r"\boxed{5}", r"\boxed{7}", r"\boxed{7}"]


@dataclass
class Text:
    """A candidate that is a text."""

    text: str
    path: tuple[int, ...] = ()
    finish_reason: str | None = "eos"
    score: float | None = 1.0
    gated: bool = False
    top_k_logprobs: list[float] = field(default_factory=lambda: [-1.0])


CANDIDATES = [Text(text, (place,)) for place, text in enumerate(VOTES)]


@pytest.mark.parametrize(
    "search",
    [
        *(kind() for kind in SEARCHES.values() if kind is not ComputeOptimal),
        SelfConsistency(weighted=True),
        REBASE(answer="best"),
        MCTS(answer="weighted_majority"),
    ],
    ids=lambda search: f"{type(search).__name__}-{search.voting}",
)
def test_a_search_says_by_which_rule_it_votes_and_groups_as_the_grader_does(search: Search) -> None:
    if search.voting or isinstance(search, DeepConf):
        assert search.choose(CANDIDATES, MATH)[1] in ("5 cm", "x=5", "5")
    scores = {"1": [0.9], "2": [0.6, 0.6], "3": [0.1, 0.1, 0.1]}
    texts = [(answer, score) for answer, its in scores.items() for score in its]
    candidates = [Text(text, (i,), score=score) for i, (text, score) in enumerate(texts)]
    winners = {None: "1", "weighted": "2", "majority": "3"}
    if not isinstance(search, DeepConf):  # its votes weigh something else
        assert search.choose(candidates, MATH)[1] == winners[search.voting]


def test_samples_are_enough_once_spellings_of_one_answer_are() -> None:
    """Five spellings of one answer decide the vote; taken apart they would ask for more samples."""
    answers = ["5 cm", "x=5", "5", "5.0", r"\frac{10}{2}"]
    same, apart = ballots_by(MATH, answers), ballots_by(lambda text: text, answers)
    assert AdaptiveConsistency().decided(same[-1:], same)
    assert not AdaptiveConsistency().decided(apart[-1:], apart)
    window = AdaptiveConsistency(rule="window", block=5)
    assert window.decided(same, same) and not window.decided(apart, apart)


def test_deep_conf_agrees_on_answers_and_not_on_spellings() -> None:
    search = DeepConf(mode="online", consensus=0.6, window=1)
    assert search.agreed(CANDIDATES, MATH)
    assert not search.agreed(CANDIDATES, MATH.__call__)


def test_probes_agree_on_answers_and_not_on_spellings() -> None:
    """The chain ends with the third probe; by spelling no two agree."""
    replies = ["x=5}", r"\frac{10}{2}}", "5}"]
    asked: list[str] = []

    def says(branch: Branch) -> str:
        before, suffix, said = branch.text.partition(CertaintyProbe().suffix)
        if not suffix:
            return "a chain that goes on for a while without an end"[len(before) :]
        if before not in asked:
            asked.append(before)
        return replies[(len(asked) - 1) % 3][len(said) :]

    search = CertaintyProbe(max_tokens=40, every=4)
    result = solve(search, problem="q", engine=Dictated(says), answer_kind="math")
    assert result.error is None and result.answer == "5" and len(asked) == 3


BRANCHES = [
    {"path": [place], "answer": answer, "vote": vote, "correct": vote == "5"}
    for place, (answer, vote) in enumerate(
        [("5 cm", "5"), ("7", "7"), ("x=5", "5"), ("7.0", "7"), ("5", "5")]
    )
]


def test_records_keep_what_a_branch_voted_for() -> None:
    """maj@k, the selection rules and the chosen branch go by it, without asking a grader again."""
    assert votes(BRANCHES) == ([(3, True), (2, False)], 0)
    assert majority([Sample.of_record(branch) for branch in BRANCHES]) == 0
    assert chosen_branch({"answer": "x=5", "branches": BRANCHES}) is BRANCHES[0]
    old = [{key: branch[key] for key in ("path", "answer", "correct")} for branch in BRANCHES]
    # not transitive: the first by its path says what is right
    mixed = [{**BRANCHES[4], "correct": False}, *BRANCHES[:4]]
    assert votes(mixed) == votes(BRANCHES)
    assert votes(old)[0] == [(1, True), (2, False), (1, True), (1, True)]  # records of before


def test_a_function_of_ones_own_groups_by_spelling_unless_a_grader_is_given() -> None:
    def read(text: str) -> str:
        return text.removeprefix("Answer ")

    def same_letters(gold: str, predicted: str) -> bool:
        return gold.casefold() == predicted.casefold()

    samples = [Text(f"Answer {word}") for word in ("red", "Red", "RED", "blue", "blue")]
    assert vote(samples, AnswerReader(extract=read))[1] == "blue"
    assert vote(samples, AnswerReader(extract=read, same=same_letters))[1] == "red"
