"""Self-consistency (Wang et al., 2023): independent samples vote for their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from search.base import Case, Search, SearchSteps, expand
from search.selection import C, Voting, Winner
from search.tool_votes import ToolVote, vote_on_calls
from ttc.branch import Branch
from ttc.protocols import Aggregation, Extract, Rate


@dataclass(frozen=True)
class SelfConsistency(Search):
    """`n` samples; the answer with most votes, or with `weighted` the highest total score.

    weighted: votes weigh their score.
    tool_vote: vote on calls of tools that are left to the caller: by the tools' names, by their
        arguments, or first by the names ("tool_hierarchical"). exclude_args: arguments that have no
        say in it, as times and numbers of requests.

    Tokens: n L.
    Use it where: answers can be compared, and there is no verifier.
    """

    n: int = 16
    max_tokens: int = 256
    weighted: bool = False
    aggregation: Aggregation = "last"
    statistics: bool = False
    tool_vote: ToolVote = "none"
    exclude_args: tuple[str, ...] = ()

    @property
    def needs_verifier(self) -> bool:
        return self.weighted

    @property
    def draws(self) -> bool:
        return self.weighted or self.temperature > 0

    @property
    def voting(self) -> Voting | None:
        if self.tool_vote != "none":
            return None
        return "weighted" if self.weighted else "majority"

    def run(self, root: Branch, case: Case) -> SearchSteps:
        step = case.answer(self.max_tokens, self.statistics)
        branches = yield from expand([root], self.n, step, self.sampling)
        if self.weighted:
            yield Rate(branches, self.aggregation)
        return branches

    def choose(self, candidates: Sequence[C], extract: Extract) -> Winner[C]:
        if self.tool_vote != "none":
            return vote_on_calls(
                candidates, extract, self.weighted, self.tool_vote, self.exclude_args
            )
        return super().choose(candidates, extract)
