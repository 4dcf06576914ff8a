"""The baseline of the papers: whole layers move, once for every token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ttc.attention.pieces import Piece, private_pieces
from ttc.attention.reader import Fetch, Reads
from ttc.memory.storage import Storage
from ttc.memory.tiers import Block
from ttc.residency.base import Paths
from ttc.residency.offloading import Offloading
from ttc.tree.segment import Segment


@dataclass
class Layerwise(Offloading):
    """Whole layers move, once for every token (LBS Eq. 1). As many as fit stay; the others are
    fetched as each is computed and, with `prefetch`, while the one before it is: two layers of the
    budget are buffers then. New KV of these goes to the host at once.

    shared: KV that branches share moves once; off, each branch's copy moves and is charged, as in
        LBS's baseline.

    Use it where: a baseline of the papers is needed.
    """

    shared: bool = True

    resident = 0
    """How many of the first layers stay."""
    step_tokens = 0
    """By which each branch of the step grows at most."""
    charged = 0
    """The tokens that the step under way charges a layer with."""

    buffers: ClassVar = 1

    @property
    def own_token_bytes(self) -> int:
        """What is decoded goes where its layer is."""
        return 0

    def groups(self, paths: Paths, tokens: int) -> list[list[int]]:
        """All together, or in as few rounds as their recurrent states take beside a layer."""
        self.step_tokens = tokens
        return super().groups(paths, tokens)

    def buffer_bytes(self, paths: Paths) -> int:
        return self.tokens_with(paths) * max(self.memory.layer_bytes, default=0)

    def tokens_with(self, paths: Paths) -> int:
        """All tokens that there will be: what a step charges a layer with."""
        private = 0 if self.shared else sum(len(s.tokens) for path in paths for s in path)
        return max(private, self.live_tokens()) + self.step_tokens * len(paths)

    def enter(self, paths: Paths) -> None:
        self.charged = self.tokens_with(paths)
        self.place(self.charged)

    def end_step(self) -> None:
        self.charged = 0

    def near(self, room: int, one_each: bool) -> Sequence[int]:
        self.place(max(self.live_tokens() + self.memory.room(room), self.charged))
        return self.memory.layers[: self.resident]

    def begin(self, after: Segment, room: int, one_each: bool) -> Storage:
        return super().begin(after, room, one_each=False)

    def resume(self, storage: Storage, one_each: bool) -> bool:
        return super().resume(storage, one_each=False)

    def place(self, tokens: int) -> None:
        """Bring all KV to the layers that are resident when a layer holds so many tokens."""
        memory = self.memory
        self.resident = self.layers_in_device(tokens)
        for storage in memory.live:
            self.evict(storage, memory.layers[self.resident :])
        stay = memory.layers[: self.resident]
        self.make_room(sum(memory.missing_bytes(storage, stay) for storage in memory.live))
        for storage in memory.live:
            with self.as_written(storage):
                memory.fetch(storage, "resident", stay)
        memory.wait(memory.live)

    def layers_in_device(self, tokens: int) -> int:
        """The layers that stay on the device when each holds so many tokens (LBS Eq. 1, less the
        buffers and the recurrent states that run)."""
        device, layer_bytes = self.memory.device, self.memory.layer_bytes
        unused = sum(s.left for s in self.memory.live if s not in self.writing)
        sizes = [(tokens + unused) * n for n in layer_bytes]
        running_bytes = self.memory.states.running_bytes
        if device.budget_bytes is None or sum(sizes) + running_bytes <= device.budget_bytes:
            return len(sizes)
        for layers in range(len(sizes) - 1, -1, -1):
            buffers = (2 if self.prefetch and layers < len(sizes) - 1 else 1) * tokens
            buffers *= max(layer_bytes[layers:])
            if sum(sizes[:layers]) + buffers + running_bytes <= device.budget_bytes:
                return layers
        device.require(tokens * max(layer_bytes, default=0), used_bytes=running_bytes)
        return 0  # one buffer fits, two do not

    def live_tokens(self) -> int:
        """What is written, and what storages that are being written have room for."""
        live = self.memory.live
        return sum(s.room if s in self.writing else s.filled for s in live)

    def leaving(
        self, nbytes: int, order: Sequence[Block] | None = None
    ) -> tuple[list[Block], float]:
        """Recurrent states alone: of KV whole layers leave, or nothing does."""
        return super().leaving(nbytes, [*self.memory.states.live] if order is None else order)

    def pieces(self, paths: Paths, counts: Sequence[int], ends: Sequence[int]) -> list[Piece]:
        if self.shared:
            return super().pieces(paths, counts, ends)
        return private_pieces(paths, counts, ends)

    def read(self, layer: int, reads: Reads, absent: Sequence[int]) -> list[Fetch]:
        return [Fetch(layer, slice(None), tuple(absent))]
