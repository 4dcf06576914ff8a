"""Ratings that are made pass by pass: between two passes others may use the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

from ttc.backend import Backend
from ttc.branch import Branch
from ttc.protocols import Verifier
from ttc.task import Passes, check_interrupt

V = TypeVar("V")
RatingScores = TypeVar("RatingScores", bound=Sequence[Sequence[float]])


def pass_by_pass(
    rating: Callable[[V, Sequence[Branch], Sequence[str], Backend], Passes[RatingScores]],
) -> Callable[[V, Sequence[Branch], Sequence[str], Backend], RatingScores]:
    """A verifier's `rate` from a generator, which yields after each pass of a model and returns the
    scores. Whoever calls `rate` gets the scores; `passes_of_rating` gives the generator, whose
    caller may leave it, or close it, between two passes."""

    @wraps(rating)
    def rate(
        verifier: V, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> RatingScores:
        passes = rating(verifier, branches, questions, backend)
        try:
            while True:
                next(passes)
                check_interrupt()
        except StopIteration as end:
            scores: RatingScores = end.value
            return scores
        finally:
            passes.close()

    rate.passes = rating  # type: ignore[attr-defined]
    return rate


def passes_of_rating(
    verifier: Verifier, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
) -> Passes[Any]:
    """What `verifier.rate` returns, pass by pass where it is a `pass_by_pass`."""
    rating = getattr(verifier.rate, "passes", None)
    if rating is None:
        return verifier.rate(branches, questions, backend)
    return (yield from rating(verifier, branches, questions, backend))
