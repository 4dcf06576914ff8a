"""What a policy of the memory is asked: three questions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch

from ttc.memory.kv import LayerShape
from ttc.residency.base import to_bytes
from ttc.segments.memory import Memory
from ttc.segments.pieces import Piece
from ttc.segments.plan import Staged
from ttc.segments.segment import Segment
from ttc.segments.storage import Storage

Paths = Sequence[Sequence[Segment]]


@dataclass
class Policy:
    """Everything on the device. Others answer the questions in another way.

    A policy as configured holds no KV: `bind` makes a copy with a memory of its own.
    budget_gib: the most KV on the device, in GiB; None for no limit but the machine's.
    """

    budget_gib: float | None = None

    memory: Memory = field(init=False, repr=False)
    writing: set[Storage] = field(init=False, repr=False, default_factory=set)
    """What passes write now. It stays on the device."""

    def bind(self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device) -> Self:
        bound = replace(self)
        bound.memory = bound.memory_for(shapes, dtype, device)
        bound.memory.make_room = bound.make_room
        bound.writing = set()
        return bound

    def memory_for(
        self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device
    ) -> Memory:
        budget_bytes = to_bytes(self.budget_gib)
        return Memory(shapes, dtype, device, budget_bytes, 0, one_block=True)

    def begin(self, start: int, room: int) -> Storage:
        """A storage for tokens that are about to be written."""
        storage = self.memory.begin(start, room)
        self.writing.add(storage)
        return storage

    def resume(self, storage: Storage) -> bool:
        """Whether a storage is where passes can write on in it. What the host has of it is of no
        use from then on."""
        if None in storage.device:
            return False
        self.memory.forget_on_host(storage)
        self.writing.add(storage)
        return True

    def free(self, storage: Storage) -> None:
        self.writing.discard(storage)
        self.memory.free(storage)

    # ---------------------------------------------------------------- three questions

    def groups(self, paths: Paths, tokens: int) -> list[list[int]]:
        """Who decodes together, in order; each grows by at most so many tokens."""
        return [list(range(len(paths)))]

    def make_room(self, nbytes: int) -> None:
        """Have so many bytes free on the device, if that can be: what leaves?"""

    def read(self, layer: int, pieces: Sequence[Piece], absent: Sequence[int]) -> Iterator[Staged]:
        """In which units are those pieces read that attention does not find on the device?"""
        yield from ()

    # ---------------------------------------------------------------- what a step waits for

    def enter(self, paths: Paths) -> None:
        """These decode together from now on."""

    def ready(self, found: Sequence[Piece]) -> None:
        """A plan of these pieces is about to be made; what is on the device then stays there while
        it runs."""

    def leave(self, storages: Sequence[Storage]) -> None:
        """Nobody writes on in these now."""
        self.writing.difference_update(storages)
