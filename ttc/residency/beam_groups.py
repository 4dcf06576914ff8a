"""Locality-aware beam scheduling: branches run in groups whose KV fits, a whole step each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import inf
from typing import ClassVar

from ttc.attention.entry import Entry, private_entries
from ttc.memory.kv import KV
from ttc.memory.states import State
from ttc.memory.tails import mirror
from ttc.memory.tiers import Block
from ttc.residency.base import Paths
from ttc.residency.beam_scheduling import balanced_grouping, schedule_beams
from ttc.residency.offloading import Offloading

Layers = Mapping[KV, Collection[int]]
"""The blocks that a step reads, and the layers of each that let some row see it."""


@dataclass
class BeamGroups(Offloading):
    """Each group decodes its whole step with its KV resident, so KV moves once a step, not once a
    token (LBS section 4). What has to leave for the next group is written back while the one before
    it decodes, and so are the tokens that a group makes where another one follows; the capacity is
    read again at every step.

    shared: a block that branches of a group share is moved and stored once (inter-beam locality);
        off, each has a copy.
    prefetch: groups of equal size, the next one's blocks (or copies) fetched into the room that is
        left. Off by default: on a CPU it takes as long or longer (`docs/memory.md`).
    """

    block_tokens: int = 128
    prefetch: bool = False
    shared: bool = True

    keeps_groups: ClassVar[bool] = True

    needed_bytes = 0
    """What all steps needed and did not find on the device, each block once: no order of work moves
    less."""
    _uses: dict[Block, list[int]] = field(init=False, repr=False, default_factory=dict)
    """The groups of this step that read each block."""
    _group = 0
    _last = 0
    _copies: dict[KV, list[KV]] = field(init=False, repr=False, default_factory=dict)
    _ahead: dict[KV, list[KV]] = field(init=False, repr=False, default_factory=dict)
    """Copies for the next group."""

    # ---------------------------------------------------------------- where KV goes

    def allocate(self, tokens: int, needed: Iterable[KV] = (), path: Sequence[KV] = ()) -> KV:
        roomy = self.make_room(self.memory.bytes_of(tokens), set(needed))
        return self.memory.allocate(tokens, device_layers=None if roomy else 0)

    def allocate_frozen(self, tokens: int, path: Sequence[KV] = ()) -> KV:
        """On the host while other groups wait for the room; the next step reads it after them."""
        read = {block for block in self._uses if isinstance(block, KV) and self._next(block) < inf}
        roomy = self._group == self._last and self.make_room(self.memory.bytes_of(tokens), read)
        return self.memory.allocate(tokens, device_layers=None if roomy else 0)

    def state_on_device(self) -> bool:
        return self._group == self._last and super().state_on_device()

    def eviction_order(self) -> list[Block]:
        """What is read latest leaves first; of what is not read any more, the oldest."""
        return self._order(self._group)

    def _order(self, group: int) -> list[Block]:
        return sorted(
            super().eviction_order(), key=lambda block: self._next(block, group), reverse=True
        )

    def _next(self, block: Block, group: int | None = None) -> float:
        first = self._group if group is None else group
        return min((use for use in self._uses.get(block, ()) if use >= first), default=inf)

    # ---------------------------------------------------------------- groups

    def groups(self, paths: Paths, capacity: int) -> list[list[int]]:
        self.read_capacity()
        memory = self.memory
        tail_bytes = memory.tail_bytes(capacity)
        seen = self._seen(paths)
        missing_bytes = self._missing_bytes(seen)
        groups = self._schedule(paths, seen, tail_bytes)
        # with several groups all that the device holds may have to leave
        device_bytes = len(paths) * tail_bytes + missing_bytes if len(groups) == 1 else inf
        self.require_host(capacity * len(paths), len(paths), device_bytes)
        lacking_states = sum(state.device[0] is None for state in _states(paths))
        self.needed_bytes += memory.bytes_of(0, lacking_states) + missing_bytes
        self._uses = {}
        for index, group in enumerate(groups):
            mine = [paths[beam] for beam in group]
            blocks = {segment.storage for path in mine for segment in path}
            for block in blocks | _states(mine).keys():
                self._uses.setdefault(block, []).append(index)
        self._group = -1
        self._last = len(groups) - 1
        return groups

    def _schedule(self, paths: Paths, seen: Layers, tail_bytes: int) -> list[list[int]]:
        budget = self.device.budget_bytes
        beams = (
            [[segment.storage for segment in path] for path in paths],
            lambda kv: self._seen_bytes(kv, seen[kv]),
            tail_bytes,
            inf if budget is None else budget,
            lambda kv: not self.memory.missing_bytes(kv, seen[kv]),
            self.shared,
        )
        groups = schedule_beams(*beams)
        if self.prefetch and len(groups) > 1:
            balanced = balanced_grouping(*beams)
            # beams taken out of their order may fill the device better, though rarely
            groups = balanced if len(balanced) <= len(groups) else groups
        return groups

    def enter(self, paths: Paths, upcoming: Paths, capacity: int) -> KV:
        memory = self.memory
        self._group += 1
        seen = self._seen(paths)
        states = _states(paths).keys()
        tail_bytes = memory.tail_bytes(capacity, len(paths))
        private = not self.shared and self._last > 0
        lacking = self._lacking_copies(paths) if private else Counter[KV]()
        if private:
            self.make_room(
                tail_bytes + sum(n * self._seen_bytes(kv, seen[kv]) for kv, n in lacking.items())
            )
        else:
            self._make_room_for_group(seen, states, tail_bytes + self._missing_bytes(seen))
        tails = memory.allocate(capacity, rows=len(paths))
        try:
            if self._group < self._last:
                mirror(memory, tails)
            if private:
                self._enter_private(lacking, seen, upcoming)
            else:
                for kv, layers in seen.items():
                    memory.fetch(kv, "group", layers)
                if upcoming:
                    more_bytes = memory.tail_bytes(capacity, len(upcoming)) - tail_bytes
                    self._prepare(upcoming, seen.keys() | states, more_bytes)
                for kv in seen:
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

    def entries(self, paths: Paths) -> list[Entry]:
        if not self._copies:
            return super().entries(paths)
        return private_entries(paths, [1] * len(paths), self._copies)

    # ---------------------------------------------------------------- room for a group and the next
    # one

    def _make_room_for_group(self, seen: Layers, states: Set[Block], nbytes: int) -> None:
        """Evict what a group does not read until `nbytes` fit; then also the states that it begins
        from, which are read once, and the hidden layers of its own blocks."""
        for kept in (seen.keys() | states, set(seen)):
            if self.make_room(nbytes, kept):
                return
        for kv, layers in seen.items():
            self.memory.evict(kv, "evict", [n for n in self.memory.layers if n not in layers])
        self.make_room(nbytes, set(seen))

    def _prepare(self, upcoming: Paths, needed: Set[Block], more_bytes: int) -> None:
        """Prefetch what the next group reads, as far as there is room, and start to write back what
        leaves when it enters, with tails of `more_bytes` more."""
        memory, coming = self.memory, self._seen(upcoming)
        states = _states(upcoming).keys()
        if self.prefetch:
            keep = needed | coming.keys() | states
            for kv, layers in coming.items():
                if (missing := memory.missing_bytes(kv, layers)) and self.make_room(missing, keep):
                    memory.fetch(kv, "prefetch", layers)
            for state in states:
                if state.device[0] is None and self.make_room(memory.states.nbytes, keep):
                    memory.fetch(state, "prefetch")
        self.write_ahead(
            more_bytes + self._missing_bytes(coming), set(coming), self._order(self._group + 1)
        )

    # ---------------------------------------------------------------- a copy for each branch

    def _lacking_copies(self, paths: Paths) -> Counter[KV]:
        """How many copies of each block a group needs beyond those that were fetched ahead."""
        self._copies = self._ahead
        self._ahead = {}
        there = Counter({kv: len(copies) for kv, copies in self._copies.items()})
        return Counter(segment.storage for path in paths for segment in path) - there

    def _enter_private(self, lacking: Counter[KV], seen: Layers, upcoming: Paths) -> None:
        for kv in lacking.elements():
            self._copies.setdefault(kv, []).append(self.memory.replicate(kv, "group", seen[kv]))
        if upcoming and self.prefetch:
            self._copy_ahead(upcoming)
        for copies in self._copies.values():
            for copy in copies:
                self.memory.wait_kv(copy)

    def _copy_ahead(self, upcoming: Paths) -> None:
        seen = self._seen(upcoming)
        for kv in [segment.storage for path in upcoming for segment in path]:
            if not self.make_room(self._seen_bytes(kv, seen[kv])):
                return
            self._ahead.setdefault(kv, []).append(self.memory.replicate(kv, "prefetch", seen[kv]))

    def _free(self, copies: dict[KV, list[KV]]) -> None:
        for kv in [kv for twins in copies.values() for kv in twins]:
            self.memory.free(kv)
        copies.clear()

    # ---------------------------------------------------------------- what a group reads

    def _seen_bytes(self, kv: KV, layers: Collection[int]) -> int:
        return sum(self.memory.piece_bytes(kv, layer) for layer in layers)

    def _missing_bytes(self, seen: Layers) -> int:
        return sum(self.memory.missing_bytes(kv, layers) for kv, layers in seen.items())

    def _seen(self, paths: Paths) -> dict[KV, Collection[int]]:
        shapes = self.memory.shapes
        if all(shape.sees_all for shape in shapes):
            return {segment.storage: range(len(shapes)) for path in paths for segment in path}
        seen: dict[KV, set[int]] = {}
        for path in paths:
            for segment in path:
                # the position of the step's first token; later ones see no more of a segment
                step = path[-1].end
                layers = (
                    layer
                    for layer, shape in enumerate(shapes)
                    if segment.end > shape.first_seen(step)
                )
                seen.setdefault(segment.storage, set()).update(layers)
        return {kv: sorted(layers) for kv, layers in seen.items()}


def _states(paths: Paths) -> dict[State, None]:
    return dict.fromkeys(path[-1].state for path in paths if path and path[-1].state is not None)
