"""Best-of-N: independent samples, the one that the verifier rates highest."""

from __future__ import annotations

from dataclasses import dataclass

from search.base import Case, Search, SearchSteps, expand
from ttc.backend import Need
from ttc.branch import Branch
from ttc.protocols import Aggregation, Rate


@dataclass(frozen=True)
class BestOfN(Search):
    """The best rated of `n` samples.

    statistics: keep what selection rules by the model's own confidence need (see `Step`).

    Tokens: n L.
    Use it where: there is a verifier for whole answers.
    """

    n: int = 16
    max_tokens: int = 256
    aggregation: Aggregation = "last"
    statistics: bool = False

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("statistics",) if self.statistics else ()

    def run(self, root: Branch, case: Case) -> SearchSteps:
        step = case.answer(self.max_tokens, self.statistics)
        branches = yield from expand([root], self.n, step, self.sampling)
        yield Rate(branches, self.aggregation)
        return branches
