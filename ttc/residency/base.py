"""What a residency policy decides, and what all policies with two tiers share."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence, Set
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import ceil
from typing import ClassVar, Self
from weakref import ReferenceType, ref

import torch

from ttc.attention.plan import Entry, shared_entries
from ttc.attention.stream import KVReader, Unit, View
from ttc.checks import check_fields
from ttc.errors import InvalidInput, UnsupportedModel
from ttc.memory.kv import KV, LayerShape
from ttc.memory.manager import KVMemory, Tier
from ttc.memory.tails import Tails
from ttc.residency.grouping import balanced_sizes
from ttc.tree.segment import Segment

Paths = Sequence[Sequence[Segment]]
"""The segments of each branch, root to leaf."""


CUDA_HEADROOM = 0.1
"""The share of free CUDA memory that is left to activations when no budget is given."""


def to_bytes(gib: float | None) -> int | None:
    """Whole bytes of a budget in GiB."""
    return None if gib is None else int(gib * 2**30)


def free_device_bytes(device: torch.device) -> int | None:
    """What a CUDA device has free at this moment, PyTorch's unused memory included, less a tenth for activations.

    None elsewhere: on a CPU both tiers are the same memory, and moving KV between them would gain nothing.
    """
    if device.type != "cuda":
        return None
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int((torch.cuda.mem_get_info(device)[0] + cached) * (1 - CUDA_HEADROOM))


def machine_bytes() -> int:
    """The memory of this machine that KV may take: half of all there is, for the rest of the machine needs some too."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


@dataclass
class Residency(ABC):
    """Decides where new KV goes, which branches decode together, and how what is not on the device is read.

    A policy as configured holds no KV: the engine binds a copy of it to a memory of its own.
    budget_gib: the most KV on the device, in GiB; None for no limit but the machine's.
    """

    budget_gib: float | None = None

    memory: KVMemory = field(init=False, repr=False)
    _others: list[ReferenceType[Residency]] = field(init=False, repr=False, compare=False, default_factory=list)
    """The policies of other models that keep KV in the same tiers."""

    def __post_init__(self) -> None:
        check_fields(self, "memory.")
        self._check_positive("budget_gib")

    def _check_positive(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InvalidInput(f"memory.{name}={value} must be positive, or null for no limit")

    def bind(self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device) -> Self:
        """A copy of this policy that governs KV of these shapes."""
        bound = copy(self)
        bound.memory = self._make_memory(shapes, dtype, device)
        bound._others = []
        return bound

    def for_another_model(self) -> Self:
        """A policy of this kind that holds no KV, for a model beside this one's."""
        return replace(self)

    def join(self, other: Residency) -> None:
        """Keep KV in the tiers of `other` from now on, where nothing is kept yet: two models, one account of bytes.

        Only one of the two models may be at work at a time. It may use the whole budget: what the other one keeps on
        the device leaves for the host as far as the room is needed, under policies that have a host tier.
        """
        mine, theirs = self.memory, other.memory
        mine.device, mine.host, mine.link, mine.states = theirs.device, theirs.host, theirs.link, theirs.states
        mine.device.models += 1
        mine.host.models += 1
        self._others.append(ref(other))
        other._others.append(ref(self))

    def evictable(self) -> list[KV]:
        """Segments that may leave the device while the model is not at work, the first to leave first."""
        return []

    def _idle(self) -> list[tuple[KVMemory, KV]]:
        """What the device holds for models in the same tiers, and may give up."""
        found = []
        for policy in [other() for other in self._others]:
            for kv in [] if policy is None else policy.evictable():
                if policy is not None and policy.memory.tier_bytes(kv)[0]:
                    found.append((policy.memory, kv))
        return found

    @abstractmethod
    def _make_memory(self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device) -> KVMemory: ...

    # ---------------------------------------------------------------- the tree

    block_tokens: int | None = field(init=False, repr=False, default=None)

    @abstractmethod
    def require(self, tokens: int) -> None:
        """Raise `OutOfMemory` unless the tree may grow by `tokens` tokens."""

    @abstractmethod
    def allocate(self, tokens: int, needed: Iterable[KV] = (), path: Sequence[KV] = ()) -> KV:
        """KV for a segment that a pass will fill, which reads `needed`. path: that of the segments before it."""

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

    def capacity_bytes(self) -> float:
        """KV that there is room for in all: the device's budget, else what it has in use or free."""
        memory = self.memory
        if memory.device.budget_bytes is not None:
            return memory.device.budget_bytes
        free_bytes = free_device_bytes(memory.link.device)
        return machine_bytes() if free_bytes is None else memory.device.used_bytes + free_bytes

    @abstractmethod
    def groups(self, paths: Paths, capacity: int) -> list[list[int]]:
        """Which branches decode their step together, in order; each grows by at most `capacity` tokens.

        Raises OutOfMemory when no order would do.
        """

    @abstractmethod
    def enter(self, paths: Paths, upcoming: Paths, capacity: int) -> KV:
        """Make ready for a group, `upcoming` being the next one. Returns its tails."""

    def leave(self, tails: KV) -> None:
        """The group has decoded its step."""
        self.memory.free(tails)

    def end_step(self) -> None:
        """All groups have decoded, or the step broke off."""
        return

    def entries(self, paths: Paths) -> list[Entry]:
        """What one row of each path attends."""
        return shared_entries(paths, [1] * len(paths))

    # ---------------------------------------------------------------- a pass

    @abstractmethod
    def stream(
        self, entries: Sequence[Entry], positions: Sequence[int], tails: Tails | None, *, repeat: bool
    ) -> KVReader | None:
        """How a plan reads what is not on the device; None when everything is."""


@dataclass
class Offloading(Residency):
    """A policy with two tiers. With no budget given, its capacity is what a CUDA device has free, read again at every
    prompt and step; on a CPU there is no limit then.

    host_budget_gib: the most KV on the host, in GiB. link_gbps: on a CPU, slow the link down to so many 1e9 bytes a
    second. block_tokens: the most tokens of a segment, which is the unit that moves. prefetch: fetch what comes next
    while computing.
    """

    host_budget_gib: float | None = None
    link_gbps: float | None = None
    block_tokens: int = 512
    prefetch: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_positive("host_budget_gib", "link_gbps", "block_tokens")

    def _make_memory(self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device) -> KVMemory:
        if not shapes:
            raise UnsupportedModel(
                f"{type(self).__name__} moves keys and values between two tiers, and this model has none: it keeps "
                "recurrent states alone, which stay on the device; use ttc.Resident()"
            )
        budgets = to_bytes(self.budget_gib), to_bytes(self.host_budget_gib)
        memory = KVMemory(shapes, dtype, device, *budgets, self.link_gbps)
        memory.states = Tier("recurrent states", None)  # beside the budget: they never leave the device
        return memory

    def read_capacity(self) -> None:
        """With no budget given, let the device hold what it has free at this moment."""
        if self.budget_gib is None and (free := free_device_bytes(self.memory.link.device)) is not None:
            self.memory.device.budget_bytes = self.memory.device.used_bytes + free

    @property
    def roomy(self) -> bool:
        return self.memory.device.budget_bytes is None

    def capacity_bytes(self) -> float:
        """What the host has room for, which holds all that the device does not."""
        return machine_bytes() if self.memory.host.budget_bytes is None else self.memory.host.budget_bytes

    def require(self, tokens: int) -> None:
        self.read_capacity()
        self.require_host(tokens)

    def require_host(self, tokens: int, beside_bytes: float = 0) -> None:
        """Raise OutOfMemory unless the host has room for what `tokens` new tokens may send there.

        beside_bytes: what the device needs for tails and fetched blocks meanwhile. What does not fit the device goes to
        the host: segments in whole blocks, and more of them where others have to be read through buffers; at most
        everything. Host copies of what is on the device count as free, for they can be given up.
        """
        memory, segments = self.memory, [kv for kv in self.memory.live if not kv.pinned]
        new_bytes = tokens * memory.bytes_per_token
        excess = new_bytes + beside_bytes - memory.device.free_bytes
        if excess > 0 or not all(map(memory.is_resident, segments)):
            excess += self.block_tokens * (2 * max(memory.layer_bytes_per_token) + memory.bytes_per_token)
        everything = new_bytes + sum(memory.tier_bytes(kv)[0] for kv in segments) + self.idle_bytes()
        memory.host.require(
            int(min(everything, max(0, excess))), beside_bytes=memory.host.used_bytes - memory.spare_bytes()
        )

    def groups(self, paths: Paths, capacity: int) -> list[list[int]]:
        """All together if their tails fit beside the buffers, else in as few rounds as that takes."""
        self.read_capacity()
        most, tail_bytes = len(paths), capacity * self.tail_bytes_per_token
        if (budget := self.memory.device.budget_bytes) is not None:
            buffer_bytes = self.buffer_bytes(paths)
            most = min(most, (budget - 2 * buffer_bytes) // tail_bytes)
            if most < 1:  # one branch at a time, and one buffer
                self.memory.device.require(tail_bytes + buffer_bytes, beside_bytes=0)
        sizes = balanced_sizes(len(paths), ceil(len(paths) / max(1, most)))
        self.require_host(capacity * len(paths), max(sizes) * tail_bytes)
        return [list(range(end - size, end)) for size, end in zip(sizes, accumulate(sizes), strict=True)]

    @property
    def tail_bytes_per_token(self) -> int:
        """What a token of a tail takes on the device."""
        return self.memory.bytes_per_token

    def buffer_bytes(self, paths: Paths) -> int:
        """The smallest buffer through which the segments of `paths` can be read: here one block of one layer."""
        longest = max((len(segment.tokens) for path in paths for segment in path), default=0)
        return longest * max(self.memory.layer_bytes_per_token)

    def make_room(self, nbytes: int, keep: Set[KV] = frozenset()) -> bool:
        """Evict segments until `nbytes` fit on the device, nothing of `keep`; none if they would not fit even then.
        What another model keeps leaves first: it is not read before that model is at work again. Says whether they fit
        now."""
        if self.memory.device.free_bytes >= nbytes:
            return True
        idle_bytes = self.idle_bytes()
        if self.leaving(nbytes - idle_bytes, keep, self.eviction_order())[1] < nbytes - idle_bytes:
            return False
        self.crowd_out(nbytes)
        leaving, _ = self.leaving(nbytes, keep, self.eviction_order())
        for kv in leaving:
            self.memory.evict(kv, "evict")
        return True

    def idle_bytes(self) -> int:
        """What other models keep on the device and may give up."""
        return sum(memory.tier_bytes(kv)[0] for memory, kv in self._idle())

    def crowd_out(self, nbytes: float) -> None:
        """Evict what other models keep on the device until `nbytes` fit, or nothing of it is left."""
        for memory, kv in self._idle():
            if self.memory.device.free_bytes >= nbytes:
                return
            memory.evict(kv, "evict")

    def evictable(self) -> list[KV]:
        return [kv for kv in self.memory.live if not kv.pinned]

    def write_ahead(self, nbytes: int, keep: Set[KV], order: Sequence[KV]) -> None:
        """Start the write-back of what will leave when `nbytes` are needed, as far as the host has room, so that then
        nothing waits for it. The device copies stay until then."""
        for kv in self.leaving(nbytes, keep, order)[0]:
            if kv.tokens * self.memory.bytes_per_token <= self.memory.host.free_bytes:
                self.memory.write_back(kv, "evict")

    def leaving(self, nbytes: int, keep: Set[KV], order: Sequence[KV]) -> tuple[list[KV], float]:
        """The first of `order`, less `keep`, that leave the device for `nbytes` to be free, and what is free then."""
        chosen, free_bytes = [], self.memory.device.free_bytes
        for kv in order:
            if free_bytes >= nbytes:
                break
            if kv not in keep and (size := self.memory.tier_bytes(kv)[0]):
                chosen.append(kv)
                free_bytes += size
        return chosen, free_bytes

    def eviction_order(self) -> list[KV]:
        """Segments, the first to leave first: here the oldest."""
        return self.evictable()

    def stream(
        self, entries: Sequence[Entry], positions: Sequence[int], tails: Tails | None, *, repeat: bool
    ) -> KVReader | None:
        for entry in entries:
            self.memory.link.wait(entry.kv.fetched)  # a step that broke off may have left a prefetch under way
        runs = [(entry.kv, entry.length) for entry in entries]
        kept = self.kept(entries, positions, tails) if repeat else None
        units, largest = self._units(entries, positions, tails, kept is None)
        prefetch, device = self.prefetch, self.memory.device
        while device.free_bytes < (wanted := largest * (2 if prefetch and len(units) > 1 else 1)):
            if self.make_room(wanted):
                units, largest = self._units(entries, positions, tails, kept is None)  # what left is read from the host
            elif prefetch:
                prefetch = False  # one buffer may fit where two do not
            else:
                break
        if kept is None and not units and not self.views:
            return None
        try:
            return KVReader(
                self.memory, units, runs, tails, repeat=repeat, prefetch=prefetch, kept=kept, views=self.views
            )
        except BaseException:
            if kept is not None:
                kept.close()
            raise

    def _units(
        self, entries: Sequence[Entry], positions: Sequence[int], tails: Tails | None, with_views: bool = True
    ) -> tuple[list[Unit], int]:
        """What has to be fetched for one pass, with or without what streaming heads see, and the bytes of the largest
        unit."""
        layers = range(len(self.memory.shapes))
        units = [
            unit
            for layer in layers
            for unit in self.units(layer, entries, positions, self._missing(layer, entries, positions))
            if with_views or unit.view is None
        ]
        units = units if tails is None else self.with_tails(units, tails)
        runs = [(entry.kv, entry.length) for entry in entries]
        largest = max((KVReader.elements(self.memory, unit, runs, tails) for unit in units), default=0)
        return units, largest * self.memory.itemsize

    @property
    def views(self) -> Mapping[int, Sequence[tuple[slice, View]]]:
        """For each layer its heads that do not see everything: here none."""
        return {}

    def kept(self, entries: Sequence[Entry], positions: Sequence[int], tails: Tails | None) -> KVReader | None:
        """What is fetched once and kept while a plan runs again and again: here nothing."""
        return None

    def units(
        self, layer: int, entries: Sequence[Entry], positions: Sequence[int], missing: Sequence[int]
    ) -> list[Unit]:
        """The units in which a layer's missing entries (by index) are fetched: here each by itself."""
        return [Unit(layer, slice(None), (index,)) for index in missing]

    def with_tails(self, units: list[Unit], tails: Tails) -> list[Unit]:
        """Add the tails to the units where they are not on the device: here they always are."""
        return units

    def _missing(self, layer: int, entries: Sequence[Entry], positions: Sequence[int]) -> list[int]:
        """The entries that the device lacks and the layer lets some row see."""
        shape = self.memory.shapes[layer]
        return [
            i
            for i, entry in enumerate(entries)
            if entry.kv.readable(layer) is None
            and (shape.sees_all or entry.start + entry.length > shape.first_seen(min(positions[entry.rows])))
        ]
