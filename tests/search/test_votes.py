"""Every vote groups answers as the grader of the problem does."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from search.adaptive_consistency import AdaptiveConsistency
from search.deep_conf import DeepConf
from search.mcts import MCTS
from search.rebase import REBASE
from search.revision import Revision
from search.selection import vote
from search.self_consistency import SelfConsistency
from ttc.text.reader import AnswerReader

MATH = AnswerReader("math")
VOTES = [r"\boxed{5 cm}", r"\boxed{x=5}", r"\boxed{5}", r"\boxed{7}", r"\boxed{7}"]


@dataclass
class Text:
    """A candidate that is a text."""

    text: str
    score: float | None = 1.0
    gated: bool = False
    top_k_logprobs: list[float] = field(default_factory=lambda: [-1.0])


CANDIDATES = [Text(text) for text in VOTES]


def test_three_spellings_of_five_outvote_two_sevens() -> None:
    """By their spelling alone each of the three would have one vote."""
    best, answer = vote(CANDIDATES, MATH)
    assert answer == "5 cm" and best is CANDIDATES[0]
    assert vote(CANDIDATES, lambda text: MATH(text))[1] == "7"  # a function of one's own: by spelling


@pytest.mark.parametrize(
    "search",
    [
        SelfConsistency(),
        SelfConsistency(weighted=True),
        AdaptiveConsistency(),
        DeepConf(),
        Revision(),
        REBASE(),
        MCTS(answer="weighted_majority"),
    ],
    ids=lambda search: type(search).__name__,
)
def test_every_search_that_votes_groups_so(search: object) -> None:
    assert search.choose(CANDIDATES, MATH)[1] in ("5 cm", "x=5", "5")  # type: ignore[attr-defined]
