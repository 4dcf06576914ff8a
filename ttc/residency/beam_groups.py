"""LBS: branches run in groups whose KV fits, a whole step each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import ClassVar

from ttc.attention.pieces import Piece
from ttc.memory.storage import Storage
from ttc.memory.tiers import Block
from ttc.residency.base import Paths
from ttc.residency.beam_scheduling import Beams, balanced_grouping, schedule_beams
from ttc.residency.offloading import Offloading
from ttc.residency.private_copies import PrivateCopies

Layers = Mapping[Block, Collection[int]]
"""What a group reads, and the layers of each that let some row see it."""
WRITTEN_TOGETHER = 8
"""New tokens of a branch that go to the host in one transfer."""


@dataclass
class BeamGroups(Offloading):
    """Branches decode a whole step in groups whose KV fits, so KV moves once a step, not once a
    token (LBS section 4). What has to leave for the next group is written back while the one before
    it decodes, and so are the tokens that a group makes where another one follows; the capacity is
    read again at every step.

    shared: a storage that branches of a group share is moved and kept once (inter-beam locality);
        off, each has a copy.
    prefetch: groups of equal size, the next one's storages (or copies) fetched into the room that
        is left. Off by default: on a CPU it takes as long or longer, and on a GPU it was not
        measured.

    Use it where: there are many branches.
    """

    block_tokens: int = 128
    prefetch: bool = False
    shared: bool = True

    keeps_groups: ClassVar[bool] = True

    needed_bytes = 0
    """What all steps needed and did not find on the device: no order moves less."""
    step_tokens = 0
    """By which each branch of the step grows at most."""
    coming: list[Paths] = field(init=False, repr=False, default_factory=list)
    """The group at work and those after it."""
    reading: list[Layers] = field(init=False, repr=False, default_factory=list)
    """What each of these reads."""
    copies: PrivateCopies | None = field(init=False, repr=False, default=None)

    # ---------------------------------------------------------------- groups

    def groups(self, paths: Paths, tokens: int) -> list[list[int]]:
        memory, seen = self.memory, self.seen(paths)
        budget = memory.device.budget_bytes
        beams = Beams(
            [list(dict.fromkeys(segment.storage for segment in path)) for path in paths],
            lambda storage: sum(memory.piece_bytes(storage, layer) for layer in seen[storage]),
            memory.bytes_of(tokens, 1),
            inf if budget is None else budget,
            lambda storage: not memory.missing_bytes(storage, seen[storage]),
            self.shared,
        )
        groups = schedule_beams(beams)
        if self.prefetch and len(groups) > 1:
            balanced = balanced_grouping(beams)
            # beams taken out of their order may fill the device better, though rarely
            groups = balanced if len(balanced) <= len(groups) else groups
        self.step_tokens = tokens
        self.coming = [[], *([paths[number] for number in group] for group in groups)]
        self.reading = [self.seen(group) | self.begun(group) for group in self.coming]
        private = not self.shared and len(groups) > 1
        self.copies = PrivateCopies(self, self.prefetch, self.layers_seen) if private else None
        return groups

    def begin_step(self, paths: Paths, tokens: int) -> list[list[int]]:
        groups = super().begin_step(paths, tokens)
        self.needed_bytes += self.missing_bytes(self.seen(paths) | self.begun(paths))
        return groups

    def enter(self, paths: Paths) -> None:
        """What others need leaves as far as the group needs the room."""
        memory = self.memory
        del self.coming[:1], self.reading[:1]
        if self.copies is not None:
            self.copies.enter(self.coming, self.own_bytes(paths))
            return
        seen, own_bytes = self.seen(paths), self.own_bytes(paths)
        if not self.make_room(own_bytes + self.missing_bytes(seen)):
            for state in self.begun(paths):  # which are read once
                self.evict(state)
            for storage, layers in seen.items():  # the hidden layers of its own storages
                self.evict(storage, [n for n in memory.layers if n not in layers])
            self.make_room(own_bytes + self.missing_bytes(seen))
        for storage, layers in seen.items():
            memory.fetch(storage, "group", layers)
        if len(self.coming) > 1:
            self.prepare(own_bytes)
        for storage in seen:
            memory.link.wait(storage.written)
        memory.wait(seen)

    def prepare(self, own_bytes: int) -> None:
        """Prefetch what the next group reads, as far as there is room, and begin to write back what
        leaves when it enters."""
        memory, coming = self.memory, self.reading[1]
        for block, pieces in coming.items() if self.prefetch else ():
            missing = memory.missing_bytes(block, pieces)
            if missing and self.fits_beside(own_bytes + missing):
                memory.fetch(block, "prefetch", pieces)
        next_bytes = self.own_bytes(self.coming[1]) + self.missing_bytes(self.seen(self.coming[1]))
        self.write_ahead(own_bytes + next_bytes, self.order(1))

    def fits_beside(self, nbytes: int) -> bool:
        """Have room beside what this group and the next one read."""
        order = [block for block in self.order() if block not in self.reading[1]]
        chosen, free_bytes = self.leaving(nbytes, order)
        for block in chosen if free_bytes >= nbytes else ():
            self.evict(block)
        return free_bytes >= nbytes

    def passed(self, storages: Sequence[tuple[Storage, int]]) -> None:
        """What a group makes is written back while it decodes, where another one follows."""
        for storage, filled in storages if len(self.coming) > 1 else ():
            if not any(storage.host):
                self.memory.mirror(storage)
            if any(storage.host) and filled - storage.on_host >= WRITTEN_TOGETHER:
                self.memory.write_on(storage, filled, "write-back")

    def end_step(self) -> None:
        self.coming, self.reading = [], []
        if self.copies is not None:
            self.copies.close()
            self.copies = None

    def pieces(self, paths: Paths, counts: Sequence[int], ends: Sequence[int]) -> list[Piece]:
        if self.copies is None:
            return super().pieces(paths, counts, ends)
        return self.copies.pieces(paths, counts, ends)

    def resume(self, storage: Storage, one_each: bool) -> bool:
        resumed = super().resume(storage, one_each)
        if resumed and self.copies is not None:
            self.copies.rewound(storage)
        return resumed

    # ---------------------------------------------------------------- what leaves

    def state_on_device(self) -> bool:
        """Other groups have the room."""
        return len(self.coming) < 2 and super().state_on_device()

    def order(self, group: int = 0) -> list[Block]:
        """What is read latest leaves first; of what is not read any more, what was used longest
        ago. What this group reads stays, but what it has copies of."""
        at_work = self.reading[group] if self.reading and self.copies is None else ()
        return sorted(
            (block for block in super().order() if block not in at_work),
            key=lambda block: self.next_use(block, group),
            reverse=True,
        )

    def next_use(self, block: Block, group: int) -> float:
        uses = (n for n, read in enumerate(self.reading[group:]) if block in read)
        return next(uses, inf)

    # ---------------------------------------------------------------- what a group reads

    def own_bytes(self, paths: Paths) -> int:
        """What a group writes in the step."""
        return len(paths) * self.step_tokens * self.memory.bytes_per_token

    def missing_bytes(self, read: Layers) -> int:
        return sum(self.memory.missing_bytes(block, pieces) for block, pieces in read.items())

    def begun(self, paths: Paths) -> dict[Block, Collection[int]]:
        """The recurrent states that these begin with, which go where they run at once."""
        return {path[-1].state: [0] for path in paths if path and path[-1].state is not None}

    def seen(self, paths: Paths) -> dict[Block, Collection[int]]:
        """The storages of paths, and of each the layers in which some row sees it at the step's
        first token; later ones see no more."""
        seen: dict[Block, set[int]] = {}
        for path in paths:
            for segment in path:
                layers = self.layers_seen(segment.end, path[-1].end)
                seen.setdefault(segment.storage, set()).update(layers)
        return {storage: sorted(layers) for storage, layers in seen.items()}

    def layers_seen(self, end: int, position: int) -> list[int]:
        """Those in which a row at a position sees any of the tokens up to `end`."""
        shapes = enumerate(self.memory.shapes)
        return [n for n, shape in shapes if shape.sees_all or end > shape.first_seen(position)]
