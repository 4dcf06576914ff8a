"""Which idle branches keep their KV when there are too many blocks (RKSC section 2.4, Algorithm
4)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal

from ttc.checks import Options, PositiveInt
from ttc.tree.branch import TokenBranch
from ttc.tree.segment import Segment
from ttc.tree.tree import Tree


@dataclass
class BlockCache(Options):
    """Evicts KV of branches that are alive but not at work, down to a number of blocks.

    capacity_blocks: so many. block_tokens: tokens of each.
    order: "rsbcm" evicts ascending omega = score / (depth + 1), "lru" what was used longest ago.
        Leaves go before their ancestors, and nothing that a call at work needs: then the tree may
        exceed the capacity. An evicted branch keeps its tokens; when it goes on, its KV is computed
        again (exact), and counted as recomputed tokens.
    """

    setting_of: ClassVar[str] = "cache."

    capacity_blocks: PositiveInt = 2000
    block_tokens: PositiveInt = 16
    order: Literal["rsbcm", "lru"] = "rsbcm"

    evictions: int = field(init=False, repr=False, default=0)
    evicted_tokens: int = field(init=False, repr=False, default=0)
    peak_blocks: int = field(init=False, repr=False, default=0)

    def fresh(self) -> BlockCache:
        return BlockCache(**{f.name: getattr(self, f.name) for f in fields(self) if f.init})

    def blocks(self, segment: Segment) -> int:
        return -(-len(segment.tokens) // self.block_tokens)

    def trim(
        self, tree: Tree, live: Collection[TokenBranch], at_work: Iterable[TokenBranch] = ()
    ) -> None:
        """Evict until the tree is within capacity, or nothing may leave. at_work: those of the live
        branches that a call is about to work on."""
        used = sum(self.blocks(segment) for segment in tree.segments())
        self.peak_blocks = max(self.peak_blocks, used)
        if used <= self.capacity_blocks:
            return
        busy = {id(branch) for branch in at_work}
        ends: dict[Segment, list[TokenBranch]] = defaultdict(list)
        for branch in live:
            ends[branch.leaf].append(branch)
        scores = [branch.score for branch in live if branch.score is not None]
        lowest, highest = min([0.0, *scores]), max(scores, default=0.0)

        def may_leave(segment: Segment) -> bool:
            branches = ends[segment]
            if segment.parent is None or segment.refs != len(branches):
                return False  # a child, or a call, holds it
            return not any(id(branch) in busy for branch in branches)

        while used > self.capacity_blocks:
            free = list(filter(may_leave, ends))
            if not free:
                return
            segment = min(free, key=lambda s: (self._worth(s, ends[s], lowest, highest), -s.serial))
            parent, branches = segment.parent, ends.pop(segment)
            assert parent is not None
            used -= self.blocks(segment)
            self.evictions += 1
            self.evicted_tokens += len(segment.tokens)
            for branch in branches:
                tree.move(branch, parent)
            ends[parent] += branches

    def _worth(
        self, segment: Segment, branches: list[TokenBranch], lowest: float, highest: float
    ) -> float:
        """What leaves first has least. The unrated count as the best."""
        if self.order == "lru":
            return max(branch.used_at for branch in branches)
        return max(
            importance((highest if b.score is None else b.score) - lowest, _depth(b, segment))
            for b in branches
        )


def importance(score: float, depth: int) -> float:
    """RSBCM's omega. A score below zero would turn the order of depths round."""
    return score / (depth + 1)


def _depth(branch: TokenBranch, segment: Segment) -> int:
    return sum(end <= segment.end + 1 for end in branch.step_ends)
