"""A plan's arrays as the Triton kernels take them: on the device, exactly as many as the plan has,
or filled up, so that another plan's fit into the same places and a CUDA graph serves both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
import torch
from torch import Tensor

from ttc.attention.plan_arrays import PlanArrays, even, task_rows
from ttc.memory.small_copies import staged

SMALL_TILE = 16
"""Queries that a program of a small task takes: the least that a matrix product takes. What one
row has written, and what few rows share, are such tasks."""

ROWS_BY_POWER = 64
"""Up to so many rows, room for them is a power of two, and beyond a multiple of this number."""

Parts = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Room:
    """How much of everything there is room for.

    small, large: tasks of at most `SMALL_TILE` queries, and of more. pieces, entries, slots: see
        `plan_arrays`.
    """

    rows: int
    small: int
    large: int
    pieces: int
    entries: int
    slots: int

    @classmethod
    def of(cls, arrays: PlanArrays) -> Room:
        small = int(_are_small(arrays.tasks, arrays.groups).sum())
        return cls(
            arrays.rows,
            small,
            len(arrays.tasks) - small,
            len(arrays.pieces),
            len(arrays.entries),
            arrays.slots,
        )

    def holds(self, other: Room) -> bool:
        return all(a >= b for a, b in zip(astuple(self), astuple(other), strict=True))

    def and_of(self, other: Room) -> Room:
        return Room(*map(max, astuple(self), astuple(other)))

    def with_more(self) -> Room:
        """The same rows, and room for plans that are about as large."""
        counts = (self.small, self.large, 2 * self.pieces, 2 * self.entries, self.slots)
        return Room(self.rows, *map(_power, counts))


def room_for_rows(rows: int) -> int:
    if rows <= ROWS_BY_POWER:
        return _power(rows)
    return -(-rows // ROWS_BY_POWER) * ROWS_BY_POWER


def filled_up(arrays: PlanArrays) -> tuple[np.ndarray, Room]:
    """A plan's tasks, with others that attend nothing for added rows, and what it then needs."""
    rows = room_for_rows(arrays.rows)
    at_once = max(1, SMALL_TILE // arrays.groups)
    idle = [(a, b, 0, 0, -1, -1) for a, b in even(arrays.rows, rows, at_once)]
    tasks = np.concatenate([arrays.tasks, np.array(idle, np.int64).reshape(-1, 6)])
    small = int(_are_small(tasks, arrays.groups).sum())
    large = len(tasks) - small
    room = Room(rows, small, large, len(arrays.pieces), len(arrays.entries), arrays.slots)
    return tasks, room


@dataclass(frozen=True)
class KVLayout:
    """How KV lies. packed: the kind of the codec that entries are kept by, "" without one.
    alignment: what all strides of entries are a multiple of, in their numbers, and addresses, in as
    many bytes. own_alignment: the same of the rows' storages.
    """

    packed: str
    alignment: int
    number_bytes: int
    own_alignment: int

    @classmethod
    def of(cls, arrays: PlanArrays, dtype: torch.dtype) -> KVLayout:
        codecs = {entry.kv.codec for entry in arrays.entries}
        codec = next(iter(codecs), None)
        wide = dtype.itemsize
        size, step = (wide, 16 // wide) if codec is None else (1, 4)
        aligned = _all_multiples(arrays.addresses.reshape(-1, 6), step * size, step)
        own, own_step = arrays.own_addresses, 16 // wide
        own_aligned = own is None or _all_multiples(own.reshape(-1, 6), 16, own_step)
        return cls(
            "" if codec is None else codec.kind,
            step if aligned else 1,
            size,
            own_step if own_aligned else 1,
        )

    def serves(self, other: KVLayout) -> bool:
        return (
            self.packed == other.packed
            and other.alignment % self.alignment == 0
            and other.own_alignment % self.own_alignment == 0
        )


class GpuArrays:
    """The arrays on one device, for one plan after the other.

    room: what fits. layout: how the KV of all plans lies. large_rows: the most rows of a large
    task. tokens, positions: of each row.
    """

    def __init__(
        self, room: Room, groups: int, layers: int, layout: KVLayout, device: torch.device
    ):
        self.room = room
        self.groups = groups
        self.layers = layers
        self.layout = layout
        self.large_rows = task_rows(groups)
        sizes = [
            room.rows, room.rows, 6 * (room.small + room.large), 3 * room.pieces, room.entries,
            6 * layers * room.entries, room.rows, room.rows, room.rows + 1, room.slots,
            6 * layers * room.rows,
        ]  # fmt: skip
        self._ends = np.cumsum([size + size % 2 for size in sizes])
        self._all = torch.zeros(int(self._ends[-1]), dtype=torch.int64, device=device)
        parts = self._all.tensor_split(self._ends[:-1].tolist())
        views = [part[:size] for part, size in zip(parts, sizes, strict=True)]
        self.tokens, self.positions, *views = views
        self.tasks, self.pieces, self.starts, self.addresses, *views = views
        self.own_firsts, self.own_starts, self.part_first, self.parts, self.owners = views
        self._parts: dict[tuple[int, int], Parts] = {}

    @property
    def device(self) -> torch.device:
        return self._all.device

    def fill(self, arrays: PlanArrays, tasks: np.ndarray) -> None:
        room, small = self.room, _are_small(tasks, self.groups)
        all_tasks = np.zeros((room.small + room.large, 6), np.int64)
        all_tasks[: small.sum()] = tasks[small]
        all_tasks[room.small : room.small + len(tasks) - small.sum()] = tasks[~small]
        addresses = np.zeros((self.layers, room.entries, 6), np.int64)
        addresses[: len(arrays.addresses), : len(arrays.entries)] = arrays.addresses
        owners = np.zeros((self.layers, room.rows, 6), np.int64)
        if arrays.own_addresses is not None:
            owners[:, : arrays.rows] = arrays.own_addresses
        part_first = np.full(room.rows + 1, len(arrays.parts), np.int64)
        part_first[: len(arrays.part_first)] = arrays.part_first
        nothing = np.zeros(0, np.int64)
        self._put(
            [
                nothing, arrays.positions, all_tasks, arrays.pieces, arrays.starts, addresses,
                arrays.own_firsts, arrays.own_starts, part_first, arrays.parts, owners,
            ]
        )  # fmt: skip

    def next_pass(self, tokens: Sequence[int] | Tensor, positions: Sequence[int]) -> None:
        numbers = np.array(positions, np.int64)
        if isinstance(tokens, Tensor):
            self.tokens[: len(tokens)].copy_(tokens, non_blocking=True)
            self._put([numbers], first=1)
        else:
            self._put([np.array(tokens, np.int64), numbers])

    def _put(self, arrays: Sequence[np.ndarray], first: int = 0) -> None:
        """Copy arrays to their places, from the place of this number on."""
        start = int(self._ends[first - 1]) if first else 0
        ends = self._ends[first : first + len(arrays)] - start
        together = staged(arrays, ends, self.device)
        self._all[start : start + int(ends[-1])].copy_(together, non_blocking=True)

    def of_layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Where a layer's entries lie, and the rows' storages."""
        size, own_size = 6 * self.room.entries, 6 * self.room.rows
        return (
            self.addresses[index * size : (index + 1) * size],
            self.owners[index * own_size : (index + 1) * own_size],
        )

    def sums(self, heads: int, value_dim: int) -> Parts:
        """Where tasks leave what is to be merged, one place for all layers: the sums of weighted
        values (slots, heads, value_dim), and maxima and sums of weights (slots, heads, 2)."""
        if (heads, value_dim) not in self._parts:
            slots = self.room.slots
            self._parts[heads, value_dim] = (
                torch.empty(slots, heads, value_dim, device=self.device),
                torch.empty(slots, heads, 2, device=self.device),
            )
        return self._parts[heads, value_dim]


def _all_multiples(places: np.ndarray, of_addresses: int, of_strides: int) -> bool:
    """Whether two addresses and then strides, by row, are multiples of these."""
    strides = places.shape[1] - 2
    return not (places % np.array([of_addresses] * 2 + [of_strides] * strides)).any()


def _are_small(tasks: np.ndarray, groups: int) -> np.ndarray:
    small: np.ndarray = (tasks[:, 1] - tasks[:, 0]) * groups <= SMALL_TILE
    return small


def _power(number: int) -> int:
    return 1 << (number - 1).bit_length() if number > 0 else 0
