"""HeadInfer: all KV on the host, read by groups of heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ttc.attention.pieces import Piece
from ttc.residency.offloading import Offloading, Unit
from ttc.memory.storage import Storage


@dataclass
class Headwise(Offloading):
    """head_group: KV heads of a layer that are fetched together (HeadInfer section 2)."""

    head_group: int = 1

    def units(self, layer: int, pieces: Sequence[Piece], absent: Sequence[int]) -> list[Unit]:
        if not absent:
            return []
        heads = self.memory.shapes[layer].kv_heads
        firsts = range(0, heads, self.head_group)
        return [(slice(first, min(heads, first + self.head_group)), absent) for first in firsts]

    def leave(self, storages: Sequence[Storage]) -> None:
        super().leave(storages)
        self.send_to_host(storages, self.memory.layers)
