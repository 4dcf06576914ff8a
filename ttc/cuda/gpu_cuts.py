"""How a plan is cut into tasks for a GPU: into enough to fill it, and not so many that what each of
them costs at all counts. A model on paper, which no GPU has confirmed yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache

import torch

from ttc.attention.pieces import Piece
from ttc.attention.plan_arrays import KeySplit, even, task_rows

BLOCK = 32
"""Keys of a block, which a program reads at a time; all that follows is in the time of one."""
START = 2.0
"""What a program takes besides: it reads its task and its queries, and writes its sums."""
MERGE = 0.1
"""What it takes to merge one more part of a row."""
PROGRAMS = 2
"""Programs that share a multiprocessor; see `fused_gpu.TILES`."""
CPU_PROGRAMS = 8
"""Programs at once where Triton's interpreter runs them."""
SIZES = tuple(64 << n for n in range(9))
"""The keys that a task may have."""

Load = tuple[int, int]
"""What some rows attend together: how many keys, and into how many tasks the rows are cut."""


def cut_for(
    entries: Sequence[Piece],
    runs: Iterable[tuple[int, int]],
    groups: int,
    kv_heads: int,
    device: torch.device,
) -> KeySplit:
    """The cut with which a layer takes least time. runs, groups: see `PlanArrays`."""
    keys: Counter[tuple[int, int]] = Counter(dict.fromkeys(runs, 0))
    for entry in entries:
        if entry.rows.start < entry.rows.stop:
            keys[entry.rows.start, entry.rows.stop] += entry.length
    most = task_rows(groups)
    loads = [(count, len(even(*rows, most))) for rows, count in keys.items()]
    programs = programs_at_once(device)
    best = min(SIZES, key=lambda size: time_of(size, loads, kv_heads, programs))
    return KeySplit(best, short_keys=BLOCK)


def time_of(size: int, loads: Sequence[Load], kv_heads: int, programs: int) -> float:
    """What a layer takes with `size` keys a task, in blocks: the mean of all programs that run at
    once, or the longest, and merging."""
    total, longest, parts = 0.0, 0.0, 0
    for keys, spans in loads:
        pieces = max(1, round(keys / (size * spans)))
        each = START + keys / pieces / BLOCK
        total += spans * pieces * each
        longest = max(longest, each)
        parts = max(parts, pieces)
    return max(total * kv_heads / programs, longest) + MERGE * parts


@cache
def programs_at_once(device: torch.device) -> int:
    if device.type != "cuda":
        return CPU_PROGRAMS
    return PROGRAMS * torch.cuda.get_device_properties(device).multi_processor_count
