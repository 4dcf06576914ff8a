"""Self-consistency (Wang et al., 2023): independent samples vote for their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from search.base import Case, Search, SearchSteps, expand
from search.selection import C, Chosen, vote
from ttc.protocols import Aggregation, Extract, Need, Rate
from ttc.tree.branch import Branch


@dataclass(frozen=True)
class SelfConsistency(Search):
    """`n` samples; the answer with most votes, or with `weighted` the highest total score.

    statistics: keep what selection rules by the model's own confidence need (see `Step`).
    """

    n: int = 16
    max_tokens: int = 256
    weighted: bool = False
    aggregation: Aggregation = "last"
    statistics: bool = False

    @property
    def needs_verifier(self) -> bool:
        return self.weighted

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("statistics",) if self.statistics else ()

    def run(self, root: Branch, case: Case) -> SearchSteps:
        step = case.answer(self.max_tokens, self.statistics)
        branches = yield from expand([root], self.n, step, self.sampling)
        if self.weighted:
            yield Rate(branches, self.aggregation)
        return branches

    def choose(self, candidates: Sequence[C], extract: Extract) -> Chosen[C]:
        return vote(candidates, extract, self.weighted)
