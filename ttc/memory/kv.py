"""How keys and values lie in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from struct import pack
from typing import Protocol

import torch
from torch import Tensor


def first_seen(position: int, window: int | None, chunk: int | None) -> int:
    """The first position that a token sees: of the last `window`, and of its chunk."""
    first = 0 if window is None else max(0, position - window + 1)
    return first if chunk is None else max(first, position - position % chunk)


@dataclass(frozen=True)
class LayerShape:
    """What an attention layer stores per token. K and V may differ in width (DeepSeek-V3).

    window: how many tokens back it looks. chunk: tokens of a chunk, where a token sees those of its
        own alone (Llama 4). None for all.
    input_dim: the width of the input of its K and V projections; None where KV cannot be generated
        from it.
    device: where its KV lies, for models on several devices.
    """

    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    input_dim: int | None = None
    chunk: int | None = None
    device: torch.device | None = None

    @property
    def sees_all(self) -> bool:
        """Whether a token sees every earlier one."""
        return self.window is None and self.chunk is None

    def first_seen(self, position: int) -> int:
        return first_seen(position, self.window, self.chunk)

    @property
    def elements(self) -> int:
        """Numbers per token."""
        return self.kv_heads * (self.key_dim + self.value_dim)

    @property
    def as_inputs(self) -> LayerShape:
        """The shape of an ACT block: inputs lie as the keys of one head, with no values."""
        return LayerShape(1, self.input_dim or 0, 0)

    def packed(self, row_bytes: int) -> LayerShape:
        """The shape in bytes, a number taking one and a row so many besides."""
        return replace(self, key_dim=self.key_dim + row_bytes, value_dim=self.value_dim + row_bytes)

    def lay_out(self, buffer: Tensor, tokens: int, heads: int | None = None) -> LayerKV:
        """Keys and values as views (heads, tokens, dim) of a flat buffer, all keys first."""
        heads = self.kv_heads if heads is None else heads
        split = heads * tokens * self.key_dim
        keys, values = buffer[:split], buffer[split : split + heads * tokens * self.value_dim]
        return LayerKV(
            keys.view(heads, tokens, self.key_dim), values.view(heads, tokens, self.value_dim)
        )


class Codec(Protocol):
    """How storages keep numbers in one byte each. kind: its name for kernels. row_bytes: what a row
    of numbers takes besides."""

    @property
    def kind(self) -> str: ...

    @property
    def row_bytes(self) -> int: ...

    def pack(self, target: Tensor, numbers: Tensor) -> None:
        """Write numbers (..., dim) to `target` (..., dim + row_bytes), int8."""
        ...

    def unpack(self, packed: Tensor, dtype: torch.dtype) -> Tensor:
        """The numbers (..., dim) of what was packed."""
        ...


class LayerKV:
    """Keys and values of one layer, (kv_heads, tokens, dim) each. An ACT block has the inputs of
    its K and V projections, (1, tokens, width), as keys, and no values."""

    __slots__ = ("_block", "_place", "_views")

    def __init__(self, keys: Tensor, values: Tensor):
        self._views: tuple[Tensor, Tensor] | None = (keys, values)
        self._block: tuple[Tensor, int] | None = None
        self._place: bytes | None = None

    @classmethod
    def of_block(cls, block: Tensor, layer: int) -> LayerKV:
        """A layer of a `Storage.block`. Its views are made when they are asked for."""
        copy = cls.__new__(cls)
        copy._views, copy._block, copy._place = None, (block, layer), None
        return copy

    @property
    def both(self) -> tuple[Tensor, Tensor]:
        if self._views is None:
            assert self._block is not None
            block, layer = self._block
            self._views = block[layer, 0], block[layer, 1]
        return self._views

    @property
    def keys(self) -> Tensor:
        return self.both[0]

    @property
    def values(self) -> Tensor:
        return self.both[1]

    @property
    def place(self) -> bytes:
        """Where a kernel finds it, as six int64: the addresses of keys and values, then of each the
        strides by head and by token."""
        if self._place is None:
            k, v = self.both
            self._place = pack("6q", k.data_ptr(), v.data_ptr(), *k.stride()[:2], *v.stride()[:2])
        return self._place

    @classmethod
    def empty(
        cls, shape: LayerShape, tokens: int, dtype: torch.dtype, device: torch.device, on_host: bool
    ) -> LayerKV:
        """In one new buffer."""
        pinned = on_host and device.type == "cuda"
        place = torch.device("cpu") if on_host else device
        elements = shape.elements * tokens
        return shape.lay_out(
            torch.empty(elements, dtype=dtype, device=place, pin_memory=pinned), tokens
        )
