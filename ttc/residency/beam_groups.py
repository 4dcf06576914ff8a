"""Locality-aware beam scheduling: branches run in groups whose KV fits, a whole step each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Self

import torch

from ttc.errors import OutOfMemory
from ttc.memory import KV, LayerShape
from ttc.plan import Entry, private_entries
from ttc.residency.base import Offloading, Paths, balanced_sizes

CUDA_HEADROOM = 0.1
"""The share of free CUDA memory that is left to activations when no budget is given."""


@dataclass
class BeamGroups(Offloading):
    """Each group decodes its whole step with its KV resident, so KV moves once a step, not once a token (LBS
    section 4). What leaves is written back while the next group decodes; the capacity is read again at every step.

    shared: a block that branches of a group share is moved and stored once (inter-beam locality); off, each has a copy
    of its own. prefetch: groups of equal size, the next one's blocks fetched into the room that is left.
    """

    block_tokens: int = 128
    shared: bool = True

    needed_bytes: int = field(init=False, repr=False, default=0)
    """What all steps needed and did not find on the device, each block once: no order of work moves less."""
    _uses: dict[KV, list[int]] = field(init=False, repr=False, default_factory=dict)
    _group: int = field(init=False, repr=False, default=0)
    _last: int = field(init=False, repr=False, default=0)
    _copies: dict[KV, list[KV]] = field(init=False, repr=False, default_factory=dict)

    def bind(self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device) -> Self:
        bound = super().bind(shapes, dtype, device)
        bound._uses, bound._copies = {}, {}
        return bound

    # ---------------------------------------------------------------- where KV goes

    def allocate(self, tokens: int, needed: Iterable[KV] = ()) -> KV:
        roomy = self.make_room(tokens * self.memory.bytes_per_token, needed)
        return self.memory.allocate(tokens, device_layers=None if roomy else 0)

    def allocate_frozen(self, tokens: int) -> KV:
        """On the host while other groups wait for the room; the next step reads it anyway after them."""
        nbytes = tokens * self.memory.bytes_per_token
        roomy = self._group == self._last and self.make_room(nbytes, [kv for kv in self._uses if self._next(kv) < inf])
        return self.memory.allocate(tokens, device_layers=None if roomy else 0)

    def eviction_order(self) -> list[KV]:
        """What is read latest leaves first; of what this step does not read any more, the oldest."""
        return sorted(super().eviction_order(), key=self._next, reverse=True)

    def _next(self, kv: KV) -> float:
        """The next group that reads `kv`, as this step's plan has it."""
        return min((use for use in self._uses.get(kv, ()) if use >= self._group), default=inf)

    # ---------------------------------------------------------------- a step

    def groups(self, paths: Paths, capacity: int) -> list[list[int]]:
        self.require(capacity * len(paths))
        self._read_capacity()
        memory, tail_bytes = self.memory, capacity * self.memory.bytes_per_token
        kv_blocks = [[segment.storage for segment in path] for path in paths]
        self.needed_bytes += sum(memory.missing_bytes(kv) for kv in {kv for blocks in kv_blocks for kv in blocks})
        budget = inf if memory.device.budget_bytes is None else memory.device.budget_bytes

        def size(kv: KV) -> int:
            return kv.tokens * memory.bytes_per_token

        def schedule(limits: Sequence[int] | None = None) -> list[list[int]]:
            return schedule_beams(kv_blocks, size, tail_bytes, budget, memory.is_resident, limits, self.shared)

        groups = schedule()
        if self.prefetch and len(groups) > 1:
            balanced = schedule(balanced_sizes(len(paths), len(groups)))
            groups = balanced if len(balanced) == len(groups) else groups
        self._uses = {}
        for index, group in enumerate(groups):
            for kv in {kv for beam in group for kv in kv_blocks[beam]}:
                self._uses.setdefault(kv, []).append(index)
        self._group, self._last = -1, len(groups) - 1
        return groups

    def enter(self, paths: Paths, upcoming: Paths, capacity: int) -> KV:
        memory = self.memory
        self._group += 1
        needed = list(dict.fromkeys(segment.storage for path in paths for segment in path))
        tail_bytes = capacity * len(paths) * memory.bytes_per_token
        private = not self.shared and self._last > 0
        if private:
            self.make_room(tail_bytes + sum(len(s.tokens) for path in paths for s in path) * memory.bytes_per_token)
        else:
            self.make_room(tail_bytes + sum(map(memory.missing_bytes, needed)), needed)
        tails = memory.allocate(capacity, rows=len(paths))
        try:
            if private:
                needed = self._copy_for_each(paths)
            for kv in needed:
                memory.fetch(kv, "group")
            if self.prefetch and self.shared:
                self._prefetch(upcoming, needed)
            for kv in needed:
                memory.settle(kv)
        except BaseException:
            self.leave(tails)
            raise
        return tails

    def leave(self, tails: KV) -> None:
        super().leave(tails)
        for copies in self._copies.values():
            for kv in copies:
                self.memory.free(kv)
        self._copies = {}
        if self._group == self._last:
            self._uses = {}

    def entries(self, paths: Paths) -> list[Entry]:
        if not self._copies:
            return super().entries(paths)
        return private_entries(paths, [1] * len(paths), self._copies)

    def _prefetch(self, upcoming: Paths, needed: Sequence[KV]) -> None:
        coming = dict.fromkeys(segment.storage for path in upcoming for segment in path)
        for kv in coming:
            if (missing := self.memory.missing_bytes(kv)) and self.make_room(missing, [*needed, *coming]):
                self.memory.fetch(kv, "prefetch")

    def _copy_for_each(self, paths: Paths) -> list[KV]:
        for path in paths:
            for segment in path:
                self._copies.setdefault(segment.storage, []).append(self.memory.replicate(segment.storage, "group"))
        return [kv for copies in self._copies.values() for kv in copies]

    def _read_capacity(self) -> None:
        """With no budget given, a CUDA device's capacity for KV is what it has free at this moment."""
        if self.budget_gib is None and self.memory.link.device.type == "cuda":
            device = self.memory.link.device
            cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
            free = torch.cuda.mem_get_info(device)[0] + cached
            self.memory.device.budget_bytes = self.memory.device.used_bytes + int(free * (1 - CUDA_HEADROOM))


def schedule_beams(
    kv_blocks: Sequence[Sequence[KV]],
    block_bytes: Callable[[KV], int],
    tail_bytes: int,
    budget: float,
    resident: Callable[[KV], bool] = lambda kv: False,
    limits: Sequence[int] | None = None,
    shared: bool = True,
) -> list[list[int]]:
    """LBS Algorithm 1: groups of beams, grown by the largest overlap of blocks.

    kv_blocks: the blocks of each beam, beams in depth-first order, which breaks ties. tail_bytes: what a beam adds in
    the step. A group is full at `budget` bytes, each block counted once (once per beam unless `shared`), where the
    paper fixes its size from the largest beam; or at the number of beams that `limits` gives it. Overlap counts with
    the group's blocks and with those on the device already: `resident` for the first group, then what the group before
    it read. So the first beam of a group is not arbitrary, and what is there is used before it has to leave.
    Raises OutOfMemory when one beam alone exceeds the budget.
    """
    unused = list(range(len(kv_blocks)))
    groups: list[list[int]] = []
    held = {kv for blocks in kv_blocks for kv in blocks if resident(kv)}
    while unused:
        cur: list[int] = []
        union: set[KV] = set()
        used = 0
        limit = limits[len(groups)] if limits is not None and len(groups) < len(limits) else len(unused)
        while unused and len(cur) < limit:
            best = max(unused, key=lambda i: _overlap(kv_blocks[i], union | held, block_bytes))
            added = sum(block_bytes(kv) for kv in kv_blocks[best] if not shared or kv not in union) + tail_bytes
            if used + added > budget:
                break
            cur.append(best)
            unused.remove(best)
            union.update(kv_blocks[best])
            used += added
        if not cur:
            raise OutOfMemory(
                f"the device KV budget of {budget:,.0f} bytes is too small for one branch's step: its blocks and tail "
                f"take {added:,}; a budget of {added:,} bytes ({added / 2**30:.4g} GiB) would do, or use shorter steps "
                "or memory=paged"
            )
        groups.append(cur)
        held = union
    return groups


def _overlap(blocks: Sequence[KV], union: set[KV], block_bytes: Callable[[KV], int]) -> int:
    return sum(block_bytes(kv) for kv in blocks if kv in union)
