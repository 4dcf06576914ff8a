"""Tree rollouts: samples that share their beginnings, to train on (TreePO; Li et al., 2025)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from search.base import COUNT, Case, Search, SearchSteps, expand
from search.selection import C, Chosen, vote
from ttc.protocols import Extract, Release
from ttc.tree.branch import Branch


@dataclass(frozen=True)
class TreeRollouts(Search):
    """`n` samples as the leaves of one tree, which forks after every step while there are leaves
    left to share out. All of them vote.

    width: the most continuations of a step. Of the samples below a step, each of them gets an equal
        part, so that with n=8 and width=2 the tree forks three times and then goes on as 8 chains.
    step_tokens: tokens of a step, which ends at `delimiter` before that.
    max_steps: steps of a sample, at most. 1 makes independent samples of `step_tokens` tokens.
    Where a sample ends early, those that it would have been parted into come from the other
    branches, and from the prompt where none is left. So there are always `n`.
    """

    limits: ClassVar = {"width": COUNT}

    n: int = 8
    width: int = 2
    step_tokens: int = 64
    max_steps: int = 8
    delimiter: str | None = None

    needs_verifier = False
    voting = "majority"

    def run(self, root: Branch, case: Case) -> SearchSteps:
        step = case.step(self.step_tokens, self.delimiter)
        leaves: list[Branch] = []
        shares = {root: self.n}
        for left in reversed(range(self.max_steps)):
            counts = [min(share, self.width) if left else share for share in shares.values()]
            children = yield from expand(list(shares), counts, step, self.sampling)
            yield Release([parent for parent in shares if parent is not root])
            shares = shared_out(children, shares)
            ended = [child for child in shares if child.finished or not left]
            leaves += ended
            spare = sum(shares.pop(child) - 1 for child in ended)
            for i, child in enumerate(shares):
                shares[child] += spare // len(shares) + (i < spare % len(shares))
            if not shares:
                break
        if len(leaves) < self.n:
            rest = case.answer(self.step_tokens * self.max_steps)
            leaves += yield from expand([root], self.n - len(leaves), rest, self.sampling)
        return leaves

    def choose(self, candidates: Sequence[C], extract: Extract) -> Chosen[C]:
        return vote(candidates, extract)


def shared_out(children: Sequence[Branch], shares: Mapping[Branch, int]) -> dict[Branch, int]:
    """How many leaves each child gets: equal parts of its parent's, the first ones one more."""
    siblings: dict[Branch | None, list[Branch]] = {}
    for child in children:
        siblings.setdefault(child.parent, []).append(child)
    parts: dict[Branch, int] = {}
    for parent, together in siblings.items():
        assert parent is not None
        whole, more = divmod(shares[parent], len(together))
        parts |= {child: whole + (i < more) for i, child in enumerate(together)}
    return parts
