"""Reading a cache of KV blocks and ACT blocks: both fetched through two buffers, KV of ACT blocks
generated there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ttc.attention.act_inputs import Regenerate
from ttc.attention.entry import Reads
from ttc.attention.stream import FetchUnit, KVReader, Staged
from ttc.memory.kv import LayerKV, LayerShape
from ttc.memory.manager import KVMemory

CopyList = list[tuple[Tensor, Tensor]]


class CaptureReader(KVReader):
    """Mini-batches of a layer, each a unit (CAPTURE, section IV-B). One of two buffers is filled
    with a unit's KV blocks and the inputs of its ACT blocks while the other is computed on. The KV
    generated of a unit has room of its own. All blocks of a unit are regenerated in one call.

    near: for each buffer, the ACT blocks that were on the device when its unit was begun, by the
        entry's index.
    """

    def __init__(
        self,
        memory: KVMemory,
        units: Sequence[FetchUnit],
        reads: Reads,
        regenerate: Regenerate | None,
        prefetch: bool,
    ):
        self.regenerate = regenerate
        self.inputs: list[Tensor | None] = [None, None]
        self.near: list[dict[int, LayerKV]] = [{}, {}]
        self.places: dict[tuple[int, ...], Tensor] = {}
        generated = max((generated_bytes(memory, unit, reads) for unit in units), default=0)
        self.room = memory.reserve(generated // memory.itemsize)
        try:
            super().__init__(memory, units, reads, prefetch=prefetch)
        except BaseException:
            memory.unreserve(self.room)
            raise

    @staticmethod
    def elements(memory: KVMemory, unit: FetchUnit, reads: Reads) -> int:
        shape = memory.shapes[unit.layer]
        entries = (reads.entries[index] for index in unit.entries)
        return sum(
            e.length * (shape.as_inputs if unit.layer in e.kv.acts else shape).elements
            for e in entries
        )

    def read(self, layer: int) -> Iterator[tuple[FetchUnit, dict[int, LayerKV]]]:
        self.layer = layer
        for _ in range(self.per_layer[layer]):
            unit, staged = self._current()
            yield unit, staged.entries | self._generated(unit)
            self.turn += 1
            self._start_ahead()

    def close(self) -> None:
        super().close()
        self.memory.unreserve(self.room)
        self.room = self.room[:0]
        self.inputs = []
        self.near = []

    def _generated(self, unit: FetchUnit) -> dict[int, LayerKV]:
        slot = self.turn % len(self.buffers)
        inputs, near = self.inputs[slot], self.near[slot]
        if inputs is None:
            return {}
        assert self.regenerate is not None, (
            "there are ACT blocks, and nothing to generate their KV by"
        )
        acts = _act_entries(unit, self.reads)
        spans: dict[int, slice] = {}
        first = 0
        for index in acts:
            length = self.reads.entries[index].length
            spans[index] = slice(first, first + length)
            if (copy := near.get(index)) is not None:
                inputs[spans[index]] = copy.keys[0, :length]
            first += length
        new = self.regenerate(unit.layer, inputs, self._positions(acts))
        room = stored(self.memory.shapes[unit.layer], self.room, new)
        return {
            index: LayerKV(room.keys[:, span], room.values[:, span])
            for index, span in spans.items()
        }

    def _positions(self, acts: Sequence[int]) -> Tensor:
        key = tuple(acts)
        if key not in self.places:
            entries = [self.reads.entries[index] for index in acts]
            spans = [torch.arange(entry.start, entry.start + entry.length) for entry in entries]
            self.places[key] = torch.cat(spans).to(self.memory.link.device)
        return self.places[key]

    def _current(self) -> tuple[FetchUnit, Staged]:
        if self.started < self.turn:
            self._start(self.turn)
        self._start_ahead()
        slot = self.turn % len(self.buffers)
        self.memory.link.wait(self.transfers[slot])
        return self.units[self.turn % len(self.units)], self.staged[slot]

    def _start_ahead(self) -> None:
        while (
            self.prefetch
            and self.started <= self.turn
            and (self.reads.repeat or self.started + 1 < len(self.units))
        ):
            self._start(self.started + 1)

    def _start(self, turn: int) -> None:
        unit = self.units[turn % len(self.units)]
        slot = turn % len(self.buffers)
        self.started = turn
        memory, link = self.memory, self.memory.link
        entries = [self.reads.entries[index] for index in unit.entries]
        act_copies, offset = self._start_inputs(unit, slot)
        kv_copies, self.staged[slot] = self._stage_kv(unit, self.buffers[slot][offset:])
        later = self._later(unit)
        after = [entry.kv.written for entry in entries if entry.kv.written is not None]
        if act_copies:
            after = [link.fetch(act_copies, "act", after, later)]
        both = act_copies or kv_copies
        self.transfers[slot] = memory.link.fetch(kv_copies, "kv", after, later) if both else None

    def _start_inputs(self, unit: FetchUnit, slot: int) -> tuple[CopyList, int]:
        width = self.memory.shapes[unit.layer].input_dim or 0
        acts = _act_entries(unit, self.reads)
        tokens = sum(self.reads.entries[index].length for index in acts)
        inputs = self.buffers[slot][: tokens * width].view(tokens, width)
        self.inputs[slot] = inputs if acts else None
        self.near[slot] = {}
        copies: CopyList = []
        first = 0
        for index in acts:
            entry = self.reads.entries[index]
            if (copy := entry.kv.device[unit.layer]) is not None:
                self.near[slot][index] = copy
            else:
                source = entry.kv.host[unit.layer]
                assert source is not None, "an ACT block is in neither tier"
                copies.append(
                    (inputs[None, first : first + entry.length], source.keys[:, : entry.length])
                )
            first += entry.length
        return copies, tokens * width

    def _stage_kv(self, unit: FetchUnit, buffer: Tensor) -> tuple[CopyList, Staged]:
        shape = self.memory.shapes[unit.layer]
        copies: CopyList = []
        staged = Staged()
        offset = 0
        for index in unit.entries:
            entry = self.reads.entries[index]
            if unit.layer in entry.kv.acts:
                continue
            source = entry.kv.host[unit.layer]
            assert source is not None, "a KV block is not on the host"
            place = shape.lay_out(buffer[offset:], entry.length)
            copies += [
                (new, old[:, : entry.length])
                for new, old in zip(place.both, source.both, strict=True)
            ]
            staged.entries[index] = place
            offset += entry.length * shape.elements
        return copies, staged


def stored(shape: LayerShape, room: Tensor, new: tuple[Tensor, Tensor]) -> LayerKV:
    """A copy of new keys and values in `room`, where attention reads runs of tokens fast."""
    places = shape.lay_out(room, new[0].shape[1])
    for place, part in zip(places.both, new, strict=True):
        place.copy_(part)
    return places


def _act_entries(unit: FetchUnit, reads: Reads) -> list[int]:
    return [index for index in unit.entries if unit.layer in reads.entries[index].kv.acts]


def generated_bytes(memory: KVMemory, unit: FetchUnit, reads: Reads) -> int:
    tokens = sum(reads.entries[index].length for index in _act_entries(unit, reads))
    return tokens * memory.layer_bytes_per_token[unit.layer]
