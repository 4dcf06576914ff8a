"""What a residency policy decides, and what all policies with two tiers share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil
from typing import Self

import torch

from ttc.errors import InvalidInput
from ttc.memory import KV, KVMemory, LayerShape
from ttc.plan import Entry, shared_entries
from ttc.stream import Stream, Tails, Unit
from ttc.tree import Segment

Paths = Sequence[Sequence[Segment]]
"""The segments of each branch, root to leaf."""


def to_bytes(gib: float | None) -> int | None:
    """Whole bytes of a budget in GiB."""
    return None if gib is None else int(gib * 2**30)


def balanced_sizes(num_beam: int, rounds: int) -> list[int]:
    """Balanced Grouping (LBS section 4.2): as equal as possible; 16 beams in 3 rounds give [5, 5, 6]."""
    return [(num_beam + i) // rounds for i in range(rounds)]


@dataclass
class Residency(ABC):
    """Decides where new KV goes, which branches decode together, and how what is not on the device is read.

    A policy as configured holds no KV: the engine binds a copy of it to a memory of its own.
    budget_gib: the most KV on the device, in GiB; None for no limit but the machine's.
    """

    budget_gib: float | None = None

    memory: KVMemory = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._check_positive("budget_gib")

    def _check_positive(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InvalidInput(f"memory.{name}={value} must be positive, or null for no limit")

    def bind(self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device) -> Self:
        """A copy of this policy that governs KV of these shapes."""
        bound = copy(self)
        bound.memory = self._make_memory(shapes, dtype, device)
        return bound

    @abstractmethod
    def _make_memory(self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device) -> KVMemory: ...

    # ---------------------------------------------------------------- the tree

    block_tokens: int | None = field(init=False, repr=False, default=None)

    @abstractmethod
    def require(self, tokens: int) -> None:
        """Raise `OutOfMemory` unless the tree may grow by `tokens` tokens."""

    @abstractmethod
    def allocate(self, tokens: int, needed: Iterable[KV] = ()) -> KV:
        """KV for a segment that a pass will fill, which reads `needed`."""

    def allocate_frozen(self, tokens: int) -> KV:
        """KV for a tail that becomes a segment."""
        return self.allocate(tokens)

    # ---------------------------------------------------------------- a step

    @abstractmethod
    def groups(self, paths: Paths, capacity: int) -> list[list[int]]:
        """Which branches decode their step together, in order; each grows by at most `capacity` tokens.

        Raises OutOfMemory when no order would do.
        """

    @abstractmethod
    def enter(self, paths: Paths, upcoming: Paths, capacity: int) -> KV:
        """Make ready for a group, `upcoming` being the next one. Returns its tails."""

    def leave(self, tails: KV) -> None:
        """The group has decoded its step."""
        self.memory.free(tails)

    def entries(self, paths: Paths) -> list[Entry]:
        """What one row of each path attends."""
        return shared_entries(paths, [1] * len(paths))

    # ---------------------------------------------------------------- a pass

    @abstractmethod
    def stream(
        self, entries: Sequence[Entry], positions: Sequence[int], tails: Tails | None, *, repeat: bool
    ) -> Stream | None:
        """How a plan reads what is not on the device; None when everything is."""


@dataclass
class Offloading(Residency):
    """A policy with two tiers.

    host_budget_gib: the most KV on the host, in GiB. link_gbps: on a CPU, slow the link down to so many 1e9 bytes a
    second. block_tokens: the most tokens of a segment, which is the unit that moves. prefetch: fetch what comes next
    while computing.
    """

    host_budget_gib: float | None = None
    link_gbps: float | None = None
    block_tokens: int = 512
    prefetch: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_positive("host_budget_gib", "link_gbps", "block_tokens")

    def _make_memory(self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device) -> KVMemory:
        return KVMemory(
            shapes, dtype, device, to_bytes(self.budget_gib), to_bytes(self.host_budget_gib), self.link_gbps
        )

    def require(self, tokens: int) -> None:
        self.memory.host.require(tokens * self.memory.bytes_per_token)

    def groups(self, paths: Paths, capacity: int) -> list[list[int]]:
        """All together if their tails fit beside the buffers, else in as few rounds as that takes."""
        self.require(capacity * len(paths))
        if (budget := self.memory.device.budget_bytes) is None:
            return [list(range(len(paths)))]
        tail_bytes, buffer_bytes = capacity * self.memory.bytes_per_token, self.buffer_bytes(paths)
        most = (budget - 2 * buffer_bytes) // tail_bytes
        if most < 1:  # one branch at a time, and one buffer
            self.memory.device.require(tail_bytes + buffer_bytes, beside_bytes=0)
        sizes = balanced_sizes(len(paths), ceil(len(paths) / max(1, most)))
        return [list(range(end - size, end)) for size, end in zip(sizes, accumulate(sizes), strict=True)]

    def buffer_bytes(self, paths: Paths) -> int:
        """The smallest buffer through which the segments of `paths` can be read: here one block of one layer."""
        longest = max((len(segment.tokens) for path in paths for segment in path), default=0)
        return longest * max(self.memory.layer_bytes_per_token)

    def make_room(self, nbytes: int, keep: Iterable[KV] = ()) -> bool:
        """Evict segments until `nbytes` fit on the device, nothing of `keep`. Says whether they fit now."""
        device, kept = self.memory.device, set(keep)
        if device.free_bytes < nbytes:
            for kv in self.eviction_order():
                if kv not in kept:
                    self.memory.evict(kv, "evict")
                if device.free_bytes >= nbytes:
                    break
        return device.free_bytes >= nbytes

    def eviction_order(self) -> list[KV]:
        """Segments, the first to leave first: here the oldest."""
        return [kv for kv in self.memory.live if not kv.pinned]

    def stream(
        self, entries: Sequence[Entry], positions: Sequence[int], tails: Tails | None, *, repeat: bool
    ) -> Stream | None:
        for entry in entries:
            self.memory.link.wait(entry.kv.fetched)  # a step that broke off may have left a prefetch under way
        runs = [(entry.kv, entry.length) for entry in entries]
        units, largest = self._units(entries, positions, tails)
        enough = True
        while enough and self.memory.device.free_bytes < (
            wanted := largest * (2 if self.prefetch and len(units) > 1 else 1)
        ):
            enough = self.make_room(wanted)
            units, largest = self._units(entries, positions, tails)  # what left, even in vain, is read from the host
        if not units:
            return None
        prefetch = self.prefetch and self.memory.device.free_bytes >= 2 * largest
        return Stream(self.memory, units, runs, tails, repeat=repeat, prefetch=prefetch)

    def _units(self, entries: Sequence[Entry], positions: Sequence[int], tails: Tails | None) -> tuple[list[Unit], int]:
        """What has to be fetched for one pass, and the bytes of the largest unit."""
        layers = range(len(self.memory.shapes))
        units = [
            unit
            for layer in layers
            for unit in self.units(layer, entries, positions, self._missing(layer, entries, positions))
        ]
        units = units if tails is None else self.with_tails(units, tails)
        runs = [(entry.kv, entry.length) for entry in entries]
        largest = max((Stream.elements(self.memory, unit, runs, tails) for unit in units), default=0)
        return units, largest * self.memory.itemsize

    def units(
        self, layer: int, entries: Sequence[Entry], positions: Sequence[int], missing: Sequence[int]
    ) -> list[Unit]:
        """The units in which a layer's missing entries (by index) are fetched: here each by itself."""
        return [Unit(layer, slice(None), (index,)) for index in missing]

    def with_tails(self, units: list[Unit], tails: Tails) -> list[Unit]:
        """Add the tails to the units where they are not on the device: here they always are."""
        return units

    def _missing(self, layer: int, entries: Sequence[Entry], positions: Sequence[int]) -> list[int]:
        """The entries that the device lacks and the layer's window lets some row see."""
        window = self.memory.shapes[layer].window
        return [
            i
            for i, entry in enumerate(entries)
            if entry.kv.device[layer] is None
            and (window is None or entry.start + entry.length > min(positions[entry.rows]) - window + 1)
        ]
