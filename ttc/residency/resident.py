"""Everything on the device."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch

from ttc.errors import OutOfMemory
from ttc.memory.storage import SHORT_STEP_TOKENS
from ttc.residency.base import Paths, Residency, free_device_bytes


@dataclass
class Resident(Residency):
    """All KV on the device; branches that do not fit together decode in turn, and what they let go
    of meanwhile is computed again. A budget too small for a step's first tokens is refused before
    these are computed, with the least bytes that they take.

    Use it where: it fits.
    """

    def try_step(self, paths: Paths, tokens: int) -> None:
        """Without a budget the limit is what the machine has; beyond it branches take turns. With
        one, a long step is tried with its first tokens alone: few are written to their limit."""
        rows, unlimited = len(paths), self.memory.device.budget_bytes is None
        if unlimited and rows > 1 and not self.has_room(tokens * rows, rows):
            raise OutOfMemory(
                f"{rows} branches that write up to {tokens} tokens do not fit in the "
                f"{self.capacity_bytes():,.0f} bytes that this machine has for KV; use fewer "
                "branches at once, or memory=paged"
            )
        super().try_step(paths, min(tokens, SHORT_STEP_TOKENS))

    def fits(self, tokens: int, states: int) -> float:
        """Where layers lie on several devices, until the first of these is full."""
        memory = self.memory
        needed = Counter[torch.device]()
        for shape, nbytes in zip(memory.shapes, memory.layer_bytes, strict=True):
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
