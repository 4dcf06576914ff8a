"""HELM's runtime: pages that leave the device oldest first, and attention that streams them back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ttc.errors import InvalidInput
from ttc.memory import KV
from ttc.residency.base import Offloading, Paths


@dataclass
class Paged(Offloading):
    """Pages of `block_tokens` tokens (HELM section 4.2.2, Algorithm 3): context is bounded by host memory.

    watermark: the fullness of the device at which the oldest pages leave, so that new KV finds room without waiting.
    """

    watermark: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.watermark <= 1:
            raise InvalidInput(f"memory.watermark={self.watermark} must be above 0 and at most 1")

    def allocate(self, tokens: int, needed: Iterable[KV] = ()) -> KV:
        return self._allocate(tokens, None)

    def enter(self, paths: Paths, upcoming: Paths, capacity: int) -> KV:
        return self._allocate(capacity, len(paths))

    def _allocate(self, tokens: int, rows: int | None) -> KV:
        budget, nbytes = self.memory.device.budget_bytes, tokens * (rows or 1) * self.memory.bytes_per_token
        self.make_room(nbytes + int((1 - self.watermark) * (budget or 0)))
        roomy = self.memory.device.free_bytes >= nbytes
        return self.memory.allocate(tokens, rows, device_layers=None if roomy or rows else 0)
