"""Fork-Think (Al-Khalili et al., 2026): one chain shows where the model is unsure, and others fork
from it there."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from statistics import fmean
from typing import ClassVar

from search.base import COUNT, Case, Limit, Search, SearchSteps, expand
from search.selection import C, Chosen, vote
from ttc.errors import BudgetExceeded
from ttc.protocols import Expand, Extract, Need, Release
from ttc.ranking import comparable
from ttc.tree.branch import Branch


@dataclass(frozen=True)
class ForkThink(Search):
    """A seed chain, `forks` points of it where the model was least sure, and `n` - 1 continuations
    shared out among these; all of them vote.

    The seed is written in parts of `part_tokens` tokens. A part's confidence is the mean over its
    tokens of C_t, minus the mean log-probability of the 20 likeliest tokens (DeepConf's). Chains
    fork before the least confident parts, and write what is left of `max_tokens`. What comes before
    the first `skip` of the seed is left alone.
    """

    limits: ClassVar = {"forks": COUNT, "part_tokens": COUNT, "skip": Limit(0, 1)}

    n: int = 8
    forks: int = 2
    part_tokens: int = 8
    skip: float = 0.0
    max_tokens: int = 256

    needs_verifier = False
    voting = "majority"
    needs: ClassVar[tuple[Need, ...]] = ("top_logprobs",)

    def run(self, root: Branch, case: Case) -> SearchSteps:
        path, longest = [root], self.max_tokens + case.thinking_tokens
        seed: list[Branch] = []
        with suppress(BudgetExceeded):  # the chains so far vote
            for length in range(0, longest, self.part_tokens):
                step = case.part(min(self.part_tokens, longest - length), statistics=True)
                path += yield Expand(path[-1:], 1, step, self.sampling)
                if path[-1].finished:
                    break
            seed, points = path[-1:], self.points(path)
            yield Release([branch for branch in path[1:-1] if branch not in points])
            for branch in points:
                share = (self.n - 1) // len(points) + (
                    points.index(branch) < (self.n - 1) % len(points)
                )
                left = longest - branch.written_since(len(root.tokens))
                rest = case.answer(max(1, min(self.max_tokens, left)))
                seed += yield from expand([branch], share, rest, self.sampling)
        chains = seed or [branch for branch in path[-1:] if branch is not root]
        yield Release([branch for branch in path[1:] if branch not in chains])
        return chains

    def points(self, path: Sequence[Branch]) -> list[Branch]:
        """The branches after which the least confident parts come, the earliest first."""
        parts = range(1, len(path))
        later = [i for i in parts if i - 1 >= self.skip * len(parts)] or list(parts)
        chosen = sorted(later, key=lambda i: (comparable(confidence(path[i], path[i - 1])), i))
        return [path[i - 1] for i in sorted(chosen[: self.forks])]

    def choose(self, candidates: Sequence[C], extract: Extract) -> Chosen[C]:
        return vote(candidates, extract)


def confidence(branch: Branch, before: Branch) -> float:
    """The mean C_t of what a branch has written since `before`."""
    start = max(0, len(before.tokens) - branch.prompt_length)
    known = [-value for value in branch.top_k_logprobs[start:] if isfinite(value)]
    return fmean(known) if known else 0.0
