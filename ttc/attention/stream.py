"""Reading KV that is not on the device: unit by unit through two buffers, the next one in flight
meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from ttc.attention.entry import Reads
from ttc.attention.kernels import Layer
from ttc.memory.kv import KV, LayerKV
from ttc.memory.link import Transfer
from ttc.memory.manager import KVMemory


@dataclass(frozen=True)
class View:
    """What a streaming head sees: the first `sink` tokens and the last `window`, within the model's
    window (HeadInfer, appendix D)."""

    sink: int
    window: int

    def of(self, layer: Layer) -> Layer:
        return replace(layer, recent=self.window, sink=self.sink)

    def reaches(self, start: int, length: int, position: int) -> bool:
        """Whether a row at `position` sees any of `length` tokens from `start` on."""
        return start < self.sink or start + length > position - self.window + 1


@dataclass(frozen=True)
class FetchUnit:
    """What is fetched together: some KV heads of one layer.

    entries: the indices of the plan's entries that are fetched. tails: whether the tails are, too.
    view: what these heads see of the entries, None for all.
    """

    layer: int
    heads: slice
    entries: tuple[int, ...]
    tails: bool = False
    view: View | None = None


@dataclass
class Staged:
    """A unit in its buffer: the keys and values of each entry by index, and those of the tails."""

    entries: dict[int, LayerKV] = field(default_factory=dict)
    tails: LayerKV | None = None


class KVReader:
    """The units of a plan in the order in which its passes read them (ping-pong buffers: HeadInfer
    section 2; the next page prefetched: HELM Algorithm 3).

    prefetch: fetch the next unit while one is read; where passes repeat, the first one while the
        last is read.
    keep: fetch each unit once and keep it.
    kept: such a reader, read before this one.
    views: for each layer its heads that do not see everything, of tails and of a pass's rows
        either.
    """

    def __init__(
        self,
        memory: KVMemory,
        units: Sequence[FetchUnit],
        reads: Reads,
        *,
        prefetch: bool = True,
        keep: bool = False,
        kept: KVReader | None = None,
        views: Mapping[int, Sequence[tuple[slice, View]]] | None = None,
    ):
        self.memory = memory
        self.units = units
        self.reads = reads
        self.prefetch = prefetch and len(units) > 1
        self.keep = keep
        self.kept = kept
        self.views = views or {}
        # some heads leave entries out
        self.sparse = bool(self.views) or any(unit.view is not None for unit in units)
        self.per_layer = Counter(unit.layer for unit in units)
        sizes = [self.elements(memory, unit, reads) for unit in units]
        sizes = sizes if keep else [max(sizes, default=0)] * (2 if self.prefetch else 1)
        self.buffers: list[Tensor] = list(memory.reserve(sum(sizes)).split(sizes))
        self.staged = [Staged() for _ in self.buffers]
        self.transfers: list[Transfer | None] = [None] * len(self.buffers)
        self.turn = 0  # units read so far, over all passes
        self.started = -1  # the last turn whose fetch has begun
        self.layer: int | None = None  # what is read now

    @staticmethod
    def elements(memory: KVMemory, unit: FetchUnit, reads: Reads) -> int:
        """The numbers that a unit holds, its tails at full capacity."""
        shape = memory.shapes[unit.layer]
        tokens = sum(reads.entries[index].length for index in unit.entries)
        if reads.tails is not None and unit.tails:
            tokens += reads.tails.rows * reads.tails.kv.tokens
        heads = range(shape.kv_heads)[unit.heads]
        return tokens * len(heads) * (shape.key_dim + shape.value_dim)

    def read(self, layer: int) -> Iterator[tuple[FetchUnit, dict[int, LayerKV]]]:
        """The units of a layer, one after the other: (unit, entry index -> keys and values of its
        heads)."""
        self.layer = layer
        if self.kept is not None:
            yield from self.kept.read(layer)
        for _ in range(self.per_layer[layer]):
            unit, staged = self._current()
            yield unit, staged.entries
            self.turn += 1

    def staged_tails(self, layer: int) -> LayerKV:
        """The tails of a layer that is not resident. Call before `read`."""
        self.layer = layer
        unit, staged = self._current()
        if unit.layer != layer or staged.tails is None:
            raise RuntimeError(
                f"the tails of layer {layer} are neither on the device nor what is read next"
            )
        return staged.tails

    def close(self) -> None:
        if self.kept is not None:
            self.kept.close()
        for transfer in self.transfers:
            self.memory.link.wait_and_ignore(transfer)
        for buffer in self.buffers:
            self.memory.unreserve(buffer)
        self.buffers = []
        self.staged = []

    def _current(self) -> tuple[FetchUnit, Staged]:
        if self.started < self.turn:
            self._start(self.turn)
        slot = self.turn % len(self.buffers)
        self.memory.link.wait(self.transfers[slot])
        if (
            self.prefetch
            and self.started == self.turn
            and (self.reads.repeat or self.turn + 1 < len(self.units))
        ):
            self._start(self.turn + 1)
        return self.units[self.turn % len(self.units)], self.staged[slot]

    def _start(self, turn: int) -> None:
        passes, index = divmod(turn, len(self.units))
        unit = self.units[index]
        slot = turn % len(self.buffers)
        self.started = turn
        if self.keep and passes:
            return
        shape, buffer = self.memory.shapes[unit.layer], self.buffers[slot]
        heads = len(range(shape.kv_heads)[unit.heads])
        copies: list[tuple[Tensor, Tensor]] = []
        after: list[Transfer] = []
        offset = 0

        def stage(kv: KV, tokens: int, capacity: int, rows: int | None = None) -> LayerKV:
            nonlocal offset
            source = kv.host[unit.layer]
            assert source is not None, "KV to be streamed is not on the host"
            place = shape.lay_out(buffer[offset:], capacity, rows, heads)
            where = (*(() if rows is None else (slice(rows),)), unit.heads, slice(tokens))
            copies.extend(
                (new[..., :tokens, :], old[where])
                for new, old in zip(place.both, source.both, strict=True)
            )
            offset += (rows or 1) * heads * capacity * (shape.key_dim + shape.value_dim)
            if kv.written is not None:
                after.append(kv.written)
            return place

        staged = Staged()
        if unit.tails:
            tails = self.reads.tails
            assert tails is not None
            staged.tails = stage(tails.kv, tails.tokens + passes, tails.kv.tokens, tails.rows)
        for number in unit.entries:
            entry = self.reads.entries[number]
            staged.entries[number] = stage(entry.kv, entry.length, entry.length)
        self.staged[slot] = staged
        cause = "kept" if self.keep else "stream"
        self.transfers[slot] = self.memory.link.fetch(copies, cause, after, self._later(unit))

    def _later(self, unit: FetchUnit) -> bool:
        return unit.layer != self.layer
