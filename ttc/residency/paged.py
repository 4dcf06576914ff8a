"""HELM's runtime: pages that leave the device oldest first, and attention that streams them back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

import torch

from ttc.attention.entry import Entry
from ttc.attention.stream import KVReader
from ttc.errors import InvalidInput
from ttc.memory.kv import KV, LayerShape
from ttc.memory.tails import Tails
from ttc.residency.base import Paths
from ttc.residency.offloading import Offloading


@dataclass
class Paged(Offloading):
    """Pages of `block_tokens` tokens (HELM section 4.2.2, Algorithm 3): context is bounded by host memory.

    watermark: the fullness of the device at which the oldest pages are written to the host, asynchronously. They leave
    when their room is needed, so that new KV finds it without waiting.
    """

    watermark: float = 0.8

    _fresh: set[KV] = field(init=False, repr=False, default_factory=set)
    """Pages that the next pass fills: too early to write them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.watermark <= 1:
            raise InvalidInput(f"memory.watermark={self.watermark} must be above 0 and at most 1")

    def bind(self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device) -> Self:
        bound = super().bind(shapes, dtype, device)
        bound._fresh = set()
        return bound

    def allocate(self, tokens: int, needed: Iterable[KV] = (), path: Sequence[KV] = ()) -> KV:
        kv = self._allocate(tokens, None)
        self._fresh.add(kv)
        return kv

    def enter(self, paths: Paths, upcoming: Paths, capacity: int) -> KV:
        return self._allocate(capacity, len(paths))

    def stream(
        self, entries: Sequence[Entry], positions: Sequence[int], tails: Tails | None, *, repeat: bool
    ) -> KVReader | None:
        self._fresh.clear()  # whatever is allocated after this pass finds them filled
        return super().stream(entries, positions, tails, repeat=repeat)

    def _allocate(self, tokens: int, rows: int | None) -> KV:
        memory = self.memory
        roomy = self.make_room(memory.tail_bytes(tokens, rows) if rows else tokens * memory.bytes_per_token)
        kv = memory.allocate(tokens, rows, device_layers=None if roomy or rows else 0)
        spare = int((1 - self.watermark) * (memory.device.budget_bytes or 0))
        self.write_ahead(spare, {kv, *self._fresh}, self.eviction_order())
        return kv
