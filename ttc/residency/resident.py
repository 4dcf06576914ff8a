"""Everything on the device."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch

from ttc.residency.base import Residency, free_device_bytes


@dataclass
class Resident(Residency):
    """All KV on the device; a budget too small is refused before any work, with the least bytes
    that it takes."""

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
