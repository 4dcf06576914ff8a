"""Best-first tree search: what looks best anywhere in the tree goes on next (Koh et al., 2024,
arXiv 2407.01476)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from search.base import Case, SearchSteps, StepwiseSearch, expand
from search.selection import C, Winner, complete, ranked
from ttc.branch import Branch
from ttc.checks import PositiveInt
from ttc.errors import BudgetExceeded
from ttc.protocols import Aggregation, Extract, Rate, Release


@dataclass(frozen=True)
class BestFirst(StepwiseSearch):
    """Continue the `beam_size` best open branches, at any depth.

    Each is continued `beam_width` times. Nothing is pruned: a branch that was passed over stays
    open and is taken up again when it is the best one left, so many idle branches hold KV (see
    `ttc.BlockCache`). It answers with the best finished branch; where none has an answer, the open
    ones compete too.

    max_steps: the search ends after so many expansions, or when no branch is open. finish: it
        also ends once so many branches have finished.

    Tokens: beam_size x beam_width x max_steps x s.
    Use it where: a wrong first step must be undone.
    """

    beam_size: int = 2
    beam_width: int = 4
    step_tokens: int = 32
    max_steps: int = 12
    finish: PositiveInt = 8
    delimiter: str | None = None
    aggregation: Aggregation = "mean"

    compares_ratings = True

    def run(self, root: Branch, case: Case) -> SearchSteps:
        step = case.step(self.step_tokens, self.delimiter)
        opened, finished = [root], list[Branch]()
        with suppress(BudgetExceeded):
            for _ in range(self.max_steps):
                best = opened[: self.beam_size]
                if not best or len(finished) >= self.finish:
                    break
                children = yield from expand(best, self.beam_width, step, self.sampling)
                del opened[: self.beam_size]
                yield Release(best)
                finished += [child for child in children if child.finished]
                opened += [child for child in children if not child.finished]
                yield Rate(children, self.aggregation)
                opened = ranked(opened)
        return complete(ranked([*finished, *opened]), case.extract)

    def choose(self, candidates: Sequence[C], extract: Extract) -> Winner[C]:
        return super().choose(complete(candidates, extract), extract)
