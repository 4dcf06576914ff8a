"""Locality-aware beam scheduling: branches run in groups whose KV fits, a whole step each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import inf
from typing import ClassVar, Self

import torch

from ttc.attention.entry import Entry
from ttc.attention.plan import private_entries
from ttc.memory.kv import KV, LayerShape
from ttc.memory.manager import Block
from ttc.memory.states import State
from ttc.memory.tails import mirror
from ttc.residency.base import Paths
from ttc.residency.beam_scheduling import balanced_grouping, schedule_beams
from ttc.residency.offloading import Offloading


@dataclass
class BeamGroups(Offloading):
    """Each group decodes its whole step with its KV resident, so KV moves once a step, not once a token (LBS
    section 4). What has to leave for the next group is written back while the one before it decodes, and so are the
    tokens that a group makes where another one follows; the capacity is read again at every step.

    shared: a block that branches of a group share is moved and stored once (inter-beam locality); off, each has a copy
    of its own. prefetch: groups of equal size, the next one's blocks (or copies) fetched into the room that is left.
    """

    block_tokens: int = 128
    shared: bool = True

    keeps_groups: ClassVar[bool] = True

    needed_bytes: int = field(init=False, repr=False, default=0)
    """What all steps needed and did not find on the device, each block once: no order of work moves less."""
    _uses: dict[Block, list[int]] = field(init=False, repr=False, default_factory=dict)
    _group: int = field(init=False, repr=False, default=0)
    _last: int = field(init=False, repr=False, default=0)
    _copies: dict[KV, list[KV]] = field(init=False, repr=False, default_factory=dict)
    _ahead: dict[KV, list[KV]] = field(init=False, repr=False, default_factory=dict)
    """Copies for the next group."""

    def bind(self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device) -> Self:
        bound = super().bind(shapes, dtype, device)
        bound._uses, bound._copies, bound._ahead = {}, {}, {}
        return bound

    # ---------------------------------------------------------------- where KV goes

    def allocate(self, tokens: int, needed: Iterable[KV] = (), path: Sequence[KV] = ()) -> KV:
        roomy = self.make_room(tokens * self.memory.bytes_per_token, set(needed))
        return self.memory.allocate(tokens, device_layers=None if roomy else 0)

    def allocate_frozen(self, tokens: int, path: Sequence[KV] = ()) -> KV:
        """On the host while other groups wait for the room; the next step reads it anyway after them."""
        nbytes = tokens * self.memory.bytes_per_token
        read = {kv for kv in self._uses if isinstance(kv, KV) and self._next(kv) < inf}
        roomy = self._group == self._last and self.make_room(nbytes, read)
        return self.memory.allocate(tokens, device_layers=None if roomy else 0)

    def state_on_device(self) -> bool:
        return self._group == self._last and super().state_on_device()

    def eviction_order(self) -> list[Block]:
        """What is read latest leaves first; of what this step does not read any more, the oldest."""
        return self._order(self._group)

    def _order(self, group: int) -> list[Block]:
        """The eviction order once `group` is next."""
        return sorted(super().eviction_order(), key=lambda kv: self._next(kv, group), reverse=True)

    def _next(self, kv: Block, group: int | None = None) -> float:
        """The next group, from `group` or this one on, that reads `kv`, as this step's plan has it."""
        first = self._group if group is None else group
        return min((use for use in self._uses.get(kv, ()) if use >= first), default=inf)

    # ---------------------------------------------------------------- a step

    def groups(self, paths: Paths, capacity: int) -> list[list[int]]:
        self.read_capacity()
        memory, tail_bytes = self.memory, self.memory.tail_bytes(capacity)
        kv_blocks = [[segment.storage for segment in path] for path in paths]
        seen = self._seen(paths)
        missing_bytes = sum(memory.missing_bytes(kv, layers) for kv, layers in seen.items())
        lacking = sum(state.device is None for state in _states(paths))
        budget = inf if memory.device.budget_bytes is None else memory.device.budget_bytes

        def size(kv: KV) -> int:
            return self._seen_bytes(kv, seen[kv])

        def resident(kv: KV) -> bool:
            return not memory.missing_bytes(kv, seen[kv])

        groups = schedule_beams(kv_blocks, size, tail_bytes, budget, resident, self.shared)
        if self.prefetch and len(groups) > 1:
            balanced = balanced_grouping(kv_blocks, size, tail_bytes, budget, resident, self.shared)
            # beams taken out of their order may fill the device better, though rarely
            groups = balanced if len(balanced) <= len(groups) else groups
        # with several groups all that the device holds may have to leave
        beside_bytes = len(paths) * tail_bytes + missing_bytes if len(groups) == 1 else inf
        self.require_host(capacity * len(paths), len(paths), beside_bytes)
        self.needed_bytes += missing_bytes + lacking * memory.states.nbytes
        self._uses = {}
        for index, group in enumerate(groups):
            read: set[Block] = {kv for beam in group for kv in kv_blocks[beam]}
            for block in read | _states([paths[beam] for beam in group]).keys():
                self._uses.setdefault(block, []).append(index)
        self._group, self._last = -1, len(groups) - 1
        return groups

    def enter(self, paths: Paths, upcoming: Paths, capacity: int) -> KV:
        memory = self.memory
        self._group += 1
        seen = self._seen(paths)
        tail_bytes, states = memory.tail_bytes(capacity, len(paths)), _states(paths).keys()
        private = not self.shared and self._last > 0
        lacking = Counter(segment.storage for path in paths for segment in path) if private else Counter[KV]()
        if private:
            self._copies, self._ahead = self._ahead, {}
            lacking -= Counter({kv: len(copies) for kv, copies in self._copies.items()})
            self.make_room(tail_bytes + sum(n * self._seen_bytes(kv, seen[kv]) for kv, n in lacking.items()))
        else:
            missing_bytes = sum(memory.missing_bytes(*block) for block in seen.items())
            self._make_room_beside(seen, states, tail_bytes + missing_bytes)
        tails = memory.allocate(capacity, rows=len(paths))
        try:
            if self._group < self._last:
                mirror(memory, tails)
            if private:
                for kv in lacking.elements():
                    self._copies.setdefault(kv, []).append(memory.replicate(kv, "group", seen[kv]))
            else:
                for kv, layers in seen.items():
                    memory.fetch(kv, "group", layers)
            if upcoming and private:
                self._copy_ahead(upcoming)
            elif upcoming:
                self._prepare(upcoming, seen.keys() | states, memory.tail_bytes(capacity, len(upcoming)) - tail_bytes)
            for kv in [copy for copies in self._copies.values() for copy in copies] if private else seen:
                memory.wait_kv(kv)
        except BaseException:
            self.leave(tails)
            raise
        return tails

    def leave(self, tails: KV) -> None:
        super().leave(tails)
        self._free(self._copies)
        if self._group == self._last:
            self._uses = {}

    def end_step(self) -> None:
        self._free(self._copies)
        self._free(self._ahead)

    def _free(self, copies: dict[KV, list[KV]]) -> None:
        for kv in [kv for twins in copies.values() for kv in twins]:
            self.memory.free(kv)
        copies.clear()

    def entries(self, paths: Paths) -> list[Entry]:
        if not self._copies:
            return super().entries(paths)
        return private_entries(paths, [1] * len(paths), self._copies)

    def _make_room_beside(self, seen: Mapping[KV, Collection[int]], states: Set[Block], nbytes: int) -> None:
        """Evict what a group does not read until `nbytes` fit: other blocks, else also the states that it begins from,
        which are read once, and the hidden layers of its own blocks."""
        if not self.make_room(nbytes, seen.keys() | states) and not self.make_room(nbytes, set(seen)):
            for kv, layers in seen.items():
                self.memory.evict(kv, "evict", [n for n in range(len(self.memory.shapes)) if n not in layers])
            self.make_room(nbytes, set(seen))

    def _prepare(self, upcoming: Paths, needed: Set[Block], more_bytes: int) -> None:
        """Prefetch what the next group reads, as far as there is room, and start to write back what leaves when it
        enters, with tails of `more_bytes` more."""
        memory, coming, states = self.memory, self._seen(upcoming), _states(upcoming).keys()
        keep = needed | coming.keys() | states
        for kv, layers in coming.items() if self.prefetch else ():
            if (missing := memory.missing_bytes(kv, layers)) and self.make_room(missing, keep):
                memory.fetch(kv, "prefetch", layers)
        for state in states if self.prefetch else ():
            if state.device is None and self.make_room(memory.states.nbytes, keep):
                memory.states.fetch(state)
        wanted = more_bytes + sum(memory.missing_bytes(*block) for block in coming.items())
        self.write_ahead(wanted, set(coming), self._order(self._group + 1))

    def _copy_ahead(self, upcoming: Paths) -> None:
        """Fetch the next group's copies as far as there is room."""
        seen = self._seen(upcoming)
        for kv in [segment.storage for path in upcoming for segment in path] if self.prefetch else ():
            if not self.make_room(self._seen_bytes(kv, seen[kv])):
                return
            self._ahead.setdefault(kv, []).append(self.memory.replicate(kv, "prefetch", seen[kv]))

    def _seen_bytes(self, kv: KV, layers: Collection[int]) -> int:
        return sum(self.memory.layer_bytes(kv, layer) for layer in layers)

    def _seen(self, paths: Paths) -> dict[KV, Collection[int]]:
        """The blocks that a step of `paths` reads, and the layers of each that let some row see it."""
        shapes = self.memory.shapes
        if all(shape.sees_all for shape in shapes):
            return {segment.storage: range(len(shapes)) for path in paths for segment in path}
        seen: dict[KV, set[int]] = {}
        for path in paths:
            for segment in path:
                step = path[-1].end  # the position of the step's first token; later ones see no more of a segment
                layers = (layer for layer, shape in enumerate(shapes) if segment.end > shape.first_seen(step))
                seen.setdefault(segment.storage, set()).update(layers)
        return {kv: sorted(layers) for kv, layers in seen.items()}


def _states(paths: Paths) -> dict[State, None]:
    """The recurrent states that branches go on from, each once."""
    return dict.fromkeys(path[-1].state for path in paths if path and path[-1].state is not None)
