"""A storage: room for the KV of tokens that lie side by side in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ttc.memory.kv import Codec, LayerKV, LayerShape
from ttc.memory.tiers import BlockOf

SHORT_STEP_TOKENS = 64
"""A step of at most so many tokens gets all of its room at once."""

LEAST_TOKENS = 32
"""In longer steps a storage has room for at least so many."""

WRITTEN_PER_ROOM = 4
"""And for one more for each so many that its branch has written."""

NOWHERE = bytes(6 * 8)
"""The place (`LayerKV.place`) of a layer that no kernel can read."""


class Storage(BlockOf[LayerKV]):
    """Room for `room` tokens at positions from `start` on, of which the first `filled` are written.
    Its pieces are the layers. Its segments are a chain: nobody else writes between them.

    acts: the layers that keep the inputs of their K and V projections (CAPTURE). inputs: while it
        is written, such inputs beside its KV, where it may keep them alone later.
    on_host: of layers that lie in both tiers, how many tokens the host's copies have.
    block: the device copies of all layers as one tensor (layers, 2, kv_heads, room, dim), keys
        before values, where they lie so.
    being_written: whether a branch has a place in it for its next tokens.
    used_at: the memory's clock when a plan last read or wrote it.
    """

    def __init__(
        self,
        layers: int,
        start: int,
        room: int,
        acts: Iterable[int] = (),
        codec: Codec | None = None,
    ):
        super().__init__(layers)
        self.start = start
        self.room = room
        self.acts = frozenset(acts)
        self.codec = codec
        self.filled = 0
        self.on_host = 0
        self.inputs: Storage | None = None
        self.being_written = False
        self.used_at = 0
        self.block: Tensor | None = None
        self._places: bytes | None = None

    @classmethod
    def uncounted(
        cls, shapes: Sequence[LayerShape], tokens: int, dtype: torch.dtype, device: torch.device
    ) -> Storage:
        """A storage on the device that no memory knows, as for a check."""
        storage = cls(len(shapes), 0, tokens)
        storage.device = [
            LayerKV.empty(shape, tokens, dtype, shape.device or device, on_host=False)
            for shape in shapes
        ]
        return storage

    def tensors(self, copy: LayerKV) -> tuple[Tensor, Tensor]:
        """What of a copy is written, which is all that moves."""
        return self.span(copy, 0, self.filled)

    def span(self, copy: LayerKV, first: int, end: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a copy, from one of its tokens to another."""
        keys, values = copy.both
        if first == 0 and end == self.room:
            return keys, values
        return keys[:, first:end], values[:, first:end]

    @property
    def is_resident(self) -> bool:
        return None not in self.device

    @property
    def left(self) -> int:
        return self.room - self.filled

    @property
    def full(self) -> bool:
        return self.filled == self.room

    def readable(self, layer: int) -> LayerKV | None:
        """The device copy of a layer if attention can read it: None for an ACT block."""
        return None if layer in self.acts else self.device[layer]

    def read(self, part: Tensor, dtype: torch.dtype) -> Tensor:
        """Keys or values, a part of a copy of a layer, as numbers."""
        return part if self.codec is None else self.codec.unpack(part, dtype)

    def write(self, target: Tensor, numbers: Tensor) -> None:
        """Put keys or values to their place in a copy of a layer, or of all layers."""
        if self.codec is None:
            target.copy_(numbers)
        else:
            self.codec.pack(target, numbers)

    def become(self, other: Storage) -> None:
        """Take over another one's device copies."""
        self.device, self.block, self._places = other.device, other.block, None
        self.room, self.codec = other.room, other.codec

    def places(self) -> bytes:
        """Where a kernel finds each layer (`LayerKV.place`); zeros where it cannot read it."""
        if self.block is None:
            copies = [self.readable(layer) for layer in range(len(self.device))]
            return b"".join([NOWHERE if copy is None else copy.place for copy in copies])
        if self._places is None:
            size = self.block.element_size()
            by_layer, by_part, by_head, by_token, _ = self.block.stride()
            keys = self.block.data_ptr() + size * by_layer * np.arange(len(self.device))
            strides = np.broadcast_to([by_head, by_token] * 2, (len(keys), 4))
            self._places = np.column_stack([keys, keys + size * by_part, strides]).tobytes()
        return self._places

    def __repr__(self) -> str:
        return f"Storage(start={self.start}, filled={self.filled} of {self.room})"


class Places(NamedTuple):
    """Where `length` tokens lie: in `storage`, from its token `first` on."""

    storage: Storage
    first: int
    length: int


def room_for(left: int, written: int) -> int:
    """The room of a new storage for a branch that may write `left` more tokens in its step, and has
    written so many (`python -m experiments.bench kept`)."""
    if left <= SHORT_STEP_TOKENS:
        return left
    return min(left, max(LEAST_TOKENS, written // WRITTEN_PER_ROOM))
