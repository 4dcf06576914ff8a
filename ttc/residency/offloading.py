"""What all policies with two tiers share: what leaves the device when room is needed, and what is read."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate
from math import ceil

import torch

from ttc.attention.entry import Entry
from ttc.attention.stream import KVReader, Unit, View
from ttc.memory.kv import LayerShape
from ttc.memory.manager import Block, KVMemory
from ttc.memory.tails import Tails
from ttc.residency.base import Paths, Residency, free_device_bytes, machine_bytes, to_bytes
from ttc.residency.beam_scheduling import balanced_sizes


@dataclass
class Offloading(Residency):
    """A policy with two tiers. With no budget given, its capacity is what a CUDA device has free, read again at every
    prompt and step; on a CPU there is no limit then.

    host_budget_gib: the most KV and recurrent states on the host, in GiB. link_gbps: on a CPU, slow the link down to so
    many 1e9 bytes a second. block_tokens: the most tokens of a segment, which is the unit that moves. prefetch: fetch
    what comes next while computing.
    """

    host_budget_gib: float | None = None
    link_gbps: float | None = None
    block_tokens: int = 512
    prefetch: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_positive("host_budget_gib", "link_gbps", "block_tokens")

    def _make_memory(self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device) -> KVMemory:
        budgets = to_bytes(self.budget_gib), to_bytes(self.host_budget_gib)
        return KVMemory(shapes, dtype, device, *budgets, self.link_gbps)

    def read_capacity(self) -> None:
        """With no budget given, let the device hold what it has free at this moment."""
        device = self.memory.device
        if self.budget_gib is None and (free := free_device_bytes(self.memory.link.device)) is not None:
            device.budget_bytes = min(device.ceiling_bytes, device.used_bytes + free)

    @property
    def roomy(self) -> bool:
        return self.memory.device.budget_bytes is None

    def capacity_bytes(self) -> float:
        """What the host has room for, which holds all that the device does not."""
        return machine_bytes() if self.memory.host.budget_bytes is None else self.memory.host.budget_bytes

    def require(self, tokens: int, ends: int = 0, running: int = 0) -> None:
        self.read_capacity()
        running_bytes = running * self.memory.states.nbytes
        self.memory.device.require(running_bytes, beside_bytes=0)
        self.require_host(tokens, ends, running_bytes)

    def most_sequences(self, tokens: int, ends: int) -> int:
        """As many as half of the device has room for: the other half is for the KV that they read."""
        budget, size = self.memory.device.budget_bytes, self.memory.states.nbytes
        return sys.maxsize if budget is None or not size else max(1, budget // 2 // size)

    def require_host(self, tokens: int, ends: int, beside_bytes: float = 0) -> None:
        """Raise OutOfMemory unless the host has room for what `tokens` new tokens, and recurrent states at so many
        ends, may send there.

        beside_bytes: what the device needs for tails and fetched blocks meanwhile. What does not fit the device goes to
        the host: segments in whole blocks, and more of them where others have to be read through buffers; at most
        everything. Host copies of what is on the device count as free, for they can be given up.
        """
        memory, segments = self.memory, [kv for kv in self.memory.live if not kv.pinned]
        new_bytes = tokens * memory.bytes_per_token + ends * memory.states.nbytes
        excess = new_bytes + beside_bytes - memory.device.free_bytes
        if excess > 0 or not all(map(memory.is_resident, segments)):
            read_bytes = 2 * max(memory.layer_bytes_per_token, default=0)
            excess += self.block_tokens * (read_bytes + memory.bytes_per_token) + memory.states.nbytes
        everything = new_bytes + sum(memory.tier_bytes(kv)[0] for kv in self.evictable()) + self.idle_bytes()
        memory.host.require(
            int(min(everything, max(0, excess))), beside_bytes=memory.host.used_bytes - memory.spare_bytes()
        )

    def groups(self, paths: Paths, capacity: int) -> list[list[int]]:
        """All together if their tails fit beside the buffers, else in as few rounds as that takes."""
        self.read_capacity()
        most, tail_bytes = len(paths), capacity * self.tail_bytes_per_token + self.memory.states.nbytes
        if (budget := self.memory.device.budget_bytes) is not None:
            buffer_bytes = self.buffer_bytes(paths)
            most = min(most, (budget - 2 * buffer_bytes) // tail_bytes)
            if most < 1:  # one branch at a time, and one buffer
                self.memory.device.require(tail_bytes + buffer_bytes, beside_bytes=0)
        sizes = balanced_sizes(len(paths), ceil(len(paths) / max(1, most)))
        self.require_host(capacity * len(paths), len(paths), max(sizes) * tail_bytes)
        return [list(range(end - size, end)) for size, end in zip(sizes, accumulate(sizes), strict=True)]

    @property
    def tail_bytes_per_token(self) -> int:
        """What a token of a tail takes on the device."""
        return self.memory.bytes_per_token

    def buffer_bytes(self, paths: Paths) -> int:
        """The smallest buffer through which the segments of `paths` can be read: here one block of one layer."""
        longest = max((len(segment.tokens) for path in paths for segment in path), default=0)
        return longest * max(self.memory.layer_bytes_per_token, default=0)

    def make_room(self, nbytes: int, keep: Set[Block] = frozenset()) -> bool:
        """Evict blocks until `nbytes` fit on the device, nothing of `keep`; none if they would not fit even then.
        What another model keeps leaves first: it is not read before that model is at work again. Says whether they fit
        now."""
        if self.memory.device.free_bytes >= nbytes:
            return True
        idle_bytes = self.idle_bytes()
        if self.leaving(nbytes - idle_bytes, keep, self.eviction_order())[1] < nbytes - idle_bytes:
            return False
        self.crowd_out(nbytes)
        for kv in self.leaving(nbytes, keep, self.eviction_order())[0]:
            self.memory.evict(kv, "evict")
        return True

    def idle_bytes(self) -> int:
        """What other models keep on the device and may give up."""
        return sum(memory.tier_bytes(kv)[0] for memory, kv in self._idle())

    def crowd_out(self, nbytes: float) -> None:
        """Evict what other models keep on the device until `nbytes` fit, or nothing of it is left."""
        for memory, kv in self._idle():
            if self.memory.device.free_bytes >= nbytes:
                return
            memory.evict(kv, "evict")

    def state_on_device(self) -> bool:
        """Where it fits as things are: nothing leaves for it, as it is not read before the next step."""
        return self.memory.device.free_bytes >= self.memory.states.nbytes

    def evictable(self) -> list[Block]:
        """States before KV, as a step reads them once and KV at each token."""
        return [*self.memory.states.live, *(kv for kv in self.memory.live if not kv.pinned)]

    def write_ahead(self, nbytes: int, keep: Set[Block], order: Sequence[Block]) -> None:
        """Start the write-back of what will leave when `nbytes` are needed, as far as the host has room, so that then
        nothing waits for it. The device copies stay until then."""
        for kv in self.leaving(nbytes, keep, order)[0]:
            if self.memory.tier_bytes(kv)[0] <= self.memory.host.free_bytes:
                self.memory.write_back(kv, "evict")

    def leaving(self, nbytes: int, keep: Set[Block], order: Sequence[Block]) -> tuple[list[Block], float]:
        """The first of `order`, less `keep`, that leave the device for `nbytes` to be free, and what is free then."""
        chosen, free_bytes = list[Block](), self.memory.device.free_bytes
        for kv in order:
            if free_bytes >= nbytes:
                break
            if kv not in keep and (size := self.memory.tier_bytes(kv)[0]):
                chosen.append(kv)
                free_bytes += size
        return chosen, free_bytes

    def eviction_order(self) -> list[Block]:
        """Blocks, the first to leave first: here states, then segments, of each the oldest."""
        return self.evictable()

    def stream(
        self, entries: Sequence[Entry], positions: Sequence[int], tails: Tails | None, *, repeat: bool
    ) -> KVReader | None:
        for entry in entries:
            self.memory.link.wait(entry.kv.fetched)  # a step that broke off may have left a prefetch under way
        runs = [(entry.kv, entry.length) for entry in entries]
        kept = self.kept(entries, positions, tails) if repeat else None
        units, largest = self._units(entries, positions, tails, kept is None)
        prefetch, device = self.prefetch, self.memory.device
        while device.free_bytes < (wanted := largest * (2 if prefetch and len(units) > 1 else 1)):
            if self.make_room(wanted):
                units, largest = self._units(entries, positions, tails, kept is None)  # what left is read from the host
            elif prefetch:
                prefetch = False  # one buffer may fit where two do not
            else:
                break
        if kept is None and not units and not self.views:
            return None
        try:
            return KVReader(
                self.memory, units, runs, tails, repeat=repeat, prefetch=prefetch, kept=kept, views=self.views
            )
        except BaseException:
            if kept is not None:
                kept.close()
            raise

    def _units(
        self, entries: Sequence[Entry], positions: Sequence[int], tails: Tails | None, with_views: bool = True
    ) -> tuple[list[Unit], int]:
        """What has to be fetched for one pass, with or without what streaming heads see, and the bytes of the largest
        unit."""
        layers = range(len(self.memory.shapes))
        units = [
            unit
            for layer in layers
            for unit in self.units(layer, entries, positions, self.missing_entries(layer, entries, positions))
            if with_views or unit.view is None
        ]
        units = units if tails is None else self.with_tails(units, tails)
        runs = [(entry.kv, entry.length) for entry in entries]
        largest = max((KVReader.elements(self.memory, unit, runs, tails) for unit in units), default=0)
        return units, largest * self.memory.itemsize

    @property
    def views(self) -> Mapping[int, Sequence[tuple[slice, View]]]:
        """For each layer its heads that do not see everything: here none."""
        return {}

    def kept(self, entries: Sequence[Entry], positions: Sequence[int], tails: Tails | None) -> KVReader | None:
        """What is fetched once and kept while a plan runs again and again: here nothing."""
        return None

    def units(
        self, layer: int, entries: Sequence[Entry], positions: Sequence[int], missing: Sequence[int]
    ) -> list[Unit]:
        """The units in which a layer's missing entries (by index) are fetched: here each by itself."""
        return [Unit(layer, slice(None), (index,)) for index in missing]

    def with_tails(self, units: list[Unit], tails: Tails) -> list[Unit]:
        """Add the tails to the units where they are not on the device: here they always are."""
        return units

    def missing_entries(self, layer: int, entries: Sequence[Entry], positions: Sequence[int]) -> list[int]:
        """The entries that the device lacks and the layer lets some row see."""
        shape = self.memory.shapes[layer]
        return [
            i
            for i, entry in enumerate(entries)
            if entry.kv.readable(layer) is None
            and (shape.sees_all or entry.start + entry.length > shape.first_seen(min(positions[entry.rows])))
        ]
