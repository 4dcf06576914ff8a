"""Reading a cache of KV blocks and ACT blocks: both fetched through two buffers, KV of ACT blocks generated there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ttc.attention.entry import Entry
from ttc.attention.inputs import Regenerate
from ttc.attention.stream import KVReader, Staged, Unit
from ttc.memory.kv import KV, LayerKV
from ttc.memory.manager import KVMemory
from ttc.memory.tails import Tails


class CaptureReader(KVReader):
    """Mini-batches of a layer, each a unit (CAPTURE, section IV-B). A buffer holds a unit's KV blocks and the inputs of
    its ACT blocks; there are two, so that one is filled while the other is computed on. The KV generated of a unit has
    room of its own. All blocks of a unit are regenerated in one call.

    entries: what the plan attends. regenerate: see `Regenerate`.
    """

    def __init__(
        self,
        memory: KVMemory,
        units: Sequence[Unit],
        entries: Sequence[Entry],
        regenerate: Regenerate | None,
        *,
        repeat: bool = False,
        prefetch: bool = True,
    ):
        self.entries, self.regenerate = entries, regenerate
        self.inputs: list[Tensor | None] = [None, None]
        self.near: list[dict[int, LayerKV]] = [{}, {}]  # ACT blocks on the device when a unit was begun
        self.places = dict[tuple[int, ...], Tensor]()
        generated = max((generated_bytes(memory, unit, entries) for unit in units), default=0)
        self.room = memory.reserve(generated // memory.itemsize)
        try:
            runs = [(entry.kv, entry.length) for entry in entries]
            super().__init__(memory, units, runs, repeat=repeat, prefetch=prefetch)
        except BaseException:
            memory.unreserve(self.room)
            raise

    @staticmethod
    def elements(memory: KVMemory, unit: Unit, runs: Sequence[tuple[KV, int]], tails: Tails | None) -> int:
        """The numbers that a unit fetches, or copies from ACT blocks on the device."""
        shape = memory.shapes[unit.layer]
        return sum(
            tokens * (shape.as_inputs if unit.layer in kv.acts else shape).elements
            for kv, tokens in (runs[index] for index in unit.entries)
        )

    def read(self, layer: int) -> Iterator[tuple[Unit, dict[int, LayerKV]]]:
        """The units of a layer, one after the other: (unit, entry index -> keys and values)."""
        self.layer = layer
        for _ in range(self.per_layer[layer]):
            unit, staged = self._current()
            yield unit, staged.entries | self._generated(unit)
            self.turn += 1
            self._start_ahead()

    def close(self) -> None:
        super().close()
        self.memory.unreserve(self.room)
        self.room, self.inputs, self.near = self.room[:0], [], []

    def _acts(self, unit: Unit) -> list[int]:
        return [index for index in unit.entries if unit.layer in self.entries[index].kv.acts]

    def _generated(self, unit: Unit) -> dict[int, LayerKV]:
        """Keys and values of the unit's ACT blocks (KV Gen)."""
        slot = self.turn % len(self.buffers)
        inputs, near = self.inputs[slot], self.near[slot]
        if inputs is None:
            return {}
        assert self.regenerate is not None, "there are ACT blocks, and nothing to generate their KV by"
        acts, first = self._acts(unit), 0
        ends = dict[int, slice]()
        for index in acts:
            entry = self.entries[index]
            ends[index] = slice(first, first + entry.length)
            if (copy := near.get(index)) is not None:
                inputs[ends[index]] = copy.keys[0, : entry.length]
            first += entry.length
        generated = self.regenerate(unit.layer, inputs, self._positions(acts))
        room = self.memory.shapes[unit.layer].lay_out(self.room, first)  # where attention reads runs of tokens fast
        for place, new in zip(room.both, generated, strict=True):
            place.copy_(new)
        return {index: LayerKV(room.keys[:, span], room.values[:, span]) for index, span in ends.items()}

    def _positions(self, acts: Sequence[int]) -> Tensor:
        """The original positions of the tokens of these entries; the same in every layer and pass."""
        key = tuple(acts)
        if key not in self.places:
            spans = [torch.arange(e.start, e.start + e.length) for e in (self.entries[index] for index in acts)]
            self.places[key] = torch.cat(spans).to(self.memory.link.device)
        return self.places[key]

    def _current(self) -> tuple[Unit, Staged]:
        """The unit whose turn it is, arrived; the next one is asked for before that, so that the link never rests."""
        if self.started < self.turn:
            self._start(self.turn)
        self._start_ahead()
        slot = self.turn % len(self.buffers)
        self.memory.link.wait(self.transfers[slot])
        return self.units[self.turn % len(self.units)], self.staged[slot]

    def _start_ahead(self) -> None:
        """Ask for what both buffers have room for: the unit whose turn it is, and the next one."""
        while self.prefetch and self.started <= self.turn and (self.repeat or self.started + 1 < len(self.units)):
            self._start(self.started + 1)

    def _start(self, turn: int) -> None:
        unit, slot = self.units[turn % len(self.units)], turn % len(self.buffers)
        self.started = turn
        memory, layer, buffer = self.memory, unit.layer, self.buffers[slot]
        shape, width, acts = memory.shapes[layer], memory.shapes[layer].input_dim or 0, self._acts(unit)
        tokens = sum(self.entries[index].length for index in acts)
        inputs = buffer[: tokens * width].view(tokens, width)
        self.inputs[slot], self.near[slot] = inputs if acts else None, {}
        act_copies, kv_copies = list[tuple[Tensor, Tensor]](), list[tuple[Tensor, Tensor]]()
        staged, first, offset, later = Staged(), 0, tokens * width, self._later(unit)
        after = [kv.written for kv, _ in (self.runs[index] for index in unit.entries) if kv.written is not None]
        for index in unit.entries:
            kv, length = self.runs[index]
            source = kv.host[layer]
            if layer in kv.acts:
                if (copy := kv.device[layer]) is not None:
                    self.near[slot][index] = copy
                else:
                    assert source is not None, "an ACT block is in neither tier"
                    act_copies.append((inputs[None, first : first + length], source.keys[:, :length]))
                first += length
            else:
                assert source is not None, "a KV block is not on the host"
                place = shape.lay_out(buffer[offset:], length)
                kv_copies += [(new, old[:, :length]) for new, old in zip(place.both, source.both, strict=True)]
                staged.entries[index] = place
                offset += length * shape.elements
        self.staged[slot] = staged
        if act_copies:
            after = [memory.link.fetch(act_copies, "act", after, later)]
        self.transfers[slot] = memory.link.fetch(kv_copies, "kv", after, later) if kv_copies or act_copies else None


def generated_bytes(memory: KVMemory, unit: Unit, entries: Sequence[Entry]) -> int:
    """What the KV takes that is generated of a unit's ACT blocks."""
    acts = (entries[index] for index in unit.entries if unit.layer in entries[index].kv.acts)
    return sum(entry.length for entry in acts) * memory.layer_bytes_per_token[unit.layer]
