"""KV of a run of tokens, and how keys and values lie in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from struct import pack

import torch
from torch import Tensor

from ttc.memory.link import Transfer
from ttc.memory.states import Tensors


def first_seen(position: int, window: int | None, chunk: int | None) -> int:
    """The first position that a token at `position` sees: of all of them, of the last `window`, or of its chunk, which
    begins at a multiple of `chunk`."""
    first = 0 if window is None else max(0, position - window + 1)
    return first if chunk is None else max(first, position - position % chunk)


@dataclass(frozen=True)
class LayerShape:
    """What one attention layer stores per token. K and V may differ in width (DeepSeek-V3).

    window: how many tokens back the layer looks, None for all.
    input_dim: the width of what goes into its K and V projections, from which keys and values can be generated again;
    None where that is not known.
    chunk: tokens of a chunk, where a token sees those of its own alone (Llama 4); None for all.
    device: where the layer runs and its KV lies, for models on several devices; None for the one device of the others.
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
        """The first position that a token at `position` sees."""
        return first_seen(position, self.window, self.chunk)

    @property
    def elements(self) -> int:
        """Numbers per token."""
        return self.kv_heads * (self.key_dim + self.value_dim)

    @property
    def as_inputs(self) -> LayerShape:
        """The shape of an ACT block: inputs lie as the keys of one head, with no values."""
        return LayerShape(1, self.input_dim or 0, 0, self.window, chunk=self.chunk)

    def lay_out(
        self, buffer: Tensor, tokens: int, rows: int | None = None, heads: int | None = None, by_token: bool = False
    ) -> LayerKV:
        """Keys and values as views of a flat buffer, all keys first: (heads, tokens, dim), with `rows` in front of it
        for tails.

        heads: None for all of the layer's. by_token: one token of all rows lies side by side, so that it is written in
        one piece; the views have the same shape.
        """
        lead = () if rows is None else (rows,)
        lead = (*lead, self.kv_heads if heads is None else heads)
        split = prod(lead) * tokens * self.key_dim
        end = split + prod(lead) * tokens * self.value_dim
        parts = ((buffer[:split], self.key_dim), (buffer[split:end], self.value_dim))
        if by_token:
            return LayerKV(*(part.view(tokens, *lead, dim).movedim(0, -2) for part, dim in parts))
        return LayerKV(*(part.view(*lead, tokens, dim) for part, dim in parts))


class LayerKV:
    """Keys and values of one layer: (kv_heads, tokens, dim), or (rows, kv_heads, tokens, dim) for tails."""

    __slots__ = ("_block", "_layer", "_place", "_views")

    def __init__(self, keys: Tensor, values: Tensor):
        self._views: tuple[Tensor, Tensor] | None = (keys, values)
        self._block: Tensor | None = None
        self._layer = 0
        self._place: bytes | None = None

    @classmethod
    def of_block(cls, block: Tensor, layer: int) -> LayerKV:
        """A layer of a `KV.block`. Its views are made when they are asked for: a kernel needs none."""
        made = cls.__new__(cls)
        made._block, made._layer, made._views, made._place = block, layer, None, None
        return made

    @property
    def both(self) -> tuple[Tensor, Tensor]:
        """Keys, values."""
        if self._views is None:
            assert self._block is not None
            keys, values = self._block[self._layer].unbind(0)
            self._views = keys, values
        return self._views

    @property
    def keys(self) -> Tensor:
        return self.both[0]

    @property
    def values(self) -> Tensor:
        return self.both[1]

    @property
    def place(self) -> bytes:
        """Where a kernel finds it: the addresses of keys and values, the strides of keys by head and by token, those of
        values, as six int64 numbers."""
        if self._place is None and self._block is not None:
            block, size = self._block, self._block.element_size()
            by_layer, by_part, *_, by_head, by_token, _ = block.stride()
            at = block.data_ptr() + size * by_layer * self._layer
            self._place = pack("6q", at, at + size * by_part, by_head, by_token, by_head, by_token)
        elif self._place is None:
            k, v = self.both
            self._place = pack("6q", k.data_ptr(), v.data_ptr(), *k.stride()[-3:-1], *v.stride()[-3:-1])
        return self._place

    @classmethod
    def empty(
        cls, shape: LayerShape, tokens: int, rows: int | None, dtype: torch.dtype, device: torch.device, on_host: bool
    ) -> LayerKV:
        """Keys and values in one new buffer. Host copies are pinned where the device is a CUDA device, and those of
        tails lie token by token, as they are written."""
        pinned = on_host and device.type == "cuda"
        place = torch.device("cpu") if on_host else device
        buffer = torch.empty(shape.elements * tokens * (rows or 1), dtype=dtype, device=place, pin_memory=pinned)
        return shape.lay_out(buffer, tokens, rows, by_token=on_host and rows is not None)


class LayerACT(LayerKV):
    """A layer of an ACT block: what goes into its K and V projections, (1, tokens, width), as the keys of one head with
    no values. So it is moved, cut and joined as KV is. Attention cannot read it: a reader regenerates its KV."""

    __slots__ = ()

    @property
    def place(self) -> bytes:
        """Nowhere, for a kernel that looks for keys and values."""
        return bytes(6 * 8)


class KV:
    """KV of a run of tokens: for each layer a copy on the device, on the host, or on both.

    rows: None, or how many tails of `tokens` tokens lie side by side.
    acts: the layers that are kept as activations (CAPTURE's ACT blocks), `LayerACT` in both tiers.
    inputs: of tails whose tokens may become ACT blocks, these inputs beside their keys and values.
    states: of tails, what recurrent layers keep of their branches, (rows, ...) each; None for models without.
    pinned: never evicted.
    borrowed: its layers that run on the host are those of other KV, or of the tails whose inputs it holds.
    block: the device copies of all layers as one tensor (layers, 2, [rows,] kv_heads, tokens, dim), keys before values,
        where they lie so; it is copied in one operation.
    written, fetched: the last transfer to the host copies and to the device copies.
    mirrored_tokens: of tails on the device, how many tokens their host copies have; None without host copies.
    """

    def __init__(self, layers: int, tokens: int, rows: int | None = None, acts: Iterable[int] = ()):
        self.tokens, self.rows, self.pinned = tokens, rows, rows is not None
        self.acts = frozenset(acts)
        self.inputs: KV | None = None
        self.states: Tensors | None = None
        self.borrowed = False
        self.device: list[LayerKV | None] = [None] * layers
        self.host: list[LayerKV | None] = [None] * layers
        self.block: Tensor | None = None
        self.written: Transfer | None = None
        self.fetched: Transfer | None = None
        self.mirrored_tokens: int | None = None

    def readable(self, layer: int) -> LayerKV | None:
        """The device copy of a layer if attention can read it: None for an ACT block."""
        return None if layer in self.acts else self.device[layer]

    def on_device(self, layer: int) -> LayerKV:
        """The device copy of a layer; asking for one that isn't there is a mistake of the engine."""
        found = self.device[layer]
        if found is None:
            raise RuntimeError(f"layer {layer} of {self.tokens} tokens is not on the device")
        return found
