"""Everything on the device."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ttc.attention.entry import Reads
from ttc.errors import OutOfMemory
from ttc.residency.base import Paths, Residency, free_device_bytes

if TYPE_CHECKING:
    from ttc.attention.stream import KVReader


@dataclass
class Resident(Residency):
    """All KV on the device; a budget too small is refused before any work, with the least bytes
    that it takes."""

    def _memory_options(self) -> dict[str, Any]:
        return {"host_budget_bytes": 0, "by_layer": False}

    def require(self, tokens: int, ends: int = 0, running: int = 0) -> None:
        self.device.require(self.memory.bytes_of(tokens, ends + running))

    def max_sequences(self, tokens: int, ends: int) -> int:
        memory, size = self.memory, self.state_bytes
        if memory.device.budget_bytes is None or not size:
            return sys.maxsize
        return max(1, int(memory.device.free_bytes - memory.bytes_of(tokens, ends)) // size)

    def fits(self, tokens: int, states: int) -> float:
        """Where layers lie on several devices, until the first of these is full."""
        memory = self.memory
        needed = Counter[torch.device]()
        for shape, nbytes in zip(memory.shapes, memory.layer_bytes_per_token, strict=True):
            needed[shape.device or memory.link.device] += tokens * nbytes
        for device, nbytes in memory.states.bytes_on().items():
            needed[device] += states * nbytes
        free_bytes = {
            device: free_device_bytes(device) for device, nbytes in needed.items() if nbytes
        }
        more = [free / needed[device] for device, free in free_bytes.items() if free is not None]
        if not more or memory.device.budget_bytes is not None:
            return super().fits(tokens, states)
        return memory.device.used_bytes / needed.total() + min(more)

    def groups(self, paths: Paths, capacity: int) -> list[list[int]]:
        rows = len(paths)
        tokens = 2 * capacity * rows
        states = 2 * rows
        tails = self.memory.tail_bytes(capacity, rows)
        frozen_copies = self.memory.bytes_of(capacity * rows, rows)
        needed = tails + frozen_copies
        self.device.require(needed)
        if len(paths) > 1 and not self.has_room(tokens, states):
            raise OutOfMemory(
                f"{len(paths)} branches need {needed:,} more bytes "
                f"of KV, and the machine has room for {self.capacity_bytes():,.0f} in all; use "
                "fewer branches at once, or memory=paged"
            )
        return [list(range(len(paths)))]

    def stream(self, reads: Reads) -> KVReader | None:
        return None
