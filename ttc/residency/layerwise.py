"""The baseline of LBS: whole layers on the host, read for every token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ttc.attention.pieces import Piece, private_pieces
from ttc.attention.reader import Reads, Unit
from ttc.memory.storage import Storage
from ttc.residency.base import Paths
from ttc.residency.offloading import Offloading
from ttc.tree.segment import Segment


@dataclass
class Layerwise(Offloading):
    """All branches advance together, as many whole layers resident as fit (LBS Eq. 1), the others
    fetched as each is computed and, with `prefetch`, while the one before it is: two layers of the
    budget are buffers then. What a step writes stays on the device until it ends.

    shared: KV that branches share moves once; off, each branch's copy moves and is charged, as in
        LBS's baseline.
    """

    shared: bool = True

    resident = 0
    """How many of the first layers stay."""
    step_tokens = 0
    """By which each branch of the step grows at most."""

    def groups(self, paths: Paths, tokens: int) -> list[list[int]]:
        self.step_tokens = tokens
        own_bytes = tokens * len(paths) * self.memory.bytes_per_token
        if self.layers_in_device(self.charged(paths), own_bytes) == len(self.memory.layers):
            return [list(range(len(paths)))]
        return super().groups(paths, tokens)

    def buffer_bytes(self, paths: Paths) -> int:
        """A layer of all tokens."""
        return self.charged(paths) * max(self.memory.layer_bytes, default=0)

    def enter(self, paths: Paths) -> None:
        own_bytes = self.step_tokens * len(paths) * self.memory.bytes_per_token
        self.place(self.charged(paths), own_bytes)

    def leave(self, storages: Sequence[Storage]) -> None:
        super().leave(storages)
        self.send_away(storages, self.memory.layers[self.resident :])

    def charged(self, paths: Paths) -> int:
        """The tokens that a step charges a layer with: all there are, as whole layers move."""
        private = 0 if self.shared else sum(len(s.tokens) for path in paths for s in path)
        return max(private, sum(storage.room for storage in self.memory.live))

    def begin(self, after: Segment, room: int, one_each: bool) -> Storage:
        if one_each:
            return super().begin(after, room, one_each)
        tokens = sum(storage.room for storage in self.memory.live) + self.memory.room(room)
        self.place(tokens)
        near = self.memory.layers[: self.resident]
        storage = self.memory.begin(after.end, room, near=near)
        self.writing[storage] = 0
        return storage

    def place(self, tokens: int, own_bytes: int = 0) -> None:
        """Bring all KV to the layers that are resident when a layer holds so many tokens."""
        memory = self.memory
        self.resident = self.layers_in_device(tokens, own_bytes)
        own = {storage for storage, before in self.writing.items() if before is None}
        others = [storage for storage in memory.live if storage not in own]
        for storage in others:
            self.evict(storage, memory.layers[self.resident :])
        for storage in others:
            with self.as_written(storage):
                memory.fetch(storage, "resident", memory.layers[: self.resident])
        memory.wait(others)

    def layers_in_device(self, tokens: int, own_bytes: int) -> int:
        """The layers that stay on the device when all hold so many tokens (LBS Eq. 1, less the
        buffers and what a step writes)."""
        device, sizes = self.memory.device, [tokens * n for n in self.memory.layer_bytes]
        if device.budget_bytes is None or sum(sizes) + own_bytes <= device.budget_bytes:
            return len(sizes)
        room = device.budget_bytes - own_bytes
        for layers in range(len(sizes) - 1, -1, -1):
            buffers = (2 if self.prefetch and layers < len(sizes) - 1 else 1) * max(sizes[layers:])
            if sum(sizes[:layers]) + buffers <= room:
                return layers
        return 0  # one buffer fits, two do not; or the step is cut into rounds

    def order(self) -> list[Storage]:
        return []

    def pieces(self, paths: Paths, counts: Sequence[int], ends: Sequence[int]) -> list[Piece]:
        if self.shared:
            return super().pieces(paths, counts, ends)
        return private_pieces(paths, counts, ends)

    def read(self, layer: int, reads: Reads, absent: Sequence[int]) -> list[Unit]:
        return [Unit(layer, slice(None), tuple(absent))]
