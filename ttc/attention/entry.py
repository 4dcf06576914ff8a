"""What a plan is made of."""

from __future__ import annotations

from dataclasses import dataclass

from ttc.memory.kv import KV


@dataclass(frozen=True)
class Entry:
    """A run of `length` tokens at positions from `start` on, attended in full by a contiguous range of rows."""

    kv: KV
    start: int
    length: int
    rows: slice
