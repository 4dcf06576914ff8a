"""Equal scores and equal votes: the search, the rules of `select` and the leaderboard choose the
same branch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from experiments.eval.predictions import predictions_of
from experiments.eval.select import Solved
from experiments.runs.problem_loop import run
from experiments.runs.records import chosen_branch
from search.selection import all_rules
from tests.helpers.records import records
from tests.helpers.runs import composed

OWN = """
class Flat:
    def __init__(self, **settings):
        pass

    def rate(self, branches, questions, backend):
        return [[0.5] for _ in branches]

def read(text):
    number = sum(map(ord, text)) % 4
    return str(number % 2) if number else None
"""
"""Every branch rates alike, and some have no answer."""


@pytest.mark.few
@pytest.mark.parametrize(
    ("search", "rule", "column"),
    [
        (["search=best_of_n"], "best", "pred_naive@4"),
        (["search=self_consistency"], "majority", "pred_maj@4"),
        (["search=self_consistency", "search.weighted=true"], "weighted", "pred_weighted@4"),
    ],
)
def test_ties_go_to_the_first_answer_in_the_tree_everywhere(
    place: Path, monkeypatch: pytest.MonkeyPatch, search: list[str], rule: str, column: str
) -> None:
    (place / "my_ties.py").write_text(OWN)
    monkeypatch.delitem(sys.modules, "my_ties", raising=False)
    monkeypatch.syspath_prepend(place)
    words = [*search, "search.n=4", "search.max_tokens=5", "verifier._target_=my_ties.Flat"]
    run(composed(place, "dataset.extract=my_ties.read", "dataset.answer_kind=text", search=words))
    (choose,) = [known.choose for known in all_rules() if known.name == rule]
    silent = 0
    for record in records(place):
        branches = sorted(record["branches"], key=lambda branch: branch["path"])
        answers = [branch["answer"] for branch in branches]
        silent += answers[0] is None and any(answers)
        votes = [0 if answer is None else answers.count(answer) for answer in answers]
        if rule == "best":
            votes = [min(1, count) for count in votes]
        first = votes.index(max(votes))
        chosen = chosen_branch(record)
        assert chosen is not None and chosen["path"] == branches[first]["path"]
        assert record["answer"] == answers[first]
        assert choose(Solved.of_record(record).samples) == first
        assert predictions_of(record)[column] == (answers[first], branches[first]["correct"])
    assert silent  # somewhere the first branch has no answer, and another has
