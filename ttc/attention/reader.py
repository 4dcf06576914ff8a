"""Reading KV that is not on the device: unit by unit through two buffers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from ttc.attention.kernels import Layer
from ttc.attention.pieces import Piece
from ttc.memory.kv import LayerKV, LayerShape
from ttc.memory.link import Copies, Transfer
from ttc.memory.manager import Memory

Staged = dict[int, LayerKV]
"""Keys and values of pieces, by their numbers."""

Regenerate = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(layer, inputs (tokens, width), positions (tokens,)) -> keys, values (kv_heads, tokens, dim)."""


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
class Fetch:
    """What is fetched together: some KV heads of a layer, of some pieces by their numbers. view:
    what these heads see, None for all."""

    layer: int
    heads: slice
    pieces: tuple[int, ...]
    view: View | None = None


@dataclass(frozen=True)
class Reads:
    """What the passes of a plan read.

    positions: of each row's token in the first pass.
    decodes: whether each row is a branch that decodes, a token at each of many passes.
    fresh: the numbers of the pieces that the pass itself writes, layer by layer.
    """

    pieces: Sequence[Piece]
    positions: Sequence[int]
    decodes: bool = False
    fresh: frozenset[int] = frozenset()

    def earliest(self, piece: Piece) -> int:
        """The least position of the rows that attend a piece."""
        return min(self.positions[piece.rows])

    def sees(self, shape: LayerShape, piece: Piece) -> bool:
        """Whether some row of a layer sees any of a piece."""
        end = piece.start + piece.length
        return shape.sees_all or end > shape.first_seen(self.earliest(piece))


@dataclass
class Reader:
    """The units of a plan in the order in which its passes read them (ping-pong buffers: HeadInfer
    section 2; the next page prefetched: HELM Algorithm 3).

    prefetch: fetch the next unit while one is read, also the first one of the next pass.
    keep: fetch each unit once and keep it. kept: such a reader, read before this one.
    views: for each layer its heads that do not see everything, of a pass's own rows either.
    """

    memory: Memory
    units: Sequence[Fetch]
    reads: Reads
    prefetch: bool = True
    keep: bool = False
    kept: Reader | None = None
    views: Mapping[int, Sequence[tuple[slice, View]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.prefetch = self.prefetch and len(self.units) > 1
        # some heads leave pieces out
        self.sparse = bool(self.views) or any(unit.view is not None for unit in self.units)
        self.per_layer = Counter(unit.layer for unit in self.units)
        sizes = [self.elements(self.memory, unit, self.reads) for unit in self.units]
        if not self.keep:
            sizes = [max(sizes, default=0)] * (2 if self.prefetch else 1)
        self.buffers: list[Tensor] = list(self.memory.reserve(sum(sizes)).split(sizes))
        self.staged: list[Staged] = [{} for _ in self.buffers]
        self.transfers: list[Transfer | None] = [None] * len(self.buffers)
        self.turn = 0  # units read so far, over all passes
        self.started = -1  # the last turn whose fetch has begun
        self.layer: int | None = None  # what is read now

    @staticmethod
    def elements(memory: Memory, unit: Fetch, reads: Reads) -> int:
        """The numbers that a unit holds."""
        shape = memory.shapes[unit.layer]
        tokens = sum(reads.pieces[number].length for number in unit.pieces)
        heads = range(shape.kv_heads)[unit.heads]
        return tokens * len(heads) * (shape.key_dim + shape.value_dim)

    def read(self, layer: int) -> Iterator[tuple[Fetch, Staged]]:
        """The units of a layer, each with what was read of it."""
        self.layer = layer
        if self.kept is not None:
            yield from self.kept.read(layer)
        for _ in range(self.per_layer[layer]):
            unit, slot = self._current()
            yield unit, self.serve(unit, slot)
            self.turn += 1
            self.done()

    def close(self) -> None:
        if self.kept is not None:
            self.kept.close()
        for transfer in self.transfers:
            self.memory.link.wait_and_ignore(transfer)
        for buffer in self.buffers:
            self.memory.unreserve(buffer)
        self.buffers = []
        self.staged = []

    # ---------------------------------------------------------------- turn by turn

    def _current(self) -> tuple[Fetch, int]:
        if self.started < self.turn:
            self._begin(self.turn)
        self.begin_ahead()
        slot = self.turn % len(self.buffers)
        self.memory.link.wait(self.transfers[slot])
        return self.units[self.turn % len(self.units)], slot

    def begin_ahead(self) -> None:
        """Fetch what comes after what is read now, if its buffer is free and it is written."""
        following = self.units[(self.turn + 1) % len(self.units)]
        if self.later(following) and not self.reads.fresh.isdisjoint(following.pieces):
            return
        goes_on = self.reads.decodes or self.turn + 1 < len(self.units)
        if self.prefetch and self.started == self.turn and goes_on:
            self._begin(self.turn + 1)

    def _begin(self, turn: int) -> None:
        passes, number = divmod(turn, len(self.units))
        self.started = turn
        if not (self.keep and passes):
            slot = turn % len(self.buffers)
            self.transfers[slot] = self.fetch(self.units[number], slot)

    def fetch(self, unit: Fetch, slot: int) -> Transfer | None:
        """Begin to bring a unit into a buffer."""
        copies, self.staged[slot] = self.stage(unit, unit.pieces, self.buffers[slot])
        return self.memory.link.fetch(
            copies, "kept" if self.keep else "stream", self.written(unit), self.later(unit)
        )

    def serve(self, unit: Fetch, slot: int) -> Staged:
        return self.staged[slot]

    def done(self) -> None:
        """A unit was attended."""

    def stage(self, unit: Fetch, chosen: Sequence[int], buffer: Tensor) -> tuple[Copies, Staged]:
        """The copies that bring pieces of a unit into a buffer, and where they will be."""
        shape = self.memory.shapes[unit.layer]
        heads = len(range(shape.kv_heads)[unit.heads])
        copies: list[tuple[Tensor, Tensor]] = []
        staged: Staged = {}
        offset = 0
        for number in chosen:
            piece = self.reads.pieces[number]
            source = piece.kv.host[unit.layer]
            assert source is not None, "KV to be read is in neither tier"
            place = shape.lay_out(buffer[offset:], piece.length, heads)
            where = unit.heads, slice(piece.first, piece.first + piece.length)
            copies += [(new, old[where]) for new, old in zip(place.both, source.both, strict=True)]
            offset += piece.length * heads * (shape.key_dim + shape.value_dim)
            staged[number] = place
        return copies, staged

    def written(self, unit: Fetch) -> list[Transfer]:
        storages = (self.reads.pieces[number].kv for number in unit.pieces)
        return [storage.written for storage in storages if storage.written is not None]

    def later(self, unit: Fetch) -> bool:
        """Whether a unit gives way to what the layer at work waits for."""
        return unit.layer != self.layer
