"""Reading KV that is not on the device: unit by unit through two buffers, the next one in flight meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from torch import Tensor

from ttc.attention.kernels import Layer
from ttc.memory.link import Transfer
from ttc.memory.manager import KV, KVMemory, LayerKV

TAILS = -1
"""Stands for the tails among the indices of a unit's parts."""


@dataclass(frozen=True)
class Tails:
    """The tails that a stream may have to read: `rows` of `kv`, `tokens` of them filled, one more at each pass."""

    kv: KV
    rows: int
    tokens: int


@dataclass(frozen=True)
class View:
    """What a streaming head sees: the first `sink` tokens and the last `window` (HeadInfer, appendix D)."""

    sink: int
    window: int

    def of(self, layer: Layer) -> Layer:
        """The layer as its streaming heads compute it."""
        return replace(layer, window=min(self.window, layer.window or self.window), sink=self.sink)

    def reaches(self, start: int, length: int, position: int) -> bool:
        """Whether a row at `position` sees any of `length` tokens from `start` on."""
        return start < self.sink or start + length > position - self.window + 1


@dataclass(frozen=True)
class Unit:
    """What is fetched together: some KV heads of one layer, of the plan's entries with the indices `parts`.

    view: what these heads see of it, None for all.
    """

    layer: int
    heads: slice
    parts: tuple[int, ...]
    view: View | None = None


class Stream:
    """The units of a plan in the order in which its passes read them (ping-pong buffers: HeadInfer section 2; the next
    page prefetched: HELM Algorithm 3).

    runs: (KV, tokens) of each entry of the plan. tails: what the part `TAILS` stands for. repeat: whether the plan runs
    again and again, so that the first unit is fetched while the last is read. keep: fetch each unit once and keep it,
    whatever the number of passes. near: such a stream, read before this one.
    """

    def __init__(
        self,
        memory: KVMemory,
        units: Sequence[Unit],
        runs: Sequence[tuple[KV, int]],
        tails: Tails | None = None,
        *,
        repeat: bool = False,
        prefetch: bool = True,
        keep: bool = False,
        near: Stream | None = None,
    ):
        self.memory, self.units, self.runs, self.tails = memory, units, runs, tails
        self.repeat, self.prefetch, self.keep, self.near = repeat, prefetch and len(units) > 1, keep, near
        self.per_layer = Counter(unit.layer for unit in units)
        # some heads leave out what they don't see
        self.sparse = near is not None or any(unit.view is not None for unit in units)
        sizes = [self.elements(memory, unit, runs, tails) for unit in units]
        sizes = sizes if keep else [max(sizes, default=0)] * (2 if self.prefetch else 1)
        self.buffers: list[Tensor] = list(memory.reserve(sum(sizes)).split(sizes))
        self.staged: list[dict[int, LayerKV]] = [{} for _ in self.buffers]
        self.transfers: list[Transfer | None] = [None] * len(self.buffers)
        self.turn = 0  # units read so far, over all passes
        self.started = -1  # the last turn whose fetch has begun

    @staticmethod
    def elements(memory: KVMemory, unit: Unit, runs: Sequence[tuple[KV, int]], tails: Tails | None) -> int:
        """The numbers that a unit holds, its tails at full capacity."""
        shape = memory.shapes[unit.layer]
        tokens = sum(runs[part][1] for part in unit.parts if part != TAILS)
        if tails is not None and TAILS in unit.parts:
            tokens += tails.rows * tails.kv.tokens
        heads = range(shape.kv_heads)[unit.heads]
        return tokens * len(heads) * (shape.key_dim + shape.value_dim)

    def read(self, layer: int) -> Iterator[tuple[Unit, dict[int, LayerKV]]]:
        """The units of a layer, one after the other: (unit, entry index -> keys and values of its heads)."""
        if self.near is not None:
            yield from self.near.read(layer)
        for _ in range(self.per_layer[layer]):
            unit, staged = self._current()
            yield unit, staged
            self.turn += 1

    def staged_tails(self, layer: int) -> LayerKV:
        """The tails of a layer that is not resident. Call before `read`."""
        unit, staged = self._current()
        if unit.layer != layer or TAILS not in staged:
            raise RuntimeError(f"the tails of layer {layer} are neither on the device nor next in the stream")
        return staged[TAILS]

    def close(self) -> None:
        """Give the buffers back, once nothing is on its way to them."""
        if self.near is not None:
            self.near.close()
        for transfer in self.transfers:
            self.memory.link.drain(transfer)
        for buffer in self.buffers:
            self.memory.unreserve(buffer)
        self.buffers, self.staged = [], []

    def _current(self) -> tuple[Unit, dict[int, LayerKV]]:
        """The unit whose turn it is, arrived, and the next one on its way."""
        if self.started < self.turn:
            self._start(self.turn)
        slot = self.turn % len(self.buffers)
        self.memory.link.wait(self.transfers[slot])
        if self.prefetch and self.started == self.turn and (self.repeat or self.turn + 1 < len(self.units)):
            self._start(self.turn + 1)
        return self.units[self.turn % len(self.units)], self.staged[slot]

    def _start(self, turn: int) -> None:
        passes, index = divmod(turn, len(self.units))
        unit, slot = self.units[index], turn % len(self.buffers)
        self.started = turn
        if self.keep and passes:
            return
        shape, buffer, offset = self.memory.shapes[unit.layer], self.buffers[slot], 0
        heads = len(range(shape.kv_heads)[unit.heads])
        copies: list[tuple[Tensor, Tensor]] = []
        after: list[Transfer] = []
        staged: dict[int, LayerKV] = {}
        for part in unit.parts:
            lead: tuple[int, ...] = ()
            if part == TAILS:
                assert self.tails is not None
                kv, tokens, capacity = self.tails.kv, self.tails.tokens + passes, self.tails.kv.tokens
                lead = (self.tails.rows,)
            else:
                kv, tokens = self.runs[part]
                capacity = tokens
            where = (*map(slice, lead), unit.heads, slice(0, tokens))
            source = kv.host[unit.layer]
            assert source is not None, "KV to be streamed is not on the host"
            size = prod(lead) * heads * capacity
            views = []
            for dim, tensor in ((shape.key_dim, source.keys), (shape.value_dim, source.values)):
                view = buffer[offset : offset + size * dim].view(*lead, heads, capacity, dim)
                copies.append((view[..., :tokens, :], tensor[where]))
                views.append(view)
                offset += size * dim
            staged[part] = LayerKV(*views)
            if kv.written is not None:
                after.append(kv.written)
        self.staged[slot] = staged
        self.transfers[slot] = self.memory.link.fetch(copies, "near" if self.keep else "stream", after)
