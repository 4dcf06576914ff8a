"""What a policy of the memory is asked: three questions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Self

import torch

from ttc.checks import check_fields, check_positive
from ttc.memory.kv import LayerShape
from ttc.residency.base import to_bytes
from ttc.segments.memory import Memory
from ttc.segments.pieces import Piece, pieces
from ttc.segments.reader import Reader, Reads, Unit
from ttc.segments.segment import Segment
from ttc.segments.storage import Storage

Paths = Sequence[Sequence[Segment]]
"""The segments of each branch, root to leaf."""


@dataclass
class Policy:
    """Everything on the device. Others answer the questions in another way.

    A policy as configured holds no KV: `bind` makes a copy with a memory of its own.
    budget_gib: the most KV on the device, in GiB; None for no limit but the machine's.
    """

    budget_gib: float | None = None

    memory: Memory = field(init=False, repr=False)
    writing: dict[Storage, int | None] = field(init=False, repr=False, default_factory=dict)
    """What passes write now: the tokens that were there before, or None where a branch writes one
    at each pass and has to find its own on the device."""

    def __post_init__(self) -> None:
        check_fields(self, "memory.")
        self.check_positive("budget_gib")

    def check_positive(self, *names: str) -> None:
        check_positive(self, "memory.", *names)

    def bind(self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device) -> Self:
        bound = replace(self)
        bound.memory = bound.memory_for(shapes, dtype, device)
        bound.memory.make_room = bound.make_room
        return bound

    def memory_for(
        self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device
    ) -> Memory:
        budget_bytes = to_bytes(self.budget_gib)
        return Memory(shapes, dtype, device, budget_bytes, 0, one_block=True)

    # ---------------------------------------------------------------- three questions

    def groups(self, paths: Paths, tokens: int) -> list[list[int]]:
        """Who decodes together, in order; each grows by at most so many tokens."""
        return [list(range(len(paths)))]

    def make_room(self, nbytes: int) -> bool:
        """Have so many bytes free on the device, if that can be: what leaves? Says whether they
        are."""
        return self.memory.device.free_bytes >= nbytes

    def read(self, layer: int, reads: Reads, absent: Sequence[int]) -> list[Unit]:
        """In which units are those pieces of a layer read that rows see and the device lacks?"""
        return []

    # ---------------------------------------------------------------- what is written

    def begin(self, after: Segment, room: int, one_each: bool) -> Storage:
        """A storage for tokens that passes are about to write. one_each: whether a branch decodes
        them."""
        storage = self.memory.begin(after.end, room)
        self.writing[storage] = None if one_each else 0
        return storage

    def resume(self, storage: Storage, one_each: bool) -> bool:
        """Whether a storage is where passes can write on in it: who decodes finds it on the
        device."""
        if one_each and (storage.acts or None in storage.device):
            return False
        storage.on_host = min(storage.on_host, storage.filled)
        self.writing.setdefault(storage, None if one_each else storage.filled)
        return True

    def passed(self, storages: Sequence[tuple[Storage, int]]) -> None:
        """Branches that decode have written storages up to so many tokens."""

    def leave(self, storages: Sequence[Storage]) -> None:
        """Nobody writes on in these now."""
        for storage in storages:
            self.writing.pop(storage, None)

    def free(self, storage: Storage) -> None:
        self.writing.pop(storage, None)
        self.memory.free(storage)

    # ---------------------------------------------------------------- a step

    def begin_step(self, paths: Paths, tokens: int) -> list[list[int]]:
        """The groups of a step in which each branch grows by at most so many tokens. Raises
        OutOfMemory where it could not be done, before anything is."""
        self.require(paths, tokens)
        return self.groups(paths, tokens)

    def expect(self, tokens: int, branches: int) -> None:
        """So many branches are about to compute so many tokens together, before they decode."""

    def require(self, paths: Paths, tokens: int) -> None:
        """Raise OutOfMemory unless there is room for a step; nothing is changed."""
        memory = self.memory
        if memory.device.budget_bytes is None and memory.host.budget_bytes is None:
            return
        with self.trial() as policy:
            for group in policy.groups(paths, tokens):
                policy.try_group([paths[number] for number in group], tokens)

    @contextmanager
    def trial(self) -> Iterator[Self]:
        """A copy of the policy that may do what it likes: all of it is undone."""
        policy = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict | list | set):
                setattr(policy, name, copy(value))
        with self.memory.trial():
            self.memory.make_room = policy.make_room
            try:
                yield policy
            finally:
                self.memory.make_room = self.make_room

    def try_group(self, paths: Paths, tokens: int) -> None:
        """Take the room that a group takes."""
        self.enter(paths)
        begun = []
        ends = [path[-1].end if path else 0 for path in paths]
        for path in paths:
            after = path[-1] if path else Segment([])
            left = tokens
            if path and path[-1].is_last and self.resume(path[-1].storage, one_each=True):
                left -= path[-1].storage.room - path[-1].storage.filled
            while left > 0:
                begun.append(self.begin(after, left, one_each=True))
                left -= begun[-1].room
        reads = Reads(self.pieces(paths, [1] * len(paths), ends), ends, decodes=True)
        if (reader := self.stream(reads)) is not None:
            reader.close()
        self.leave(begun)

    def enter(self, paths: Paths) -> None:
        """These decode together from now on."""

    def end_step(self) -> None:
        """All groups have decoded, or the step broke off."""

    # ---------------------------------------------------------------- a plan

    def pieces(self, paths: Paths, counts: Sequence[int], ends: Sequence[int]) -> list[Piece]:
        """What the rows of a pass attend (see `segments.pieces`)."""
        return pieces(paths, counts, ends)

    def stream(self, reads: Reads) -> Reader | None:
        """How a plan reads what is not on the device; None when everything is there."""
        return None
