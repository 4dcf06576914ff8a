"""HeadInfer: all KV on the host, fetched by head groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Self

import torch

from ttc.attention.entry import Reads
from ttc.attention.stream import FetchUnit, KVReader, View
from ttc.checks import PositiveInt
from ttc.memory.kv import KV, LayerShape
from ttc.residency.base import Paths
from ttc.residency.offloading import Offloading
from ttc.residency.streaming_heads import load_streaming_heads


@dataclass
class Headwise(Offloading):
    """Head groups of one layer at a time through ping-pong buffers (HeadInfer section 2, Eq. 8;
    appendix D.1).

    The device holds two head groups of one layer, and the tails of the branches that decode.
    head_group: KV heads fetched together; None for as many as fit the budget twice (adaptive).
    streaming_heads: approximate, off by default: a file of `ttc.residency.streaming_heads` that
        names heads which see the first `sink_tokens` and the last `window_tokens` tokens of their
        branch alone, within the model's own window; these tokens stay on the device while a step
        decodes, if there is room (appendix D).
    """

    head_group: PositiveInt | None = None
    streaming_heads: str | None = None
    sink_tokens: PositiveInt = 64
    window_tokens: PositiveInt = 256

    _streaming: frozenset[tuple[int, int]] = field(init=False, repr=False, default=frozenset())

    def bind(self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device) -> Self:
        bound = super().bind(shapes, dtype, device)
        if self.streaming_heads is not None:
            bound._streaming = load_streaming_heads(
                self.streaming_heads, [shape.kv_heads for shape in shapes]
            )
        return bound

    def for_another_model(self) -> Self:
        return replace(self, streaming_heads=None)

    def allocate(self, tokens: int, needed: Iterable[KV] = (), path: Sequence[KV] = ()) -> KV:
        return self.memory.allocate(tokens, device_layers=0)

    def require_host(self, tokens: int, ends: int, device_bytes: float = 0) -> None:
        self.memory.host.require(self.memory.bytes_of(tokens, ends))

    def state_on_device(self) -> bool:
        return False

    def buffer_bytes(self, paths: Paths) -> int:
        """One head of a layer, or what `head_group` asks for, of all tokens."""
        tokens = sum(
            len(segment.tokens) for segment in {segment for path in paths for segment in path}
        )
        layers = zip(self.memory.shapes, self.memory.layer_bytes_per_token, strict=True)
        sizes = (
            tokens * n // shape.kv_heads * min(self.head_group or 1, shape.kv_heads)
            for shape, n in layers
        )
        return max(sizes, default=0)

    def units(self, layer: int, reads: Reads, missing: Sequence[int]) -> list[FetchUnit]:
        if not missing:
            return []
        entries = reads.entries
        size = self.group_size(layer, sum(entries[index].length for index in missing))
        view = self._view
        near = tuple(
            index
            for index in missing
            if view.reaches(
                entries[index].start, entries[index].length, reads.earliest(entries[index])
            )
        )
        units = []
        for streaming, heads in self._head_runs(layer):
            for first in range(heads.start, heads.stop, size):
                group = slice(first, min(first + size, heads.stop))
                if not streaming:
                    units.append(FetchUnit(layer, group, tuple(missing)))
                elif near:
                    units.append(FetchUnit(layer, group, near, view=view))
        return units

    def group_size(self, layer: int, tokens: int) -> int:
        heads = self.memory.shapes[layer].kv_heads
        if self.head_group is not None:
            return min(self.head_group, heads)
        if self.device.budget_bytes is None:
            return heads
        head_bytes = tokens * self.memory.layer_bytes_per_token[layer] // heads
        return max(1, min(heads, int(self.device.free_bytes) // (2 * head_bytes)))

    # ---------------------------------------------------------------- streaming heads

    @property
    def views(self) -> Mapping[int, Sequence[tuple[slice, View]]]:
        views = {}
        for layer in sorted({layer for layer, _ in self._streaming}):
            if layer >= self.memory.fixed_layers:
                runs = self._head_runs(layer)
                views[layer] = [(heads, self._view) for streaming, heads in runs if streaming]
        return views

    @property
    def _view(self) -> View:
        return View(self.sink_tokens, self.window_tokens)

    def _head_runs(self, layer: int) -> list[tuple[bool, slice]]:
        heads = range(self.memory.shapes[layer].kv_heads)
        runs = [
            (alike, list(run))
            for alike, run in groupby(heads, lambda head: (layer, head) in self._streaming)
        ]
        return [(streaming, slice(run[0], run[-1] + 1)) for streaming, run in runs]

    def kept(self, reads: Reads) -> KVReader | None:
        if not self._streaming:
            return None
        device = self.device
        units = [unit for unit in self.all_units(reads) if unit.view]
        elements = sum(KVReader.elements(self.memory, unit, reads) for unit in units)
        if not units or elements * self.memory.itemsize > device.free_bytes:
            return None
        kept = KVReader(self.memory, units, reads, keep=True)
        if device.free_bytes >= 2 * self.largest(self.all_units(reads, with_views=False), reads):
            return kept
        kept.close()
        return None
