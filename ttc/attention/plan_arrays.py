"""A plan as arrays, so that a layer's attention is one call of a kernel.

Made once for all layers and all passes of a plan. The arrays are plain int64 numbers, the same for
a CPU and a GPU kernel; addresses are in bytes, strides in numbers of the KV's type.

    tasks      (tasks, 6)            first row, end row, first piece, end piece, slot, own row
    pieces     (pieces, 3)           entry, first key, keys
    starts     (entries,)            position of an entry's first token
    addresses  (layers, entries, 6)  of keys, of values; strides of keys by head and token, of
                                     values by head and token; all 0 where the layer is not on the
                                     device
    positions  (rows,)               position of each row's token
    own_places, own_starts (rows,)   of a row that own keys begin with: which of those with own keys
                                     it is, and the position of the first of its own keys
    part_first (rows + 1,), parts    row r merges the slots parts[part_first[r]:part_first[r + 1]]

A task is a range of rows and what all of them attend: pieces of entries, and then, unless its own
row is -1, own keys (a decode step: the tail of the row `own row`; else the new tokens from that row
on, causal), as many as its position is behind their start, and those of this pass. Rows that attend
the same entries are one task, cut so that a task has at most `QUERIES` queries for a KV head; its
keys are cut too, into even parts of about `Cut.keys`, or of n times as many where the rows are n
tasks already; a tail is not cut, and is a part by itself where there are several, unless these are
much longer. Where tasks share rows,
task t leaves the sums for its row r in slot `slot + r - first row`; a task of slot -1 is alone with
its rows and writes the result itself. On a CPU how rows are cut depends on neither the layer, nor
the number of threads, nor the other rows, so results do not either; for a GPU see `gpu_cuts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ttc.attention.entry import Entry
from ttc.memory.kv import KV, LayerKV

QUERIES = 64
"""The most queries (rows x heads of a group) of a task: what is done once per key is then little
beside the rest."""
KEYS = 512
"""The keys of a task, at most 1.5 times as many, where few rows attend them: enough to hide what a
task costs at all, few enough to share among threads."""

LONG_PART = 1024
"""A tail is read with the last of several parts where these have at least so many keys: it is short
beside them."""


@dataclass(frozen=True)
class Cut:
    """How keys are cut into tasks.

    keys: of a task, about. short_keys: an entry of at most so many keys is read with what lies
        below it, where all of its rows attend one of two things more: reading it twice then takes
        less than a task for it alone.
    """

    keys: int = KEYS
    short_keys: int = 0


Piece = tuple[int, int, int]
"""An entry, its first key, and how many keys."""


class PlanArrays:
    """The arrays of a plan (see above).

    runs: the rows of each run of new tokens, first and end. groups: query heads of a KV head.
    tails: of a decode step, the number of each row's tail, and the tokens that it holds; else the
        own keys of a run are those of its rows.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        runs: Sequence[tuple[int, int]],
        positions: Sequence[int],
        groups: int,
        tails: tuple[Sequence[int], Sequence[int]] | None = None,
        cut: Cut | None = None,
    ):
        self.cut = cut or Cut()
        self.entries = entries
        self.rows = len(positions)
        self.groups = groups
        self.positions = np.array(positions, np.int64)
        places, filled = (range(self.rows), 0) if tails is None else tails
        self.own_places = np.array(places, np.int64)
        self.own_starts = self.positions - np.array(filled, np.int64)
        self.starts = np.array([entry.start for entry in entries], np.int64)
        self._cut(runs, task_rows(groups), tails is not None)
        # what the addresses point to must outlive them
        self.addresses, self.read = addresses_of([entry.kv for entry in entries])
        self.absent = [set(np.flatnonzero(layer[:, 0] == 0).tolist()) for layer in self.addresses]

    def _cut(self, runs: Sequence[tuple[int, int]], max_rows: int, decoding: bool) -> None:
        together: dict[tuple[int, int], list[int]] = {}
        for index, entry in enumerate(self.entries):
            if entry.rows.start < entry.rows.stop:
                together.setdefault((entry.rows.start, entry.rows.stop), []).append(index)
        for run in runs:
            together.setdefault(run, [])
        if self.cut.short_keys:
            together = self._with_short_below(together)
        with_own_keys = set(runs)
        tasks: list[tuple[int, int, int, int, int, int]] = []
        pieces: list[Piece] = []
        for (start, stop), indices in together.items():
            spans = even(start, stop, max_rows)
            blocks = self._pieces(indices, self.cut.keys * len(spans))
            grows = decoding and (start, stop) in with_own_keys
            if grows and len(blocks) > 1 and self.cut.keys < LONG_PART:
                blocks.append([])  # for the tail alone
            for i, block in enumerate(blocks):
                first = len(pieces)
                pieces += block
                own_row = start if (start, stop) in with_own_keys and i == len(blocks) - 1 else -1
                tasks += [(a, b, first, len(pieces), -1, own_row) for a, b in spans]
        self.tasks = np.array(tasks, np.int64).reshape(-1, 6)
        self.pieces = np.array(pieces, np.int64).reshape(-1, 3)
        self.max_rows = int((self.tasks[:, 1] - self.tasks[:, 0]).max(initial=0))
        self._share()

    def _with_short_below(
        self, together: dict[tuple[int, int], list[int]]
    ) -> dict[tuple[int, int], list[int]]:
        """What rows attend together, where short entries have gone to the two ranges below them."""
        ranges = sorted(together, key=lambda rows: (rows[0], -rows[1]))
        below: dict[tuple[int, int], list[tuple[int, int]]] = {rows: [] for rows in ranges}
        path: list[tuple[int, int]] = []
        for rows in ranges:
            while path and path[-1][1] <= rows[0]:
                path.pop()
            if path:
                below[path[-1]].append(rows)
            path.append(rows)
        moved = dict(together)
        for rows in ranges:  # what lies above has come down by then
            indices, children = moved[rows], below[rows]
            keys = sum(self.entries[index].length for index in indices)
            covered = sum(b - a for a, b in children) == rows[1] - rows[0]
            if len(children) == 2 and covered and 0 < keys <= self.cut.short_keys:
                del moved[rows]
                for child in children:
                    moved[child] = indices + moved[child]
        return moved

    def _pieces(self, indices: Sequence[int], keys: int) -> list[list[Piece]]:
        """What some rows attend, cut into even blocks of about so many keys; at least one block."""
        total = sum(self.entries[index].length for index in indices)
        spans = even_parts(0, total, max(1, round(total / keys)))
        blocks: list[list[Piece]] = [[] for _ in spans]
        begin = 0
        for index in indices:
            end = begin + self.entries[index].length
            for block, (first, last) in zip(blocks, spans, strict=True):
                piece, stop = max(first, begin), min(last, end)
                if piece < stop:
                    block.append((index, piece - begin, stop - piece))
            begin = end
        return blocks

    def _share(self) -> None:
        """Give slots to the tasks that are not alone with their rows."""
        cover = np.zeros(self.rows + 1, np.int64)
        np.add.at(cover, self.tasks[:, 0], 1)
        np.add.at(cover, self.tasks[:, 1], -1)
        cover = cover.cumsum()[:-1]  # the tasks of each row
        crowded = np.concatenate([[0], (cover > 1).cumsum()])
        shared = crowded[self.tasks[:, 1]] > crowded[self.tasks[:, 0]]
        lengths = (self.tasks[:, 1] - self.tasks[:, 0]) * shared
        ends = lengths.cumsum()
        self.slots = int(ends[-1]) if len(ends) else 0
        self.tasks[:, 4] = np.where(shared, ends - lengths, -1)
        rows = np.concatenate(
            [np.arange(a, b) for a, b in self.tasks[shared, :2]] or [np.zeros(0, np.int64)]
        )
        self.parts = np.argsort(rows, kind="stable")  # slots, by row
        self.part_first = np.concatenate([[0], np.bincount(rows, minlength=self.rows).cumsum()])

    def absent_from(self, layer: int) -> set[int]:
        """The entries that are not on the device in this layer."""
        return self.absent[layer].copy() if self.entries else set()


def addresses_of(kvs: Sequence[KV]) -> tuple[np.ndarray, list[list[LayerKV | None]]]:
    """Where runs of KV are on the device, (layers, runs, 6), as in `addresses` above; and the
    copies that are there."""
    copies = [kv.device[:] for kv in kvs]
    layers = max(map(len, copies), default=0)
    places = np.frombuffer(b"".join([kv.places() for kv in kvs]), np.int64)
    return np.ascontiguousarray(places.reshape(len(kvs), layers, 6).swapaxes(0, 1)), copies


def task_rows(groups: int) -> int:
    return max(1, QUERIES // groups)


def even(start: int, stop: int, largest: int) -> list[tuple[int, int]]:
    """Cut a range into as few parts as possible of at most `largest`, as even as possible; none of
    an empty range."""
    return even_parts(start, stop, -(-(stop - start) // largest))


def even_parts(start: int, stop: int, count: int) -> list[tuple[int, int]]:
    """Cut a range into so many parts, as even as possible."""
    ends = [start + (stop - start) * i // count for i in range(count + 1)] if count else [start]
    return list(pairwise(ends))
