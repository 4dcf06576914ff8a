"""What policies with two tiers share: what leaves for the host, and how it is read from there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from ttc.memory.kv import LayerKV, LayerShape
from ttc.memory.link import Transfer
from ttc.residency.base import to_bytes
from ttc.residency.beam_scheduling import balanced_rounds
from ttc.memory.manager import Memory
from ttc.attention.pieces import Piece
from ttc.attention.plan import Staged
from ttc.residency.base import Paths, Residency
from ttc.memory.storage import Storage

Unit = tuple[slice, Sequence[int]]
"""KV heads of a layer, and the numbers of the pieces, that are fetched together."""


@dataclass(frozen=True)
class Fetched:
    """A unit on its way to the device."""

    unit: Unit
    buffer: Tensor
    copies: dict[int, LayerKV]
    transfer: Transfer


@dataclass
class Offloading(Residency):
    """host_budget_gib: the most KV on the host, in GiB. link_gbps: on a CPU, slow the link down to
    so many 1e9 bytes a second. block_tokens: the most tokens of a storage. prefetch: fetch the next unit of
    a layer while one is attended.
    """

    host_budget_gib: float | None = None
    link_gbps: float | None = None
    block_tokens: int = 512
    prefetch: bool = True

    def memory_for(
        self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device
    ) -> Memory:
        budgets = to_bytes(self.budget_gib), to_bytes(self.host_budget_gib)
        return Memory(shapes, dtype, device, *budgets, self.link_gbps, self.block_tokens)

    # ---------------------------------------------------------------- three questions

    def groups(self, paths: Paths, tokens: int) -> list[list[int]]:
        """As many together as can write beside the buffers."""
        budget = self.memory.device.budget_bytes
        if budget is None:
            return super().groups(paths, tokens)
        storages = {segment.storage for path in paths for segment in path}
        most = max((storage.room for storage in storages), default=0)
        buffers = 2 * most * max(self.memory.layer_bytes)
        each = min(tokens, self.block_tokens) * self.memory.bytes_per_token
        return balanced_rounds(len(paths), max(1, (budget - buffers) // each))

    def make_room(self, nbytes: int) -> None:
        """What was used longest ago leaves."""
        for storage in self.memory.on_device():
            if self.memory.device.free_bytes >= nbytes:
                return
            if storage not in self.writing:
                self.memory.evict(storage, "evict")

    def read(self, layer: int, pieces: Sequence[Piece], absent: Sequence[int]) -> Iterator[Staged]:
        """Unit by unit through two buffers, or one where two do not fit."""
        units = self.units(layer, pieces, absent)
        begun: list[Fetched] = []
        try:
            for number, unit in enumerate(units):
                if not begun:
                    begun.append(self._begin(layer, pieces, unit))
                if self.prefetch and number + 1 < len(units):
                    following = units[number + 1]
                    nbytes = self._elements(layer, pieces, following) * self.memory.dtype.itemsize
                    if nbytes <= self.memory.device.free_bytes:
                        begun.append(self._begin(layer, pieces, following))
                self.memory.link.wait(begun[0].transfer)
                yield unit[0], begun[0].copies
                self.memory.unreserve(begun.pop(0).buffer)
        finally:
            for fetched in begun:
                self.memory.link.wait_and_ignore(fetched.transfer)
                self.memory.unreserve(fetched.buffer)

    def units(self, layer: int, pieces: Sequence[Piece], absent: Sequence[int]) -> list[Unit]:
        """A page at a time."""
        return [(slice(None), [index]) for index in absent]

    # ---------------------------------------------------------------- buffers

    def ready(self, found: Sequence[Piece]) -> None:
        """Have room for two buffers, before a plan knows what is on the device."""
        most = [
            self._elements(layer, found, unit)
            for layer in self.memory.layers
            for unit in self.units(layer, found, range(len(found)))
        ]
        self.make_room(2 * max(most, default=0) * self.memory.dtype.itemsize)

    def _elements(self, layer: int, pieces: Sequence[Piece], unit: Unit) -> int:
        shape = self.memory.shapes[layer]
        heads = len(range(shape.kv_heads)[unit[0]])
        tokens = sum(pieces[index].length for index in unit[1])
        return tokens * heads * (shape.key_dim + shape.value_dim)

    def _begin(self, layer: int, pieces: Sequence[Piece], unit: Unit) -> Fetched:
        shape, (heads, chosen) = self.memory.shapes[layer], unit
        count = len(range(shape.kv_heads)[heads])
        sizes = [self._elements(layer, pieces, (heads, [index])) for index in chosen]
        buffer = self.memory.reserve(sum(sizes))
        found: dict[int, LayerKV] = {}
        copies: list[tuple[Tensor, Tensor]] = []
        after: list[Transfer] = []
        for index, end, size in zip(chosen, accumulate(sizes), sizes, strict=True):
            piece = pieces[index]
            source = piece.kv.host[layer]
            assert source is not None, "KV to be read is in neither tier"
            place = shape.lay_out(buffer[end - size : end], piece.length, None, count)
            where = heads, slice(piece.first, piece.first + piece.length)
            copies += [(new, old[where]) for new, old in zip(place.both, source.both, strict=True)]
            after += [piece.kv.written] if piece.kv.written is not None else []
            found[index] = place
        return Fetched(unit, buffer, found, self.memory.link.fetch(copies, "stream", after))

    def send_to_host(self, storages: Sequence[Storage], layers: Sequence[int]) -> None:
        for storage in storages:
            if storage in self.memory.live:
                self.memory.evict(storage, "write-back", layers)
