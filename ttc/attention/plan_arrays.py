"""A plan as arrays, so that a layer's attention is one call of a kernel.

Made once for all layers and all passes of a plan. The arrays are plain int64 numbers, the same for
a CPU and a GPU kernel; addresses are in bytes, strides in numbers of the KV's type.

    tasks      (tasks, 6)            first row, end row, first piece, end piece, slot, own row
    pieces     (pieces, 3)           entry, first key, keys
    starts     (entries,)            position of the first token of an entry's KV
    addresses  (layers, entries, 6)  of keys, of values; strides of keys by head and token, of
                                     values by head and token; all 0 where the layer is not on the
                                     device
    positions  (rows,)               position of each row's token
    own_starts (rows,)               of a row that own keys begin with, the position of the first
    part_first (rows + 1,), parts    row r merges the slots parts[part_first[r]:part_first[r + 1]]

A task is a range of rows and what all of them attend: pieces of entries, and then, unless its own
row is -1, own keys (a decode step: what the row `own row` has written since the plan was made; else
the new tokens from that row on, causal), as many as its position is behind their start, and those
of this pass. Rows that attend the same entries are one task, cut so that a task has at most
`QUERIES` queries for a KV head; its keys are cut too, into even parts of about `KeySplit.keys`, or
of n times as many where the rows are n tasks already; own keys are not cut, and are a part of their
own where there are several, unless these
are much longer. Where tasks share rows,
task t leaves the sums for its row r in slot `slot + r - first row`; a task of slot -1 is alone with
its rows and writes the result itself. On a CPU how rows are cut depends on neither the layer, nor
the number of threads, nor the other rows, so results do not either; for a GPU see `gpu_cuts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ttc.attention.pieces import Piece
from ttc.memory.kv import LayerKV
from ttc.memory.storage import Storage

QUERIES = 64
"""The most queries (rows x heads of a group) of a task: what is done once per key is then little
beside the rest."""
KEYS = 512
"""Of a task, at most 1.5 times as many, where few rows attend them: enough to hide what a task
costs, few enough to share among threads."""

LONG_PART = 1024
"""Own keys are read with the last of several parts where these have so many keys."""


@dataclass(frozen=True)
class KeySplit:
    """How keys are cut into tasks. keys: of a task, about. short_keys: an entry of at most so many
    is read with what lies below it, where all of its rows attend one of two things more."""

    keys: int = KEYS
    short_keys: int = 0


class PlanArrays:
    """The arrays of a plan (see above).

    runs: the rows of each run of new tokens, first and end. groups: query heads of a KV head.
    filled: of a decode step, how many own keys each row has; else those of a run are of its rows.
    owners: the storage that each row's own keys lie in, and the first of them there, where they are
        not rows of one buffer.
    """

    def __init__(
        self,
        entries: Sequence[Piece],
        runs: Sequence[tuple[int, int]],
        positions: Sequence[int],
        groups: int,
        filled: Sequence[int] | None = None,
        cut: KeySplit | None = None,
        owners: tuple[Sequence[Any], Sequence[int]] | None = None,
    ):
        self.cut = cut or KeySplit()
        self.entries = entries
        self.rows = len(positions)
        self.groups = groups
        self.positions = np.array(positions, np.int64)
        self.own_starts = self.positions - np.array(0 if filled is None else filled, np.int64)
        self.own_addresses: np.ndarray | None = None
        self.own_firsts = np.empty(0, np.int64)
        if owners is not None:
            self.own_addresses, self.own_read = addresses_of(owners[0])
            self.own_firsts = np.array(owners[1], np.int64)
        self.firsts = np.array([entry.first for entry in entries], np.int64)
        self.starts = np.array([entry.start for entry in entries], np.int64) - self.firsts
        self._cut(runs, task_rows(groups), filled is not None)
        # what the addresses point to must outlive them
        self.addresses, self.read = addresses_of([entry.kv for entry in entries])
        self.absent: list[set[int]] = [set() for _ in self.addresses]
        for layer, entry in np.argwhere(self.addresses[:, :, 0] == 0).tolist():
            self.absent[layer].add(entry)

    def _cut(self, runs: Sequence[tuple[int, int]], max_rows: int, decoding: bool) -> None:
        ranges, order, counts = self._together(runs)
        first, rows = ranges[:, 0], ranges[:, 1] - ranges[:, 0]
        spans = -(-rows // max_rows)  # the tasks that the rows of a range are cut into
        lengths = np.array([entry.length for entry in self.entries], np.int64)[order]

        # The keys of all ranges are one line, cut where a block ends and where an entry ends.
        begins = np.concatenate([[0], lengths.cumsum()])
        stops = counts.cumsum()
        line = begins[stops - counts]
        keys = begins[stops] - line
        blocks = np.maximum(1, np.rint(keys / (self.cut.keys * spans)).astype(np.int64))
        has_own = np.isin(self._numbers(ranges), self._numbers(np.array(runs)))
        own_alone = has_own & (blocks > 1) & (decoding and self.cut.keys < LONG_PART)

        parts = blocks + own_alone
        of, part = np.arange(len(ranges)).repeat(parts), _count_up(parts)
        part_first = line[of] + keys[of] * np.minimum(part, blocks[of]) // blocks[of]
        part_end = line[of] + keys[of] * np.minimum(part + 1, blocks[of]) // blocks[of]
        own_row = np.where(has_own[of] & (part == parts[of] - 1), first[of], -1)

        cuts = np.unique(np.concatenate([begins, part_first]))
        entry = np.searchsorted(begins, cuts[:-1], "right") - 1
        skipped = cuts[:-1] - begins[entry] + self.firsts[order[entry]]
        self.pieces = np.column_stack([order[entry], skipped, np.diff(cuts)])
        pieces = np.searchsorted(cuts, [part_first, part_end])

        in_part, span = np.arange(len(of)).repeat(spans[of]), _count_up(spans[of])
        of = of[in_part]
        row = first[of] + rows[of] * span // spans[of]
        end = first[of] + rows[of] * (span + 1) // spans[of]
        no_slot = np.full(len(of), -1)
        self.tasks = np.column_stack([row, end, *pieces[:, in_part], no_slot, own_row[in_part]])
        self.max_rows = int((end - row).max(initial=0))
        self._share()

    def _numbers(self, ranges: np.ndarray) -> np.ndarray:
        """A number for each range of rows (ranges, 2)."""
        first, end = ranges.reshape(-1, 2).T
        numbers: np.ndarray = first * (self.rows + 1) + end
        return numbers

    def _together(
        self, runs: Sequence[tuple[int, int]]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The ranges of rows that attend the same, or are a run, (ranges, 2), as they first come;
        the entries, range after range; and how many of them each range has."""
        spans = [(entry.rows.start, entry.rows.stop) for entry in self.entries]
        bounds = np.array([*spans, *runs], np.int64).reshape(-1, 2)
        read = np.flatnonzero(bounds[:, 0] < bounds[:, 1])  # others' rows have left the pass
        bounds = bounds[read]
        read = read[read < len(spans)]
        _, at, inverse = np.unique(self._numbers(bounds), return_index=True, return_inverse=True)
        places = at.argsort()
        of = places.argsort()[inverse][: len(read)]
        ranges, order = bounds[at[places]], read[of.argsort(kind="stable")]
        counts = np.bincount(of, minlength=len(ranges))
        if self.cut.short_keys:
            ends = counts.cumsum()
            indices = [order[end - n : end].tolist() for n, end in zip(counts, ends, strict=True)]
            together = dict(zip(map(tuple, ranges.tolist()), indices, strict=True))
            together = self._with_short_below(together)
            ranges = np.array(list(together), np.int64).reshape(-1, 2)
            order = np.array([i for own in together.values() for i in own], np.int64)
            counts = np.array([len(own) for own in together.values()], np.int64)
        return ranges, order, counts

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
        rows = self.tasks[:, 0].repeat(lengths) + _count_up(lengths)
        self.parts = np.argsort(rows, kind="stable")  # slots, by row
        self.part_first = np.concatenate([[0], np.bincount(rows, minlength=self.rows).cumsum()])

    @property
    def layers(self) -> int:
        own = self.own_addresses
        return max(len(self.addresses), 0 if own is None else len(own))

    def absent_from(self, layer: int) -> set[int]:
        """The entries that are not on the device in this layer."""
        return self.absent[layer].copy() if self.entries else set()


def addresses_of(kvs: Sequence[Storage]) -> tuple[np.ndarray, list[list[LayerKV | None]]]:
    """Where runs of KV are on the device, (layers, runs, 6), as in `addresses` above; and the
    copies that are there."""
    copies = [kv.device[:] for kv in kvs]
    layers = max(map(len, copies), default=0)
    places = np.frombuffer(b"".join([kv.places() for kv in kvs]), np.int64)
    return np.ascontiguousarray(places.reshape(len(kvs), layers, 6).swapaxes(0, 1)), copies


def _count_up(counts: np.ndarray) -> np.ndarray:
    """0, 1, ... up to each of the counts."""
    ends = counts.cumsum()
    up: np.ndarray = np.arange(counts.sum()) - (ends - counts).repeat(counts)
    return up


def task_rows(groups: int) -> int:
    return max(1, QUERIES // groups)


def even(start: int, stop: int, largest: int) -> list[tuple[int, int]]:
    """Cut a range into as few parts as possible of at most `largest`, as even as possible."""
    count = -(-(stop - start) // largest)
    ends = [start + (stop - start) * i // count for i in range(count + 1)] if count else [start]
    return list(pairwise(ends))
