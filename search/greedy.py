"""Greedy decoding: the baseline of everything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass

from search.base import Case, Search, SearchSteps
from ttc.branch import Branch
from ttc.protocols import Expand


@dataclass(frozen=True)
class Greedy(Search):
    """One answer, the most likely token each time.

    Tokens: L.
    Use it where: a baseline is needed.
    """

    max_tokens: int = 256
    _: KW_ONLY
    temperature: float = 0.0

    needs_verifier = False
    draws = False

    def refusals(self) -> Mapping[str, object]:
        return {
            f"temperature={self.temperature} samples, and greedy search takes the most likely "
            "token; for one sample use best_of_n or self_consistency with n=1": self.temperature
        }

    def run(self, root: Branch, case: Case) -> SearchSteps:
        step = case.answer(self.max_tokens)
        branches: list[Branch] = yield Expand([root], 1, step, self.sampling)
        return branches
