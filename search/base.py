"""What every search algorithm shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from ttc.errors import InvalidInput
from ttc.protocols import Expand, Extract, Rate, Release, Vary
from ttc.sampling import Sampling
from ttc.text.answers import canonical
from ttc.tree.branch import Branch

Request = Vary | Expand | Rate | Release
Plan = Generator[Request, Any, list[Branch]]
"""Yields requests, receives their answers, returns the candidates that are left."""


@dataclass(frozen=True)
class Search(ABC):
    """An algorithm. Its fields are its whole configuration; it owns no model and no batching."""

    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        _ = self.sampling  # refuses bad values before any work
        for name in ("n", "max_tokens", "beam_size", "beam_width", "step_tokens", "max_steps", "finish"):
            value = getattr(self, name, 1)
            if value < 1:
                raise InvalidInput(f"{name}={value} must be at least 1")
        aggregation = getattr(self, "aggregation", "last")
        if aggregation not in ("min", "product", "last", "mean"):
            raise InvalidInput(f"aggregation={aggregation!r} is unknown; use min, product, last or mean")

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_k, self.top_p, self.min_p)

    @property
    def needs_verifier(self) -> bool:
        return True

    @property
    def compares_ratings(self) -> bool:
        """Whether scores of different ratings compete, those of an earlier step with those of a later one."""
        return False

    @abstractmethod
    def run(self, root: Branch, end: tuple[str, ...]) -> Plan:
        """The algorithm. `end` holds strings that finish a branch."""

    def choose(self, candidates: Sequence[Branch], extract: Extract) -> tuple[Branch | None, str | None]:
        """The best candidate and its answer: the highest score, the first one of equals."""
        if not candidates:
            return None, None
        best = ranked(candidates)[0]
        return best, extract(best.text)


def ranked(branches: Sequence[Branch]) -> list[Branch]:
    """Best score first; equal scores, and branches without one, keep their order.

    Scores that agree in six digits are equal: two branches with the same text must not change places by what was
    computed beside them.
    """
    return sorted(branches, key=lambda b: float("-inf") if b.score is None else float(f"{b.score:.6g}"), reverse=True)


def vote(candidates: Sequence[Branch], extract: Extract, weighted: bool = False) -> tuple[Branch | None, str | None]:
    """The answer that most candidates give, or that gathers the highest total score.

    Answers are canonicalised, invalid ones dropped. Ties go to the answer that was found first. The branch returned
    is the best-scored one with that answer. Weights are scores from zero on: where a score is negative (a
    log-probability), all are raised until the lowest is zero, for more votes must not count against an answer.
    """
    lowest = min([0.0, *(branch.score or 0.0 for branch in candidates)])
    totals: dict[str, float] = defaultdict(float)
    by_answer: dict[str, list[tuple[Branch, str]]] = defaultdict(list)
    for branch in candidates:
        answer = extract(branch.text)
        key = canonical(answer)
        if answer is not None and key is not None:
            totals[key] += (branch.score or 0.0) - lowest if weighted else 1.0
            by_answer[key].append((branch, answer))
    if not totals:
        return (candidates[0], None) if candidates else (None, None)
    winner = max(totals, key=lambda key: totals[key])  # the first of equals: dictionaries keep their order
    best = ranked([branch for branch, _ in by_answer[winner]])[0]
    return best, next(answer for branch, answer in by_answer[winner] if branch is best)
