"""Which beams decode together: LBS's Algorithm 1 and Balanced Grouping, under a budget in bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil

from ttc.errors import OutOfMemory
from ttc.memory.storage import Storage
from ttc.memory.tiers import least_budget


@dataclass(frozen=True)
class Beams:
    """Beams in depth-first order.

    blocks: of each beam. block_bytes: of a block. tail_bytes: what a beam adds in the step.
    budget: of a group, each block counted once (once per beam unless `shared`).
    resident: whether a block is on the device already.
    """

    blocks: Sequence[Sequence[Storage]]
    block_bytes: Callable[[Storage], int]
    tail_bytes: int
    budget: float
    resident: Callable[[Storage], bool] = lambda kv: False
    shared: bool = True

    def added_bytes(self, beam: int, union: set[Storage]) -> int:
        """What a beam adds to a group that reads `union`."""
        added = (kv for kv in self.blocks[beam] if not self.shared or kv not in union)
        return sum(map(self.block_bytes, added)) + self.tail_bytes

    def overlap(self, blocks: Iterable[Storage], near: set[Storage]) -> int:
        return sum(self.block_bytes(kv) for kv in blocks if kv in near)

    def too_small(self, needed: int) -> OutOfMemory:
        return OutOfMemory(
            f"the device KV budget of {self.budget:,.0f} bytes is too small for the KV of one "
            f"branch's step; {least_budget(needed)}. Or use shorter steps or memory=paged"
        )


def balanced_sizes(num_beam: int, rounds: int) -> list[int]:
    """Balanced Grouping (LBS section 4.2) by count: as equal as possible; 16 beams in 3 rounds give
    [5, 5, 6]."""
    return [(num_beam + i) // rounds for i in range(rounds)]


def balanced_rounds(num_beam: int, max_beams: int) -> list[list[int]]:
    """The beams, in order, in the fewest rounds of at most `max_beams` that are as equal as
    possible."""
    sizes = balanced_sizes(num_beam, ceil(num_beam / max_beams))
    return [
        list(range(end - size, end)) for size, end in zip(sizes, accumulate(sizes), strict=True)
    ]


def schedule_beams(beams: Beams) -> list[list[int]]:
    """LBS Algorithm 1: groups of beams, grown by the largest overlap of blocks.

    A group is full at the budget, where the paper fixes its size from the largest beam. Overlap
    counts with the group's blocks and with those on the device already: `resident` for the first
    group, then what the group before it read. Depth-first order breaks ties. Raises OutOfMemory
    when one beam alone exceeds the budget.
    """
    kv_blocks = beams.blocks
    unused = list(range(len(kv_blocks)))
    groups: list[list[int]] = []
    near = {kv for blocks in kv_blocks for kv in blocks if beams.resident(kv)}
    while unused:
        cur: list[int] = []
        union: set[Storage] = set()
        used = 0
        while unused:
            best = max(unused, key=lambda i: beams.overlap(kv_blocks[i], near))
            added = beams.added_bytes(best, union)
            if used + added > beams.budget:
                break
            cur.append(best)
            unused.remove(best)
            union.update(kv_blocks[best])
            near.update(kv_blocks[best])
            used += added
        if not cur:
            raise beams.too_small(added)
        groups.append(cur)
        near = union
    return groups


def balanced_grouping(beams: Beams) -> list[list[int]]:
    """Balanced Grouping (LBS section 4.2) where beams differ in bytes: the minimum number of
    rounds, spread evenly.

    A group is a run of neighbours. Of the cuts into the fewest runs that fit the budget the most
    even one is taken (the smallest sum of squares), of these the one with the fewest bytes, then
    the one with small groups first: 16 beams with room for 7 give [5, 5, 6]. The first group has
    the most resident bytes, each next one shares most with the one before it. Raises OutOfMemory
    when one beam alone exceeds the budget.
    """
    count = len(beams.blocks)
    best = [(0, 0, 0)] * (count + 1)  # of the beams from here on: rounds, sum of squares, bytes
    ends = [count] * count
    for first in range(count - 1, -1, -1):
        union: set[Storage] = set()
        used, choices = 0, []
        for end in range(first + 1, count + 1):
            used += beams.added_bytes(end - 1, union)
            if used > beams.budget:
                break
            union.update(beams.blocks[end - 1])
            rounds, squares, nbytes = best[end]
            choices.append((rounds + 1, squares + (end - first) ** 2, nbytes + used, end))
        if not choices:
            raise beams.too_small(used)
        rounds, squares, nbytes, ends[first] = min(choices)
        best[first] = rounds, squares, nbytes
    groups, first = [], 0
    while first < count:
        groups.append(list(range(first, ends[first])))
        first = ends[first]
    return _by_overlap(groups, beams)


def _by_overlap(groups: list[list[int]], beams: Beams) -> list[list[int]]:
    """The groups, each chosen for what it shares with the one before it, the first for what is
    resident."""
    blocks = [{kv for beam in group for kv in beams.blocks[beam]} for group in groups]
    near = {kv for union in blocks for kv in union if beams.resident(kv)}
    unused = list(range(len(groups)))
    order = []
    while unused:
        best = max(unused, key=lambda i: beams.overlap(blocks[i], near))
        unused.remove(best)
        order.append(groups[best])
        near = blocks[best]
    return order
