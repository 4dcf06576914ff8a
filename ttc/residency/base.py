"""What a policy of the memory is asked: three questions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from math import inf
from typing import ClassVar, Self
from weakref import ReferenceType, ref

import torch

from ttc.attention.pieces import Piece, pieces
from ttc.attention.reader import Fetch, Reader, Reads, Regenerate
from ttc.checks import Answering, Options, PositiveFloat, is_list
from ttc.errors import InvalidInput
from ttc.memory.kv import LayerShape
from ttc.memory.manager import Memory
from ttc.memory.storage import Storage
from ttc.memory.tiers import Block
from ttc.tree.segment import Segment

Paths = Sequence[Sequence[Segment]]
"""The segments of each branch, root to leaf."""

CUDA_HEADROOM = 0.1
"""The share of free CUDA memory that is left to activations when no budget is given."""


def to_bytes(gib: float | None) -> int | None:
    return None if gib is None else int(gib * 2**30)


def free_device_bytes(device: torch.device) -> int | None:
    """What a CUDA device has free now, PyTorch's unused memory included, less a tenth for
    activations. None on a CPU: both tiers are the same memory there."""
    if device.type != "cuda":
        return None
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int((torch.cuda.mem_get_info(device)[0] + cached) * (1 - CUDA_HEADROOM))


def machine_bytes() -> int:
    """What of this machine's memory KV may take."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _covers(units: Sequence[Fetch], layer: int, reads: Reads, absent: Sequence[int]) -> bool:
    """Whether units of a layer have all pieces that are absent, and no others."""
    alike = all(isinstance(unit, Fetch) and unit.layer == layer for unit in units)
    return alike and {piece for unit in units for piece in unit.pieces} == {*absent}


@dataclass
class Residency(Options, Answering):
    """Answers as the policy that keeps everything on the device does; others answer in another way.

    A policy as configured holds no KV: `bind` makes a copy with a memory of its own.
    budget_gib: the most KV and recurrent states on the device, in GiB; None for no limit on a CPU,
        and nine tenths of what is free on CUDA (`resident` sets none). Over several GPUs the sum.
    """

    setting_of: ClassVar[str] = "memory."
    gives: ClassVar = {
        "order": (lambda blocks, _: is_list(blocks), "a list of blocks, the first to leave first"),
        "make_room": (lambda free, _: isinstance(free, bool), "True or False"),
        "read": (
            lambda units, given: is_list(units) and _covers(units, *given),
            "Fetch(layer, heads, pieces) for this layer and all absent pieces",
        ),
    }

    budget_gib: PositiveFloat | None = None

    regenerates: ClassVar = False
    """Whether it needs the model, to compute keys and values again."""
    keeps_groups: ClassVar[bool] = False
    """Whether a group decodes its whole step before anything else happens."""

    regenerate: Regenerate | None = field(init=False, repr=False, compare=False, default=None)
    """Computes KV again; None where nothing is kept for it."""
    memory: Memory = field(init=False, repr=False)
    writing: dict[Block, int | None] = field(init=False, repr=False, default_factory=dict)
    """What passes write now: the tokens that were there before, or None where a branch decodes and
    has to find its own on the device."""

    others: list[ReferenceType[Residency]] = field(
        init=False, repr=False, compare=False, default_factory=list
    )
    """The policies of other models in the same tiers."""

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

    # ---------------------------------------------------------------- two models

    def for_another_model(self) -> Residency:
        """A policy of this kind that holds no KV, for a second model."""
        return replace(self)

    def join(self, other: Residency) -> None:
        """Keep KV in the tiers of `other` from now on, where nothing is kept yet: two models, one
        account of bytes. Whichever is at work may use all of it: what the other has on the device
        leaves for the host as far as the room is needed."""
        mine, theirs = self.memory, other.memory
        mine.device, mine.host, mine.link = theirs.device, theirs.host, theirs.link
        mine.device.models += 1
        mine.host.models += 1
        self.others.append(ref(other))
        other.others.append(ref(self))

    def neighbours(self) -> list[Residency]:
        return [policy for other in self.others if (policy := other()) is not None]

    def order(self) -> list[Block]:
        """What may leave the device, the first to leave first: here nothing."""
        return []

    def crowd_out(self, nbytes: int) -> None:
        """Have what other models keep on the device leave until so many bytes are free."""
        for policy in self.neighbours():
            for block in policy.order():
                if self.memory.device.free_bytes >= nbytes:
                    return
                policy.memory.evict(block, "evict")

    # ---------------------------------------------------------------- three questions

    def groups(self, paths: Paths, tokens: int) -> list[list[int]]:
        """Who decodes together, in order; each grows by at most so many tokens."""
        return [list(range(len(paths)))]

    def make_room(self, nbytes: int) -> bool:
        """What leaves, so that so many bytes are free on the device? Says whether they are."""
        return self.memory.device.free_bytes >= nbytes

    def read(self, layer: int, reads: Reads, absent: Sequence[int]) -> list[Fetch]:
        """In which units are those pieces of a layer read that rows see and the device lacks?"""
        return []

    # ---------------------------------------------------------------- how much room there is

    @property
    def roomy(self) -> bool:
        """Whether branches may stay at work while other passes run and other branches join."""
        return True

    def require(self, tokens: int, ends: int = 0) -> None:
        """Raise OutOfMemory unless the tree may grow by so many tokens, and by states at so many
        ends, beside one that runs."""
        self.memory.device.require(self.memory.bytes_of(tokens, ends + 1))

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
        """Whether so many tokens and states are likely to fit beside what there is."""
        memory = self.memory
        nbytes = memory.bytes_of(tokens, states)
        used_bytes = memory.device.used_bytes + memory.host.used_bytes - memory.spare_bytes()
        return not nbytes or self.fits(tokens, states) >= 1 + used_bytes / nbytes

    # ---------------------------------------------------------------- what is written

    def begin(self, after: Segment, room: int, one_each: bool) -> Storage:
        """A storage for tokens that passes are about to write. one_each: a branch decodes them."""
        storage = self.memory.begin(after.end, room, near=self.near(room, one_each))
        self.writing[storage] = None if one_each else 0
        return storage

    def near(self, room: int, one_each: bool) -> Sequence[int] | None:
        """The layers of such a storage that lie on the device, None for all."""
        return None

    def resume(self, storage: Storage, one_each: bool) -> bool:
        """Whether passes can write on in a storage: who decodes finds it on the device."""
        if one_each and (storage.acts or not storage.is_resident):
            return False
        storage.on_host = min(storage.on_host, storage.filled)
        self.writing.setdefault(storage, None if one_each else storage.filled)
        return True

    def state_on_device(self) -> bool:
        """Whether the next state at a segment's end lies on the device."""
        return True

    def settled(self, storages: Sequence[Storage]) -> None:
        """The tree knows of all that is written in these, where branches may go on."""
        for storage in storages:
            if self.writing.get(storage) is not None:
                self.writing[storage] = storage.filled

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
        self.try_step(paths, tokens)
        return self.whole_groups(paths, tokens)

    def whole_groups(self, paths: Paths, tokens: int) -> list[list[int]]:
        """`groups`. Raises InvalidInput unless each branch is in one of them: without its turn a
        branch would wait for ever."""
        groups, count = self.groups(paths, tokens), len(paths)
        if sorted(number for group in groups or () for number in group) != list(range(count)):
            raise InvalidInput(
                f"{type(self).__name__}.groups gave {groups!r:.80} for {count} branches; give "
                f"lists in which each number from 0 to {count - 1} stands once"
            )
        return groups

    def try_step(self, paths: Paths, tokens: int) -> None:
        """Raise OutOfMemory unless there is room for a step."""
        memory = self.memory
        if memory.device.budget_bytes is None and memory.host.budget_bytes is None:
            return
        with self.trial() as policy:
            for group in policy.whole_groups(paths, tokens):
                policy.try_group([paths[number] for number in sorted(group)], tokens)

    @contextmanager
    def trial(self) -> Iterator[Self]:
        """A copy of the policy that may do what it likes: all of it is undone."""
        policy = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict | list | set):
                setattr(policy, name, copy(value))
        with ExitStack() as undone:
            for memory in (self.memory, *(other.memory for other in self.neighbours())):
                undone.enter_context(memory.trial())
            self.memory.make_room = policy.make_room
            try:
                yield policy
            finally:
                self.memory.make_room = self.make_room

    def try_group(self, paths: Paths, tokens: int) -> None:
        """Take the room that a group takes, and leave what stays of it."""
        states = self.memory.states
        states.claim(len(paths))
        self.enter(paths)
        begun = []
        ends = [path[-1].end if path else 0 for path in paths]
        for path in paths:
            after = path[-1] if path else Segment([])
            left = tokens
            if path and path[-1].is_last and self.resume(path[-1].storage, one_each=True):
                left -= path[-1].storage.left
            while left > 0:
                begun.append(self.begin(after, left, one_each=True))
                left -= begun[-1].room
        reads = Reads(self.pieces(paths, [1] * len(paths), ends), ends, decodes=True)
        if (reader := self.stream(reads)) is not None:
            reader.close()
        self.keep_states(len(paths))
        states.give(len(paths))
        self.leave(begun)

    def keep_states(self, ends: int) -> None:
        states = self.memory.states
        for _ in range(ends if states.shape is not None else 0):
            states.keep(states.buffer(), 0, self.state_on_device())

    def enter(self, paths: Paths) -> None:
        """These decode together from now on."""

    def end_step(self) -> None:
        """All groups have decoded, or the step broke off."""

    # ---------------------------------------------------------------- a plan

    def pieces(self, paths: Paths, counts: Sequence[int], ends: Sequence[int]) -> list[Piece]:
        """What the rows of a pass attend."""
        return pieces(paths, counts, ends)

    def stream(self, reads: Reads) -> Reader | None:
        """How a plan reads what is not on the device; None when everything is there."""
        return None
