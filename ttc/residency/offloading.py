"""What all policies with two tiers share: what leaves the device when room is needed, and what is
read."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from ttc.attention.entry import Reads
from ttc.attention.stream import FetchUnit, KVReader, View
from ttc.checks import PositiveFloat, PositiveInt
from ttc.memory.tiers import Block
from ttc.residency.base import Paths, Residency, free_device_bytes, machine_bytes, to_bytes
from ttc.residency.beam_scheduling import balanced_rounds


@dataclass
class Offloading(Residency):
    """A policy with two tiers. With no budget given, its capacity is what a CUDA device has free,
    read again at every prompt and step; on a CPU there is no limit then.

    host_budget_gib: the most KV and recurrent states on the host, in GiB.
    link_gbps: on a CPU, slow the link down to so many 1e9 bytes a second.
    block_tokens: the most tokens of a segment, which is the unit that moves.
    prefetch: fetch what comes next while computing.
    """

    host_budget_gib: PositiveFloat | None = None
    link_gbps: PositiveFloat | None = None
    block_tokens: PositiveInt = 512
    prefetch: bool = True

    def _memory_options(self) -> dict[str, Any]:
        return {"host_budget_bytes": to_bytes(self.host_budget_gib), "link_gbps": self.link_gbps}

    # ---------------------------------------------------------------- what there is room for

    def read_capacity(self) -> None:
        """With no budget given, let the device hold what it has free now."""
        device = self.device
        if (
            self.budget_gib is None
            and (free := free_device_bytes(self.memory.link.device)) is not None
        ):
            device.budget_bytes = min(device.ceiling_bytes, device.used_bytes + free)

    @property
    def roomy(self) -> bool:
        return self.device.budget_bytes is None

    def capacity_bytes(self) -> float:
        budget = self.memory.host.budget_bytes
        return machine_bytes() if budget is None else budget

    def require(self, tokens: int, ends: int = 0, running: int = 0) -> None:
        self.read_capacity()
        running_bytes = running * self.state_bytes
        self.device.require(running_bytes, used_bytes=0)
        self.require_host(tokens, ends, running_bytes)

    def max_sequences(self, tokens: int, ends: int) -> int:
        budget, size = self.device.budget_bytes, self.state_bytes
        return sys.maxsize if budget is None or not size else max(1, budget // 2 // size)

    def require_host(self, tokens: int, ends: int, device_bytes: float = 0) -> None:
        """Raise OutOfMemory unless the host has room for what `tokens` new tokens, and recurrent
        states at so many ends, may send there.

        device_bytes: what the device needs for tails and fetched blocks meanwhile. What does not
            fit the device goes to the host, in whole blocks, and more of them where others have to
            be read through buffers.
        """
        memory = self.memory
        new_bytes = memory.bytes_of(tokens, ends)
        excess = new_bytes + device_bytes - memory.device.free_bytes
        if excess > 0 or not all(memory.is_resident(kv) for kv in memory.live if not kv.pinned):
            read_bytes = 2 * max(memory.layer_bytes_per_token, default=0)
            excess += (
                self.block_tokens * (read_bytes + memory.bytes_per_token) + memory.states.nbytes
            )
        self._require_on_host(int(min(new_bytes + self._leaving_bytes(), max(0, excess))))

    def _require_on_host(self, nbytes: int) -> None:
        host = self.memory.host
        host.require(nbytes, used_bytes=host.used_bytes - self.memory.spare_bytes())

    def _leaving_bytes(self) -> int:
        return (
            sum(self.memory.tier_bytes(block)[0] for block in self.evictable()) + self.idle_bytes()
        )

    def groups(self, paths: Paths, capacity: int) -> list[list[int]]:
        """All together if their tails fit with the buffers, else in as few rounds as that takes."""
        self.read_capacity()
        max_branches = len(paths)
        tail_bytes = capacity * self.tail_bytes_per_token + self.state_bytes
        if (budget := self.device.budget_bytes) is not None:
            buffer_bytes = self.buffer_bytes(paths)
            max_branches = min(max_branches, (budget - 2 * buffer_bytes) // tail_bytes)
            if max_branches < 1:  # one branch at a time, and one buffer
                self.device.require(tail_bytes + buffer_bytes, used_bytes=0)
        rounds = balanced_rounds(len(paths), max(1, max_branches))
        self.require_host(capacity * len(paths), len(paths), max(map(len, rounds)) * tail_bytes)
        return rounds

    @property
    def tail_bytes_per_token(self) -> int:
        return self.memory.bytes_per_token

    def buffer_bytes(self, paths: Paths) -> int:
        """The smallest buffer through which the segments of `paths` can be read: here one block of
        one layer."""
        return longest_segment(paths) * max(self.memory.layer_bytes_per_token, default=0)

    # ---------------------------------------------------------------- what leaves

    def make_room(self, nbytes: int, keep: Set[Block] = frozenset()) -> bool:
        """Evict blocks, other models' first, until `nbytes` fit; none if they never would."""
        if self.device.free_bytes >= nbytes:
            return True
        idle_bytes = self.idle_bytes()
        if self.leaving(nbytes - idle_bytes, keep, self.eviction_order())[1] < nbytes - idle_bytes:
            return False
        self.crowd_out(nbytes)
        for block in self.leaving(nbytes, keep, self.eviction_order())[0]:
            self.memory.evict(block, "evict")
        return True

    def idle_bytes(self) -> int:
        return sum(memory.tier_bytes(block)[0] for memory, block in self._idle())

    def crowd_out(self, nbytes: float) -> None:
        for memory, block in self._idle():
            if self.device.free_bytes >= nbytes:
                return
            memory.evict(block, "evict")

    def state_on_device(self) -> bool:
        return self.device.free_bytes >= self.state_bytes

    def evictable(self) -> list[Block]:
        return [*self.memory.states.live, *(kv for kv in self.memory.live if not kv.pinned)]

    def eviction_order(self) -> list[Block]:
        """Blocks, the first to leave first: here the oldest."""
        return self.evictable()

    def leaving(
        self, nbytes: int, keep: Set[Block], order: Sequence[Block]
    ) -> tuple[list[Block], float]:
        chosen: list[Block] = []
        free_bytes = self.device.free_bytes
        for block in order:
            if free_bytes >= nbytes:
                break
            if block not in keep and (size := self.memory.tier_bytes(block)[0]):
                chosen.append(block)
                free_bytes += size
        return chosen, free_bytes

    def write_ahead(self, nbytes: int, keep: Set[Block], order: Sequence[Block]) -> None:
        """Start the write-back of what will leave when `nbytes` are needed. Device copies stay so
        long."""
        for block in self.leaving(nbytes, keep, order)[0]:
            if self.memory.tier_bytes(block)[0] <= self.memory.host.free_bytes:
                self.memory.write_back(block, "evict")

    # ---------------------------------------------------------------- what is read

    def stream(self, reads: Reads) -> KVReader | None:
        self.wait_for_entries(reads)
        kept = self.kept(reads) if reads.repeat else None
        units = self.all_units(reads, kept is None)
        prefetch = self.prefetch
        while True:
            nbytes = self.largest(units, reads) * (2 if prefetch and len(units) > 1 else 1)
            if self.device.free_bytes >= nbytes:
                break
            if self.make_room(nbytes):
                units = self.all_units(reads, kept is None)  # what left is read from the host
            elif prefetch:
                prefetch = False  # one buffer may fit where two do not
            else:
                break
        if kept is None and not units and not self.views:
            return None
        try:
            return KVReader(
                self.memory, units, reads, prefetch=prefetch, kept=kept, views=self.views
            )
        except BaseException:
            if kept is not None:
                kept.close()
            raise

    def wait_for_entries(self, reads: Reads) -> None:
        """A step that broke off may have left a prefetch under way."""
        for entry in reads.entries:
            self.memory.link.wait(entry.kv.fetched)

    def all_units(self, reads: Reads, with_views: bool = True) -> list[FetchUnit]:
        layers = self.memory.layers
        units = (
            unit
            for layer in layers
            for unit in self.units(layer, reads, self.missing_entries(layer, reads))
        )
        return [unit for unit in units if with_views or unit.view is None]

    def largest(self, units: Sequence[FetchUnit], reads: Reads) -> int:
        elements = (KVReader.elements(self.memory, unit, reads) for unit in units)
        return max(elements, default=0) * self.memory.itemsize

    def units(self, layer: int, reads: Reads, missing: Sequence[int]) -> list[FetchUnit]:
        """The units in which a layer's missing entries (by index) are fetched: here each by
        itself."""
        return [FetchUnit(layer, slice(None), (index,)) for index in missing]

    def missing_entries(self, layer: int, reads: Reads) -> list[int]:
        shape = self.memory.shapes[layer]
        missing = []
        for index, entry in enumerate(reads.entries):
            if entry.kv.readable(layer) is not None:
                continue
            end = entry.start + entry.length
            if shape.sees_all or end > shape.first_seen(reads.earliest(entry)):
                missing.append(index)
        return missing

    @property
    def views(self) -> Mapping[int, Sequence[tuple[slice, View]]]:
        """For each layer its heads that do not see everything: here none."""
        return {}

    def kept(self, reads: Reads) -> KVReader | None:
        return None


def longest_segment(paths: Paths) -> int:
    return max((len(segment.tokens) for path in paths for segment in path), default=0)
