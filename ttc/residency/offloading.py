"""What policies with two tiers share: what leaves for the host, and how it is read from there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import ClassVar

import torch

from ttc.attention.reader import Fetch, Reader, Reads, View
from ttc.checks import PositiveFloat, PositiveInt
from ttc.errors import on_failure
from ttc.memory.kv import LayerShape
from ttc.memory.manager import Memory
from ttc.memory.storage import Storage
from ttc.memory.tiers import Block
from ttc.residency.base import Paths, Residency, free_device_bytes, machine_bytes, to_bytes
from ttc.residency.beam_scheduling import balanced_rounds
from ttc.tree.segment import Segment


@dataclass
class Offloading(Residency):
    """A policy with two tiers. With no budget given, its capacity is what a CUDA device has free,
    read again at every step; on a CPU there is no limit then.

    host_budget_gib: the most KV and states on the host, in GiB.
    link_gbps: on a CPU, slow the link down to so many 1e9 bytes a second.
    block_tokens: the most tokens of a storage, which is the unit that moves.
    prefetch: fetch what comes next while computing.
    """

    host_budget_gib: PositiveFloat | None = None
    link_gbps: PositiveFloat | None = None
    block_tokens: PositiveInt = 512
    prefetch: bool = True

    def memory_for(
        self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device
    ) -> Memory:
        budgets = to_bytes(self.budget_gib), to_bytes(self.host_budget_gib)
        return Memory(shapes, dtype, device, *budgets, self.link_gbps, self.block_tokens)

    def read_capacity(self) -> None:
        """With no budget given, let the device hold what it has free now."""
        device = self.memory.device
        free_bytes = free_device_bytes(self.memory.link.device)
        if self.budget_gib is None and free_bytes is not None:
            device.budget_bytes = min(device.ceiling_bytes, device.used_bytes + free_bytes)

    @property
    def roomy(self) -> bool:
        return self.memory.device.budget_bytes is None

    def capacity_bytes(self) -> float:
        budget = self.memory.host.budget_bytes
        return machine_bytes() if budget is None else budget

    def require(self, tokens: int, ends: int = 0) -> None:
        self.read_capacity()
        memory = self.memory
        if memory.device.budget_bytes is None and memory.host.budget_bytes is None:
            return
        with self.trial() as policy:
            memory.states.claim(1)
            while tokens > 0:
                tokens -= policy.begin(Segment([]), tokens, one_each=False).room
            policy.keep_states(ends)

    def state_on_device(self) -> bool:
        return self.memory.device.free_bytes >= self.memory.states.nbytes

    # ---------------------------------------------------------------- who decodes together

    def begin_step(self, paths: Paths, tokens: int) -> list[list[int]]:
        self.read_capacity()
        return super().begin_step(paths, tokens)

    def groups(self, paths: Paths, tokens: int) -> list[list[int]]:
        """All together if what they write fits beside the buffers, else in as few rounds as that
        takes."""
        budget = self.memory.device.budget_bytes
        own_bytes = tokens * self.own_token_bytes + self.memory.states.nbytes
        if budget is None or not own_bytes:
            return super().groups(paths, tokens)
        buffer_bytes = self.buffer_bytes(paths)
        together = min(len(paths), (budget - self.buffers * buffer_bytes) // own_bytes)
        if together < 1:  # one branch at a time, and one buffer
            self.memory.device.require(own_bytes + buffer_bytes, used_bytes=0)
        return balanced_rounds(len(paths), max(1, together))

    buffers: ClassVar = 2
    """How many buffers a group has beside it, if there is room."""

    @property
    def own_token_bytes(self) -> int:
        """What a token takes that a branch decodes."""
        return self.memory.bytes_per_token

    def buffer_bytes(self, paths: Paths) -> int:
        """The smallest buffer to read these through: here one page of one layer."""
        storages = {segment.storage for path in paths for segment in path}
        most = max((storage.filled for storage in storages), default=0)
        return most * max(self.memory.layer_bytes, default=0)

    # ---------------------------------------------------------------- what leaves

    def near(self, room: int, one_each: bool) -> Sequence[int] | None:
        """All; where the device is full, a prompt's KV goes to the host at once."""
        nbytes = self.memory.room(room) * self.memory.bytes_per_token
        return None if one_each or self.make_room(nbytes) else ()

    def resume(self, storage: Storage, one_each: bool) -> bool:
        """Under a budget nobody decodes where more is kept than there is room left for."""
        crowded = self.memory.device.budget_bytes is not None and storage.filled > storage.left
        return not (one_each and crowded) and super().resume(storage, one_each)

    def make_room(self, nbytes: int) -> bool:
        """What was used longest ago leaves; nothing does where that is not enough."""
        self.crowd_out(nbytes)
        chosen, free_bytes = self.leaving(nbytes)
        if free_bytes < nbytes:
            return False
        for block in chosen:
            self.evict(block)
        return True

    def order(self) -> list[Block]:
        """Recurrent states, then what was used longest ago."""
        by_use = sorted(self.memory.live, key=lambda storage: storage.used_at)
        return [*self.memory.states.live, *by_use]

    def leaving(
        self, nbytes: int, order: Sequence[Block] | None = None
    ) -> tuple[list[Block], float]:
        """What has to leave so that so many bytes are free, and how many are then."""
        chosen: list[Block] = []
        free_bytes = self.memory.device.free_bytes
        if free_bytes >= nbytes:
            return chosen, free_bytes
        for block in self.order() if order is None else order:
            stays = block in self.writing and self.writing[block] is None
            if not stays and (size := self.memory.tier_bytes(block)[0]):
                chosen.append(block)
                free_bytes += size
            if free_bytes >= nbytes:
                break
        return chosen, free_bytes

    def evict(self, block: Block, pieces: Sequence[int] | None = None) -> None:
        with self.as_written(block):
            self.memory.evict(block, "evict", pieces)

    @contextmanager
    def as_written(self, block: Block) -> Iterator[None]:
        """A storage as it is before the next pass writes to it."""
        before = self.writing.get(block)
        if before is None or not isinstance(block, Storage):
            yield
            return
        filled, block.filled = block.filled, before
        try:
            yield
        finally:
            block.filled = filled

    def write_ahead(self, nbytes: int, order: Sequence[Block] | None = None) -> None:
        """Begin to write back what will leave when so many bytes are needed."""
        order = self.order() if order is None else order
        for block in self.leaving(nbytes, [b for b in order if b not in self.writing])[0]:
            if self.memory.tier_bytes(block)[0] <= self.memory.host.free_bytes:
                self.memory.write_back(block, "evict")

    # ---------------------------------------------------------------- what is read

    def stream(self, reads: Reads) -> Reader | None:
        self.memory.wait(piece.kv for piece in reads.pieces)
        kept = self.kept(reads) if reads.decodes else None
        units = self.units(reads, kept is None)
        prefetch = self.prefetch
        while True:
            nbytes = self.largest(units, reads) * (2 if prefetch and len(units) > 1 else 1)
            if self.memory.device.free_bytes >= nbytes:
                break
            if self.make_room(nbytes):
                units = self.units(reads, kept is None)  # what left is read from the host
            elif prefetch:
                prefetch = False  # one buffer may fit where two do not
            else:
                break
        if kept is None and not units and not self.views:
            return None
        with nullcontext() if kept is None else on_failure(kept.close):
            return Reader(self.memory, units, reads, prefetch, kept=kept, views=self.views)

    def units(self, reads: Reads, with_views: bool = True) -> list[Fetch]:
        """Of all layers. with_views: also those of heads that do not see everything."""
        units = []
        for layer, shape in enumerate(self.memory.shapes):
            absent = [
                number
                for number, piece in enumerate(reads.pieces)
                if piece.kv.readable(layer) is None and reads.sees(shape, piece)
            ]
            if absent:
                units += self.read(layer, reads, absent)
        return [unit for unit in units if with_views or unit.view is None]

    def largest(self, units: Sequence[Fetch], reads: Reads) -> int:
        elements = (Reader.elements(self.memory, unit, reads) for unit in units)
        return max(elements, default=0) * self.memory.dtype.itemsize

    def read(self, layer: int, reads: Reads, absent: Sequence[int]) -> list[Fetch]:
        """A page at a time."""
        return [Fetch(layer, slice(None), (number,)) for number in absent]

    @property
    def views(self) -> Mapping[int, Sequence[tuple[slice, View]]]:
        """For each layer its heads that do not see everything: here none."""
        return {}

    def kept(self, reads: Reads) -> Reader | None:
        """What is read once for a whole step: here nothing."""
        return None
