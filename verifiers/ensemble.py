"""Several verifiers as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ttc.checks import check_kind
from ttc.errors import InvalidInput, VerifierError
from ttc.protocols import Backend, Forgets, Need, Priced, Verifier
from ttc.tree.branch import Branch


@dataclass
class EnsembleVerifier:
    """The mean or the smallest of what several verifiers say: one score per branch.

    parts: the verifiers. how: "mean" or "min". steps: how the step scores of each part become its one score: "last",
    "min" or "mean". The parts' scores are taken as they are, so they should have one scale, as probabilities have.
    """

    parts: Sequence[Verifier]
    how: Literal["mean", "min"] = "mean"
    steps: Literal["last", "min", "mean"] = "last"

    def __post_init__(self) -> None:
        listed = isinstance(self.parts, Sequence) and all(callable(getattr(part, "rate", None)) for part in self.parts)
        check_kind("parts", self.parts, listed, "a list of verifiers")
        if not self.parts:
            raise InvalidInput("an ensemble has no parts; give at least one verifier")
        for name, known in (("how", ("mean", "min")), ("steps", ("last", "min", "mean"))):
            if getattr(self, name) not in known:
                raise InvalidInput(f"{name}={getattr(self, name)!r} is unknown; use {', '.join(known)}")

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the parts need of a backend."""
        return tuple(need for part in self.parts for need in getattr(part, "needs", ()))

    def rate(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> list[list[float]]:
        columns = []
        for part in self.parts:
            rated = part.rate(branches, questions, backend)
            if len(rated) != len(branches) or not all(len(scores) for scores in rated):
                raise VerifierError(f"{type(part).__name__} did not rate each of {len(branches)} branches")
            columns.append([_one(scores, self.steps) for scores in rated])
        return [[_one(row, self.how)] for row in zip(*columns, strict=True)]

    def price(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> int:
        """The most verifier tokens that those parts take that say so."""
        return sum(part.price(branches, questions, backend) for part in self.parts if isinstance(part, Priced))

    def released(self, branches: Sequence[Branch]) -> None:
        """Pass on that branches were let go."""
        for part in self.parts:
            if isinstance(part, Forgets):
                part.released(branches)


def _one(scores: Sequence[float], how: str) -> float:
    return min(scores) if how == "min" else scores[-1] if how == "last" else sum(scores) / len(scores)
