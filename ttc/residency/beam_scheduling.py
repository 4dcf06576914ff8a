"""Which beams decode together: LBS's Algorithm 1 and Balanced Grouping, under a budget in bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import ceil

from ttc.errors import OutOfMemory
from ttc.memory.storage import Storage
from ttc.memory.tiers import least_budget

BlockBytes = Callable[[Storage], int]
Beams = Sequence[Sequence[Storage]]
"""The blocks of each beam, beams in depth-first order."""


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


def schedule_beams(
    kv_blocks: Beams,
    block_bytes: BlockBytes,
    tail_bytes: int,
    budget: float,
    resident: Callable[[Storage], bool] = lambda kv: False,
    shared: bool = True,
) -> list[list[int]]:
    """LBS Algorithm 1: groups of beams, grown by the largest overlap of blocks.

    tail_bytes: what a beam adds in the step. A group is full at `budget` bytes, each block counted
        once (once per beam unless `shared`), where the paper fixes its size from the largest beam.
        Overlap counts with the group's blocks and with those on the device already: `resident` for
        the first group, then what the group before it read. Depth-first order breaks ties. Raises
        OutOfMemory when one beam alone exceeds the budget.
    """
    unused = list(range(len(kv_blocks)))
    groups: list[list[int]] = []
    near = {kv for blocks in kv_blocks for kv in blocks if resident(kv)}
    while unused:
        cur: list[int] = []
        union: set[Storage] = set()
        used = 0
        while unused:
            best = max(unused, key=lambda i: _overlap(kv_blocks[i], near, block_bytes))
            added = _added_bytes(kv_blocks[best], union, block_bytes, tail_bytes, shared)
            if used + added > budget:
                break
            cur.append(best)
            unused.remove(best)
            union.update(kv_blocks[best])
            near.update(kv_blocks[best])
            used += added
        if not cur:
            raise _too_small(budget, added)
        groups.append(cur)
        near = set(union)
    return groups


def balanced_grouping(
    kv_blocks: Beams,
    block_bytes: BlockBytes,
    tail_bytes: int,
    budget: float,
    resident: Callable[[Storage], bool] = lambda kv: False,
    shared: bool = True,
) -> list[list[int]]:
    """Balanced Grouping (LBS section 4.2) where beams differ in bytes: the minimum number of
    rounds, spread evenly.

    A group is a run of neighbours in depth-first order. The minimum is the smallest number of runs
    that each fit `budget`, bytes counted as in `schedule_beams`. Of the cuts into so many runs the
    most even one is taken, by beams (the smallest sum of squares), of these the one with the fewest
    bytes over all groups, then the one with small groups first: 16 beams with room for 7 give [5,
    5, 6]. The first group is the one with the most resident bytes, each next one shares most with
    the group before it. Raises OutOfMemory when one beam alone exceeds the budget.
    """
    beams = len(kv_blocks)
    best = [(0, 0, 0)] * (beams + 1)  # of the beams from here on: rounds, sum of squares, bytes
    ends = [beams] * beams
    for first in range(beams - 1, -1, -1):
        union: set[Storage] = set()
        used, choices = 0, []
        for end in range(first + 1, beams + 1):
            used += _added_bytes(kv_blocks[end - 1], union, block_bytes, tail_bytes, shared)
            if used > budget:
                break
            union.update(kv_blocks[end - 1])
            rounds, squares, nbytes = best[end]
            choices.append((rounds + 1, squares + (end - first) ** 2, nbytes + used, end))
        if not choices:
            raise _too_small(budget, used)
        rounds, squares, nbytes, ends[first] = min(choices)
        best[first] = rounds, squares, nbytes
    groups, first = [], 0
    while first < beams:
        groups.append(list(range(first, ends[first])))
        first = ends[first]
    return _by_overlap(groups, kv_blocks, block_bytes, resident)


def _by_overlap(
    groups: list[list[int]],
    kv_blocks: Beams,
    block_bytes: BlockBytes,
    resident: Callable[[Storage], bool],
) -> list[list[int]]:
    """The groups, each chosen for what it shares with the one before it, the first for what is
    resident."""
    blocks = [{kv for beam in group for kv in kv_blocks[beam]} for group in groups]
    near = {kv for union in blocks for kv in union if resident(kv)}
    unused = list(range(len(groups)))
    order = []
    while unused:
        best = max(unused, key=lambda i: _overlap(blocks[i], near, block_bytes))
        unused.remove(best)
        order.append(groups[best])
        near = blocks[best]
    return order


def _added_bytes(
    blocks: Sequence[Storage],
    union: set[Storage],
    block_bytes: BlockBytes,
    tail_bytes: int,
    shared: bool,
) -> int:
    return sum(block_bytes(kv) for kv in blocks if not shared or kv not in union) + tail_bytes


def _overlap(
    blocks: Sequence[Storage] | set[Storage], near: set[Storage], block_bytes: BlockBytes
) -> int:
    return sum(block_bytes(kv) for kv in blocks if kv in near)


def _too_small(budget: float, needed: int) -> OutOfMemory:
    return OutOfMemory(
        f"the device KV budget of {budget:,.0f} bytes is too small for one branch's step with its "
        f"blocks and tail; {least_budget(needed)}. Or use shorter steps or "
        "memory=paged"
    )
