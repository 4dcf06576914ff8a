"""What a plan reads: runs of KV, and the rows that attend them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ttc.memory.kv import KV
from ttc.memory.tails import Tails
from ttc.tree.segment import Segment


@dataclass(frozen=True)
class Entry:
    """A run of `length` tokens at positions from `start` on, attended in full by a contiguous range
    of rows. first: its first token in `kv`."""

    kv: KV
    start: int
    length: int
    rows: slice
    first: int = 0


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


def shared_entries(paths: Sequence[Sequence[Segment]], counts: Sequence[int]) -> list[Entry]:
    """The entries for branches whose root-to-leaf segments are `paths`, in depth-first order (see
    `depth_first`), with `counts` packed rows each."""
    spans: dict[Segment, list[int]] = {}
    row = 0
    for path, rows in zip(paths, counts, strict=True):
        for segment in path:
            spans.setdefault(segment, [row, row])[1] = row + rows
        row += rows
    return [
        Entry(s.storage, s.start, len(s.tokens), slice(first, last))
        for s, (first, last) in spans.items()
    ]


def private_entries(
    paths: Sequence[Sequence[Segment]],
    counts: Sequence[int],
    copies: Mapping[KV, Sequence[KV]] | None = None,
) -> list[Entry]:
    """Like `shared_entries`, but nothing is shared: an entry for each path and segment, of the next
    of its `copies`."""
    entries = []
    taken: Counter[KV] = Counter()
    row = 0
    for path, rows in zip(paths, counts, strict=True):
        for segment in path:
            kv = segment.storage
            mine = copies[kv][taken[kv]] if copies else kv
            taken[kv] += 1
            entries.append(Entry(mine, segment.start, len(segment.tokens), slice(row, row + rows)))
        row += rows
    return entries


def depth_first(paths: Sequence[Sequence[Segment]]) -> list[int]:
    """An order of the paths in which all paths through any one segment are neighbours."""
    return sorted(range(len(paths)), key=lambda i: [segment.serial for segment in paths[i]])
