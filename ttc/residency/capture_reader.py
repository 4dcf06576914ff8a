"""Reading keys and values and inputs of such: both fetched through two buffers, KV of inputs
generated there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ttc.attention.reader import Fetch, Reader, Reads, Regenerate, Staged
from ttc.errors import on_failure
from ttc.memory.kv import LayerKV, LayerShape
from ttc.memory.link import Copies, Transfer
from ttc.memory.manager import Memory


@dataclass
class CaptureReader(Reader):
    """Mini-batches of a layer, each a unit (CAPTURE, section IV-B). One of two buffers is filled
    with a unit's KV blocks and the inputs of its ACT blocks while the other is computed on. What is
    generated has room of its own."""

    regenerate: Regenerate | None = None
    positions: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        generated = (generated_bytes(self.memory, unit, self.reads) for unit in self.units)
        self.inputs: list[Tensor | None] = [None, None]
        self.room = self.memory.reserve(max(generated, default=0) // self.memory.dtype.itemsize)
        with on_failure(self.memory.unreserve, self.room):
            super().__post_init__()

    @staticmethod
    def elements(memory: Memory, unit: Fetch, reads: Reads) -> int:
        shape = memory.shapes[unit.layer]
        pieces = (reads.pieces[number] for number in unit.pieces)
        return sum(
            piece.length * (shape.as_inputs if unit.layer in piece.kv.acts else shape).elements
            for piece in pieces
        )

    def close(self) -> None:
        super().close()
        self.memory.unreserve(self.room)
        self.room = self.room[:0]
        self.inputs = []

    def fetch(self, unit: Fetch, slot: int) -> Transfer | None:
        acts = act_pieces(unit, self.reads)
        others = [number for number in unit.pieces if number not in acts]
        width = self.memory.shapes[unit.layer].input_dim or 0
        tokens = sum(self.reads.pieces[number].length for number in acts)
        buffer, link = self.buffers[slot], self.memory.link
        self.inputs[slot] = buffer[: tokens * width].view(tokens, width) if acts else None
        act_copies = self._stage_inputs(unit, acts, slot)
        kv_copies, self.staged[slot] = self.stage(unit, others, buffer[tokens * width :])
        after, later = self.written(unit), self.later(unit)
        if act_copies:
            after = [link.fetch(act_copies, "act", after, later)]
        return link.fetch(kv_copies, "kv", after, later) if act_copies or kv_copies else None

    def _stage_inputs(self, unit: Fetch, acts: Sequence[int], slot: int) -> Copies:
        copies: list[tuple[Tensor, Tensor]] = []
        first = 0
        for number in acts:
            piece = self.reads.pieces[number]
            if piece.kv.device[unit.layer] is None:
                source, inputs = piece.kv.host[unit.layer], self.inputs[slot]
                assert source is not None and inputs is not None, "inputs are in neither tier"
                part = source.keys[:, piece.first : piece.first + piece.length]
                copies.append((inputs[None, first : first + piece.length], part))
            first += piece.length
        return copies

    def serve(self, unit: Fetch, slot: int) -> Staged:
        inputs, acts = self.inputs[slot], act_pieces(unit, self.reads)
        if inputs is None:
            return self.staged[slot]
        spans: dict[int, slice] = {}
        first = 0
        for number in acts:
            piece = self.reads.pieces[number]
            spans[number] = slice(first, first + piece.length)
            if (near := piece.kv.device[unit.layer]) is not None:
                part = near.keys[0, piece.first : piece.first + piece.length]
                inputs[spans[number]] = part
            first += piece.length
        assert self.regenerate is not None, "there is nothing to generate KV by"
        new = self.regenerate(unit.layer, inputs, self._positions(acts))
        room = stored(self.memory.shapes[unit.layer], self.room, new)
        generated = {
            number: LayerKV(room.keys[:, span], room.values[:, span])
            for number, span in spans.items()
        }
        return self.staged[slot] | generated

    def done(self) -> None:
        """Its buffer is free: what comes after the next unit begins to come."""
        self.begin_ahead()

    def _positions(self, acts: Sequence[int]) -> Tensor:
        key = tuple(acts)
        if key not in self.positions:
            pieces = [self.reads.pieces[number] for number in acts]
            spans = [torch.arange(piece.start, piece.start + piece.length) for piece in pieces]
            self.positions[key] = torch.cat(spans).to(self.memory.link.device)
        return self.positions[key]


def stored(shape: LayerShape, room: Tensor, new: tuple[Tensor, Tensor]) -> LayerKV:
    """A copy of new keys and values in `room`, where attention reads runs of tokens fast."""
    places = shape.lay_out(room, new[0].shape[1])
    for place, part in zip(places.both, new, strict=True):
        place.copy_(part)
    return places


def act_pieces(unit: Fetch, reads: Reads) -> list[int]:
    return [number for number in unit.pieces if unit.layer in reads.pieces[number].kv.acts]


def generated_bytes(memory: Memory, unit: Fetch, reads: Reads) -> int:
    tokens = sum(reads.pieces[number].length for number in act_pieces(unit, reads))
    return tokens * memory.layer_bytes[unit.layer]
