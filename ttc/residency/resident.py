"""Everything on the device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from ttc.attention.plan import Entry
from ttc.attention.stream import KVReader
from ttc.memory.kv import KV, LayerShape
from ttc.memory.manager import KVMemory
from ttc.memory.tails import Tails
from ttc.residency.base import Paths, Residency, to_bytes


@dataclass
class Resident(Residency):
    """All KV on the device; a budget too small is refused before any work, with the bytes that would do."""

    def _make_memory(self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device) -> KVMemory:
        return KVMemory(shapes, dtype, device, to_bytes(self.budget_gib), host_budget_bytes=0, by_layer=False)

    def require(self, tokens: int) -> None:
        self.memory.device.require(tokens * self.memory.bytes_per_token)

    def allocate(self, tokens: int, needed: Iterable[KV] = (), path: Sequence[KV] = ()) -> KV:
        return self.memory.allocate(tokens)

    def groups(self, paths: Paths, capacity: int) -> list[list[int]]:
        self.require(2 * capacity * len(paths))  # the tails, then their frozen copies
        return [list(range(len(paths)))]

    def enter(self, paths: Paths, upcoming: Paths, capacity: int) -> KV:
        return self.memory.allocate(capacity, rows=len(paths))

    def stream(
        self, entries: Sequence[Entry], positions: Sequence[int], tails: Tails | None, *, repeat: bool
    ) -> KVReader | None:
        return None
