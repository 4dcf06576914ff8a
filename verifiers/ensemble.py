"""Several verifiers as one."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Interval

from ttc.backend import Backend, Need
from ttc.branch import Branch
from ttc.checks import Options, check_kind, check_one_each
from ttc.errors import VerifierError
from ttc.passes.ratings import pass_by_pass, passes_of_rating
from ttc.protocols import Forgets, Priced, Verifier, children_price, score_range
from ttc.task import Passes

JOINS: dict[str, Callable[[Sequence[float]], float]] = {
    "last": lambda scores: scores[-1],
    "min": min,
    "mean": lambda scores: sum(scores) / len(scores),
}


class Combined(Options, ABC):
    """A verifier made of others, which needs, costs and forgets what they do."""

    @abstractmethod
    def verifiers(self) -> Sequence[Verifier]: ...

    @property
    def needs(self) -> tuple[Need, ...]:
        return tuple(
            need for verifier in self.verifiers() for need in getattr(verifier, "needs", ())
        )

    def price(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> int:
        priced = [verifier for verifier in self.verifiers() if isinstance(verifier, Priced)]
        return sum(verifier.price(branches, questions, backend) for verifier in priced)

    def children_price(
        self, parent: Branch, question: str, backend: Backend, tokens: int, count: int
    ) -> int:
        child = question, backend, tokens, count
        return sum(children_price(verifier, parent, *child) for verifier in self.verifiers())

    def released(self, branches: Sequence[Branch]) -> None:
        for verifier in self.verifiers():
            if isinstance(verifier, Forgets):
                verifier.released(branches)


@dataclass
class EnsembleVerifier(Combined):
    """The mean or the smallest of what several verifiers say: one score per branch.

    parts: the verifiers; their scores should have one scale, as probabilities have. how: "mean" or
    "min". steps: how a part's step scores become one: "last", "min" or "mean".
    accuracies: how often each part was right on held-out problems, between 0 and 1; the mean then
    weighs part i by log(p_i / (1 - p_i)), the weights of the best vote of independent judges
    (Nitzan and Paroush, 1982), and by 0 where p_i is at most 1/2. None for equal weights.

    Rates: as its parts do: the mean or the smallest of their scores.
    Cost: the sum of theirs.
    Use it where: verifiers err in different ways.
    """

    parts: Sequence[Verifier] = ()
    how: Literal["mean", "min"] = "mean"
    steps: Literal["last", "min", "mean"] = "last"
    accuracies: Sequence[Annotated[float, Interval(gt=0, lt=1)]] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = isinstance(self.parts, Sequence) and all(
            callable(getattr(verifier, "rate", None)) for verifier in self.parts
        )
        check_kind("parts", self.parts, fits, "a list of verifiers")
        if self.accuracies is not None:
            check_one_each(len(self.parts), "parts", len(self.accuracies), "accuracies")

    def refusals(self) -> Mapping[str, object]:
        accuracies = self.accuracies
        return {
            "an ensemble has no parts; give at least one verifier": not self.parts,
            f"accuracies weigh a mean, and how={self.how!r}; leave one out": (
                accuracies is not None and self.how != "mean"
            ),
            f"no part with accuracies={accuracies} is right more often than wrong, so none has a "
            "weight; use other parts": accuracies is not None and max(accuracies, default=1) <= 0.5,
        }

    @property
    def weights(self) -> list[float]:
        if self.accuracies is None:
            return [1 / len(self.parts)] * len(self.parts)
        odds = [max(0.0, math.log(p / (1 - p))) for p in self.accuracies]
        return [each / sum(odds) for each in odds]

    def verifiers(self) -> Sequence[Verifier]:
        return self.parts

    @property
    def score_range(self) -> tuple[float, float] | None:
        ranges = [
            limits for verifier in self.parts if (limits := score_range(verifier)) is not None
        ]
        if not ranges:
            return None
        return min(least for least, _ in ranges), max(most for _, most in ranges)

    @pass_by_pass
    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> Passes[list[list[float]]]:
        columns = []
        for verifier in self.parts:
            rated = yield from passes_of_rating(verifier, branches, questions, backend)
            if len(rated) != len(branches) or not all(len(scores) for scores in rated):
                raise VerifierError(
                    f"{type(verifier).__name__} did not rate all branches ({len(branches)})"
                )
            columns.append([JOINS[self.steps](scores) for scores in rated])
        return [[self._joined(row)] for row in zip(*columns, strict=True)]

    def _joined(self, scores: Sequence[float]) -> float:
        if self.accuracies is None:
            return JOINS[self.how](scores)
        return sum(w * score for w, score in zip(self.weights, scores, strict=True))
