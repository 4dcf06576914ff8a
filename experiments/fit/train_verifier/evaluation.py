"""What a verifier is worth on held-out problems, against others and against a vote."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.fit.train_verifier.auc import auc, auc_within
from experiments.fit.train_verifier.problems import ProblemSet
from experiments.runs.stats import paired, wilson
from search.rating import aggregate
from search.selection import Sample, best, majority, weighted_majority
from ttc.backend import Backend
from ttc.branch import Branch
from ttc.protocols import Forgets, Verifier
from ttc.results import Result
from ttc.tree.branch import by_problem


@dataclass
class SharedCandidates:
    """Rates by several verifiers, so that all choose among the same candidates; the search goes by
    the first.

    seen: the candidates of each problem's last rating, by its root: each text without its thoughts
        (None where it is all thought), and its score by each.
    """

    verifiers: dict[str, Verifier]
    seen: dict[int, list[tuple[str | None, dict[str, float]]]] = field(default_factory=dict)

    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> Sequence[Sequence[float]]:
        ratings = {
            name: verifier.rate(branches, questions, backend)
            for name, verifier in self.verifiers.items()
        }
        for rows in by_problem(branches):
            rated = []
            for row in rows:
                last = {name: aggregate(scores[row], "last") for name, scores in ratings.items()}
                rated.append((branches[row].answer_text, last))
            self.seen[branches[rows[0]].root_id] = rated
        return next(iter(ratings.values()))

    def released(self, branches: Sequence[Branch]) -> None:
        for verifier in self.verifiers.values():
            if isinstance(verifier, Forgets):
                verifier.released(branches)


@dataclass(frozen=True)
class Candidates:
    """The candidates of one problem in the order of their making: what each answers, whether that
    is right, its score by each verifier, and what it votes for."""

    answers: list[str | None]
    right: list[bool]
    scores: dict[str, list[float]]
    votes: list[str | None] = field(default_factory=list)

    def chosen(self, rule: Callable[[Sequence[Sample]], int | None], by: str | None = None) -> bool:
        scores = [None] * len(self.answers) if by is None else self.scores[by]
        rows = zip(self.answers, scores, self.votes or [None] * len(self.answers), strict=True)
        place = rule([Sample(answer, score, vote=vote) for answer, score, vote in rows])
        return place is not None and self.right[place]


def candidates(
    results: Sequence[Result], together: SharedCandidates, group: ProblemSet
) -> list[Candidates]:
    tested = []
    for result in results:
        rated = [] if result.best is None else together.seen.get(result.best.root_id, [])
        scores = {name: [scores[name] for _, scores in rated] for name in together.verifiers}
        reader = group.reading.voting(result.problem)
        answers = [None if text is None else reader(text) for text, _ in rated]
        right = [group.grades(result.problem, answer) for answer in answers]
        tested.append(Candidates(answers, right, scores, reader.ballots(answers)))
    return tested


def choices(tested: Sequence[Candidates], names: Sequence[str]) -> dict[str, list[bool]]:
    """Which problems are right when their candidate is chosen by each verifier's score, by votes
    that the first one's scores weigh, or by equal votes. "any right" is what no choice can beat."""
    first = names[0]
    right = {name: [one.chosen(best, name) for one in tested] for name in names}
    right[f"votes weighed by the {first}"] = [
        one.chosen(weighted_majority, first) for one in tested
    ]
    right["majority"] = [one.chosen(majority) for one in tested]
    right["any right"] = [any(one.right) for one in tested]
    return right


def auc_figures(
    scores: Sequence[Sequence[float]], right: Sequence[Sequence[bool]]
) -> dict[str, Any]:
    """AUC over everything and within problems, each with its 95% interval; None where there is
    nothing to compare."""
    both = {"all": auc(scores, right), "within": auc_within(scores, right)}
    return {name: None if math.isnan(figure[0]) else list(figure) for name, figure in both.items()}


def accuracy(right: Sequence[float]) -> dict[str, Any]:
    return {
        "accuracy": sum(right) / len(right),
        "accuracy_95": list(wilson(sum(right), len(right))),
    }


def gain(over: Sequence[float], right: Sequence[float]) -> dict[str, Any]:
    """By how much more of the same problems are right, with its 95% interval and p: McNemar's, or
    where they are means over seeds a score test's (`stats.paired`)."""
    test = paired(right, over)
    return {"gain": [test.difference.mean, test.difference.low, test.difference.high], "p": test.p}
