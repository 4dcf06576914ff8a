"""HeadInfer: all KV on the host, fetched by head groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import ClassVar, Self

import torch

from ttc.attention.reader import Fetch, Reader, Reads, View
from ttc.checks import PositiveInt
from ttc.memory.kv import LayerShape
from ttc.memory.storage import Storage
from ttc.residency.base import Paths
from ttc.residency.offloading import Offloading
from ttc.residency.streaming_heads import load_streaming_heads


@dataclass
class Headwise(Offloading):
    """All KV on the host; head groups of one layer at a time on the device (HeadInfer section 2,
    Eq. 8; appendix D.1). Two of them lie in ping-pong buffers, beside what a step writes.

    head_group: KV heads fetched together; None for as many as fit the budget twice (adaptive).
    streaming_heads: approximate: a file of `python -m experiments.heads MODEL TEXT OUT`, made on a
        text like yours, that names heads which see the first and the last tokens of their branch
        alone, within the model's own window; these tokens stay on the device while a step decodes,
        if there is room (appendix D).
    sink_tokens: the first tokens that these heads see. window_tokens: the last ones.

    Use it where: one context is very long.
    """

    gives: ClassVar = {}
    """Heads that see a window alone read less than what is absent."""

    head_group: PositiveInt | None = None
    streaming_heads: str | None = None
    sink_tokens: PositiveInt = 64
    window_tokens: PositiveInt = 256

    streaming: frozenset[tuple[int, int]] = field(init=False, repr=False, default=frozenset())
    """Heads, each with its layer."""

    def bind(self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device) -> Self:
        bound = super().bind(shapes, dtype, device)
        if self.streaming_heads is not None:
            heads = [shape.kv_heads for shape in shapes]
            bound.streaming = load_streaming_heads(self.streaming_heads, heads)
        return bound

    # ---------------------------------------------------------------- what lies where

    def near(self, room: int, one_each: bool) -> Sequence[int] | None:
        return None if one_each else ()

    def state_on_device(self) -> bool:
        return False

    def leave(self, storages: Sequence[Storage]) -> None:
        super().leave(storages)
        for storage in storages:
            self.memory.evict(storage, "write-back")

    def buffer_bytes(self, paths: Paths) -> int:
        """One head of a layer, or what `head_group` asks for, of all tokens."""
        tokens = sum(len(s.tokens) for s in {segment for path in paths for segment in path})
        layers = zip(self.memory.shapes, self.memory.layer_bytes, strict=True)
        sizes = (
            tokens * n // shape.kv_heads * min(self.head_group or 1, shape.kv_heads)
            for shape, n in layers
        )
        return max(sizes, default=0)

    # ---------------------------------------------------------------- what is read

    def read(self, layer: int, reads: Reads, absent: Sequence[int]) -> list[Fetch]:
        size = self.group_size(layer, sum(reads.pieces[number].length for number in absent))
        near = tuple(number for number in absent if self._reaches(reads, number))
        units = []
        for streams, heads in self._head_runs(layer):
            for first in range(heads.start, heads.stop, size):
                group = slice(first, min(first + size, heads.stop))
                if not streams:
                    units.append(Fetch(layer, group, tuple(absent)))
                elif near:
                    units.append(Fetch(layer, group, near, self.view))
        return units

    def group_size(self, layer: int, tokens: int) -> int:
        """How many heads of so many tokens are fetched together."""
        heads = self.memory.shapes[layer].kv_heads
        if self.head_group is not None:
            return min(self.head_group, heads)
        if self.memory.device.budget_bytes is None:
            return heads
        head_bytes = tokens * self.memory.layer_bytes[layer] // heads
        return max(1, min(heads, int(self.memory.device.free_bytes) // (2 * head_bytes)))

    # ---------------------------------------------------------------- streaming heads

    @property
    def view(self) -> View:
        return View(self.sink_tokens, self.window_tokens)

    @property
    def views(self) -> Mapping[int, Sequence[tuple[slice, View]]]:
        return {
            layer: [(heads, self.view) for streams, heads in self._head_runs(layer) if streams]
            for layer in sorted({layer for layer, _ in self.streaming})
        }

    def kept(self, reads: Reads) -> Reader | None:
        if not self.streaming:
            return None
        device, size = self.memory.device, self.memory.dtype.itemsize
        units = [unit for unit in self.units(reads) if unit.view]
        nbytes = size * sum(Reader.elements(self.memory, unit, reads) for unit in units)
        if not units or nbytes > device.free_bytes:
            return None
        kept = Reader(self.memory, units, reads, keep=True)
        if device.free_bytes >= 2 * self.largest(self.units(reads, with_views=False), reads):
            return kept
        kept.close()
        return None

    def _reaches(self, reads: Reads, number: int) -> bool:
        piece = reads.pieces[number]
        return self.view.reaches(piece.start, piece.length, reads.earliest(piece))

    def _head_runs(self, layer: int) -> list[tuple[bool, slice]]:
        heads = range(self.memory.shapes[layer].kv_heads)
        runs = [
            (alike, list(run))
            for alike, run in groupby(heads, lambda head: (layer, head) in self.streaming)
        ]
        return [(streams, slice(run[0], run[-1] + 1)) for streams, run in runs]
