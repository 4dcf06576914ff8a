"""The baseline of LBS: whole layers on the host, read for every token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ttc.attention.pieces import Piece
from ttc.residency.offloading import Offloading, Unit
from ttc.memory.storage import Storage


@dataclass
class Layerwise(Offloading):
    """resident_layers: how many layers stay on the device."""

    resident_layers: int = 0

    def units(self, layer: int, pieces: Sequence[Piece], absent: Sequence[int]) -> list[Unit]:
        return [(slice(None), absent)] if absent else []

    def leave(self, storages: Sequence[Storage]) -> None:
        super().leave(storages)
        self.send_to_host(storages, self.memory.layers[self.resident_layers :])
