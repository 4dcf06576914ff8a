"""What a plan reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ttc.memory.kv import KV
from ttc.memory.tails import Tails


@dataclass(frozen=True)
class Entry:
    """A run of `length` tokens at positions from `start` on, attended in full by a contiguous range
    of rows."""

    kv: KV
    start: int
    length: int
    rows: slice


@dataclass(frozen=True)
class Reads:
    """What the passes of a plan read.

    positions: the position of each row's token in the first pass.
    tails: those that the rows may have to read.
    repeat: whether the plan runs again and again, a token further each time.
    """

    entries: Sequence[Entry]
    positions: Sequence[int]
    tails: Tails | None = None
    repeat: bool = False

    def earliest(self, entry: Entry) -> int:
        """The least position of the rows that attend an entry."""
        return min(self.positions[entry.rows])
