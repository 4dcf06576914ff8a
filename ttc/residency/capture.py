"""CAPTURE: some storages keep the inputs of K and V, which are computed again for each pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from ttc.attention.act_inputs import Regenerate
from ttc.memory.kv import LayerKV
from ttc.attention.pieces import Piece
from ttc.attention.plan import Staged
from ttc.residency.offloading import Offloading
from ttc.memory.storage import Storage


@dataclass
class Capture(Offloading):
    """act_share: of the storages, those that keep inputs, in every layer where these are smaller
    than keys and values."""

    act_share: float = 0.5

    regenerate: Regenerate | None = field(init=False, repr=False, default=None)
    made: int = field(init=False, repr=False, default=0)

    def begin(self, start: int, room: int) -> Storage:
        self.made += 1
        as_acts = int(self.made * self.act_share) > int((self.made - 1) * self.act_share)
        memory = self.memory
        acts = [
            layer
            for layer, shape in enumerate(memory.shapes)
            if as_acts and shape.input_dim and memory.act_bytes[layer] < memory.layer_bytes[layer]
        ]
        storage = memory.begin(start, room, acts)
        self.writing.add(storage)
        return storage

    def read(self, layer: int, pieces: Sequence[Piece], absent: Sequence[int]) -> Iterator[Staged]:
        acts = [index for index in absent if layer in pieces[index].kv.acts]
        yield from super().read(layer, pieces, [index for index in absent if index not in acts])
        for index in acts:
            piece = pieces[index]
            where = slice(piece.first, piece.first + piece.length)
            kept = piece.kv.device[layer] or piece.kv.host[layer]
            assert kept is not None and self.regenerate is not None
            self.memory.link.wait(piece.kv.written)
            inputs = kept.keys[0, where]
            if piece.kv.device[layer] is None:
                near = torch.empty_like(inputs, device=self.memory.link.device)
                self.memory.link.wait(self.memory.link.fetch([(near, inputs)], "acts"))
                inputs = near
            positions = torch.arange(piece.start, piece.start + piece.length, device=inputs.device)
            yield slice(None), {index: LayerKV(*self.regenerate(layer, inputs, positions))}
