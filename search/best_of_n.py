"""Best-of-N: independent samples, the one that the verifier rates highest."""

from __future__ import annotations

from dataclasses import dataclass

from search.base import Case, Search, SearchSteps, expand
from ttc.branch import Branch
from ttc.protocols import Aggregation, Rate


@dataclass(frozen=True)
class BestOfN(Search):
    """The best rated of `n` samples.

    Tokens: n L.
    Use it where: there is a verifier for whole answers.
    """

    n: int = 16
    max_tokens: int = 256
    aggregation: Aggregation = "last"
    statistics: bool = False

    def run(self, root: Branch, case: Case) -> SearchSteps:
        step = case.answer(self.max_tokens, self.statistics)
        branches = yield from expand([root], self.n, step, self.sampling)
        yield Rate(branches, self.aggregation)
        return branches
