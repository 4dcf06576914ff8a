"""Best-of-N: independent samples, the one that the verifier rates highest."""

from __future__ import annotations

from dataclasses import dataclass

from search.base import Plan, Search
from ttc.protocols import Aggregation, Expand, Rate, Step
from ttc.tree.branch import Branch


@dataclass(frozen=True)
class BestOfN(Search):
    """`n` samples of at most `max_tokens` tokens; step scores of a process verifier join by `aggregation`."""

    n: int = 16
    max_tokens: int = 256
    aggregation: Aggregation = "last"

    def run(self, root: Branch, end: tuple[str, ...]) -> Plan:
        branches: list[Branch] = yield Expand([root], self.n, Step(self.max_tokens, end=end), self.sampling)
        yield Rate(branches, self.aggregation)
        return branches
