"""KV that stays in 8 bits a number (approximate).

KIVI (arXiv 2402.02750) and KVQuant (arXiv 2401.18079) scale keys by channel, values by token, and
go down to 2 bits. At 8 bits a scale for each token and head is near enough, and a token is then
written once, whatever comes after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ttc.memory.kv import LayerShape
from ttc.memory.manager import Memory
from ttc.memory.storage import Storage
from ttc.residency.base import to_bytes
from ttc.residency.resident import Resident
from ttc.tree.segment import Segment

CodecKind = Literal["int8", "fp8"]
LARGEST = {"int8": 127.0, "fp8": 448.0}
"""The largest number of each kind."""
SCALE_BYTES = 4


@dataclass
class QuantizedKV(Resident):
    """As `resident`, with keys and values in 8 bits (approximate). What a branch
    writes stays as the model computes it until its step is over or its room is full.

    kind: "int8", or "fp8" for float8_e4m3fn. Either way each token of each head has a scale, a
    float32 by which its largest number becomes the kind's largest.

    Other models in the same tiers, as a reward model, keep theirs as it is.

    Use it where: half of the memory matters more than the last digits.
    """

    kind: CodecKind = "int8"

    def memory_for(
        self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device
    ) -> Memory:
        budget_bytes, codec = to_bytes(self.budget_gib), Bytes(self.kind)
        return Memory(shapes, dtype, device, budget_bytes, 0, one_block=True, codec=codec)

    def begin(self, after: Segment, room: int, one_each: bool) -> Storage:
        """Beside it there is room to pack the largest that is written: one is packed at a time."""
        memory = self.memory
        token_bytes = sum(memory.layer_bytes) if one_each else memory.bytes_per_token
        written = [one for one in self.writing if isinstance(one, Storage)]
        rooms = [storage.room for storage in written if storage.codec is None]
        most = max([room, *rooms] if one_each else rooms, default=0)
        memory.device.require(room * token_bytes + most * memory.bytes_per_token)
        storage = memory.begin(after.end, room, codec=None if one_each else memory.codec)
        self.writing[storage] = None if one_each else 0
        return storage

    def resume(self, storage: Storage, one_each: bool) -> bool:
        return (storage.codec is None) == one_each and super().resume(storage, one_each)

    def settled(self, storages: Sequence[Storage]) -> None:
        for storage in storages:
            self.memory.pack(storage)

    def for_another_model(self) -> Resident:
        return Resident(self.budget_gib)


@dataclass(frozen=True)
class Bytes:
    """Rows of numbers as bytes, with the row's scale behind them (see `ttc.memory.kv.Codec`)."""

    kind: CodecKind

    @property
    def row_bytes(self) -> int:
        return SCALE_BYTES

    def pack(self, target: Tensor, numbers: Tensor) -> None:
        wide = numbers.float()
        scale = wide.abs().amax(-1, keepdim=True) / LARGEST[self.kind]
        wide = wide / scale.clamp_min(torch.finfo(torch.float32).tiny)
        if self.kind == "int8":
            target[..., :-SCALE_BYTES] = wide.round_().to(torch.int8)
        else:
            target[..., :-SCALE_BYTES] = wide.to(torch.float8_e4m3fn).view(torch.int8)
        target[..., -SCALE_BYTES:] = scale.view(torch.int8)

    def unpack(self, packed: Tensor, dtype: torch.dtype) -> Tensor:
        numbers = packed[..., :-SCALE_BYTES].contiguous()
        if self.kind == "fp8":
            numbers = numbers.view(torch.float8_e4m3fn)
        scale = packed[..., -SCALE_BYTES:].contiguous().view(torch.float32)
        return (numbers.float() * scale).to(dtype)
