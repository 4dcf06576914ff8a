"""What a policy of the memory is asked: three questions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import ClassVar, Self

import torch

from ttc.attention.pieces import Piece
from ttc.attention.plan import Staged
from ttc.checks import check_fields, check_positive
from ttc.memory.kv import LayerShape
from ttc.memory.manager import Memory
from ttc.tree.segment import Segment
from ttc.memory.storage import Storage

Paths = Sequence[Sequence[Segment]]
"""The segments of each branch, root to leaf."""

CUDA_HEADROOM = 0.1
"""The share of free CUDA memory that is left to activations when no budget is given."""


def to_bytes(gib: float | None) -> int | None:
    return None if gib is None else int(gib * 2**30)


def free_device_bytes(device: torch.device) -> int | None:
    """What a CUDA device has free now, PyTorch's unused memory included, less a tenth for
    activations.

    None elsewhere: on a CPU both tiers are the same memory, and moving KV would gain nothing.
    """
    if device.type != "cuda":
        return None
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int((torch.cuda.mem_get_info(device)[0] + cached) * (1 - CUDA_HEADROOM))


def machine_bytes() -> int:
    """The memory of this machine that KV may take: half of all there is."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


@dataclass
class Residency:
    """Answers as the policy that keeps everything on the device does; others answer in another way.

    A policy as configured holds no KV: `bind` makes a copy with a memory of its own.
    budget_gib: the most KV on the device, in GiB; None for no limit but the machine's.
    """

    budget_gib: float | None = None

    regenerates: ClassVar = False
    """Whether it keeps what keys and values are computed from, and so needs the model."""
    keeps_groups: ClassVar[bool] = False
    """Whether a group decodes its whole step before anything else happens."""

    memory: Memory = field(init=False, repr=False)
    writing: set[Storage] = field(init=False, repr=False, default_factory=set)
    """What passes write now. It stays on the device."""

    def __post_init__(self) -> None:
        check_fields(self, "memory.")
        self._check_positive("budget_gib")

    def _check_positive(self, *names: str) -> None:
        check_positive(self, "memory.", *names)

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

    # ---------------------------------------------------------------- how much room there is

    @property
    def roomy(self) -> bool:
        """Whether branches may stay at work while other passes run and other branches join."""
        return True

    def require(self, tokens: int) -> None:
        """Raise OutOfMemory unless the tree may grow by so many tokens."""
        self.memory.device.require(self.memory.bytes_of(tokens))

    def capacity_bytes(self) -> float:
        device, free_bytes = self.memory.device, free_device_bytes(self.memory.link.device)
        if device.budget_bytes is not None:
            return device.budget_bytes
        return machine_bytes() if free_bytes is None else device.used_bytes + free_bytes

    def fits(self, tokens: int, states: int) -> float:
        """How many times over there is room for so many tokens and recurrent states, in all."""
        nbytes = self.memory.bytes_of(tokens, states)
        return self.capacity_bytes() / nbytes if nbytes else inf

    def has_room(self, tokens: int, states: int) -> bool:
        """Whether KV of so many tokens and so many recurrent states are likely to fit beside what
        there is."""
        memory = self.memory
        nbytes = memory.bytes_of(tokens, states)
        used_bytes = memory.device.used_bytes + memory.host.used_bytes - memory.spare_bytes()
        return not nbytes or self.fits(tokens, states) >= 1 + used_bytes / nbytes

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
