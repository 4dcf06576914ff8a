"""What a residency policy decides."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Self
from weakref import ReferenceType, ref

import torch

from ttc.attention.entry import Entry, Reads, shared_entries
from ttc.checks import Options, PositiveFloat
from ttc.memory.kv import KV, LayerShape
from ttc.memory.manager import KVMemory
from ttc.memory.tiers import Block, Tier
from ttc.tree.segment import Segment

if TYPE_CHECKING:
    from ttc.attention.stream import KVReader

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
class Residency(Options, ABC):
    """Decides where new KV goes, which branches decode together, and how what is not on the device
    is read.

    A policy as configured holds no KV: the engine binds a copy of it to a memory of its own.
    budget_gib: the most KV and recurrent states on the device, in GiB; None for no limit but the
        machine's.
    """

    setting_of: ClassVar[str] = "memory."

    budget_gib: PositiveFloat | None = None

    regenerates: ClassVar = False
    """Whether it keeps what keys and values are computed from, and so needs the model."""

    block_tokens: int | None = field(init=False, repr=False, default=None)
    memory: KVMemory = field(init=False, repr=False)
    _others: list[ReferenceType[Residency]] = field(
        init=False, repr=False, compare=False, default_factory=list
    )
    """The policies of other models that keep KV in the same tiers."""

    def bind(self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device) -> Self:
        bound = replace(self)
        bound.memory = KVMemory(
            shapes, dtype, device, to_bytes(self.budget_gib), **self._memory_options()
        )
        return bound

    @abstractmethod
    def _memory_options(self) -> dict[str, Any]:
        """What `KVMemory` is told besides the budget of the device."""

    @property
    def device(self) -> Tier:
        return self.memory.device

    @property
    def state_bytes(self) -> int:
        return self.memory.states.nbytes

    # ---------------------------------------------------------------- two models

    def for_another_model(self) -> Residency:
        """A policy of this kind that holds no KV, for a second model."""
        return replace(self)

    def join(self, other: Residency) -> None:
        """Keep KV in the tiers of `other` from now on, where nothing is kept yet: two models, one
        account of bytes.

        One of the two is at work at a time and may use the whole budget: what the other keeps on
            the device leaves for the host as far as the room is needed, under policies that have a
            host tier.
        """
        mine, theirs = self.memory, other.memory
        mine.device = theirs.device
        mine.host = theirs.host
        mine.link = theirs.link
        mine.device.models += 1
        mine.host.models += 1
        self._others.append(ref(other))
        other._others.append(ref(self))

    def evictable(self) -> list[Block]:
        """What may leave the device while the model is not at work, the first to leave first."""
        return []

    def _idle(self) -> list[tuple[KVMemory, Block]]:
        """What the device holds for models in the same tiers, and may give up."""
        alive = [policy for other in self._others if (policy := other()) is not None]
        blocks = [(policy.memory, block) for policy in alive for block in policy.evictable()]
        return [(memory, block) for memory, block in blocks if memory.tier_bytes(block)[0]]

    # ---------------------------------------------------------------- the tree

    @abstractmethod
    def require(self, tokens: int, ends: int = 0, running: int = 0) -> None:
        """Raise `OutOfMemory` unless the tree may grow by `tokens` tokens and by states at so many
        ends of segments, while those of `running` sequences are computed on."""

    @abstractmethod
    def max_sequences(self, tokens: int, ends: int) -> int:
        """How many sequences a pass may compute side by side if their states are to fit; at least
        1."""

    def make_room(self, nbytes: int, keep: Set[Block] = frozenset()) -> bool:
        """Have `nbytes` free on the device, if all but `keep` may leave. Says whether they are."""
        return self.device.free_bytes >= nbytes

    def state_on_device(self) -> bool:
        """Whether the next state that is kept at a segment's end lies on the device."""
        return True

    def allocate(self, tokens: int, needed: Iterable[KV] = (), path: Sequence[KV] = ()) -> KV:
        """KV for a segment that a pass will fill, which reads `needed`. path: that of the segments
        before it."""
        return self.memory.allocate(tokens)

    def allocate_frozen(self, tokens: int, path: Sequence[KV] = ()) -> KV:
        """KV for a part of a tail that becomes a segment after those of `path`."""
        return self.allocate(tokens, path=path)

    # ---------------------------------------------------------------- a step

    keeps_groups: ClassVar[bool] = False
    """Whether a group decodes its whole step before anything else happens."""

    @property
    def roomy(self) -> bool:
        """Whether tails may stay where they are while other passes run and other branches join."""
        return True

    def fits(self, tokens: int, states: int) -> float:
        """How many times over there is room for so many tokens and recurrent states, in all."""
        nbytes = self.memory.bytes_of(tokens, states)
        return self.capacity_bytes() / nbytes if nbytes else inf

    def capacity_bytes(self) -> float:
        memory = self.memory
        if memory.device.budget_bytes is not None:
            return memory.device.budget_bytes
        free_bytes = free_device_bytes(memory.link.device)
        return machine_bytes() if free_bytes is None else memory.device.used_bytes + free_bytes

    def has_room(self, tokens: int, states: int) -> bool:
        """Whether KV of so many tokens and so many recurrent states are likely to fit beside what
        there is."""
        memory = self.memory
        nbytes = memory.bytes_of(tokens, states)
        used_bytes = memory.device.used_bytes + memory.host.used_bytes - memory.spare_bytes()
        return not nbytes or self.fits(tokens, states) >= 1 + used_bytes / nbytes

    @abstractmethod
    def groups(self, paths: Paths, capacity: int) -> list[list[int]]:
        """Which branches decode their step together, in order; each grows by at most `capacity`
        tokens. Raises OutOfMemory when no order would do."""

    def enter(self, paths: Paths, upcoming: Paths, capacity: int) -> KV:
        """Make ready for a group, `upcoming` being the next one. Returns its tails."""
        return self.memory.allocate(capacity, rows=len(paths))

    def leave(self, tails: KV) -> None:
        """The group has decoded its step."""
        self.memory.free(tails)

    def end_step(self) -> None:
        """All groups have decoded, or the step broke off."""
        return

    def entries(self, paths: Paths) -> list[Entry]:
        return shared_entries(paths, [1] * len(paths))

    @abstractmethod
    def stream(self, reads: Reads) -> KVReader | None:
        """How a plan reads what is not on the device; None when everything is."""
