"""The tails of the rows that decode, side by side in one buffer: how much room they take at a time,
and how much more branches are likely to write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ttc.errors import OutOfMemory
from ttc.memory.kv import KV
from ttc.memory.tails import WRITTEN_TOGETHER, Tails, freeze, grown, keep_rows, write_new
from ttc.passes.runtime import Runtime
from ttc.residency.base import Residency
from ttc.scheduler.rows import Row, paths

if TYPE_CHECKING:
    from ttc.model.recurrent_layers import RunningStates


SHORT_TOKENS = 256
"""A tail has room for at most so many tokens at a time, and becomes a segment each time it is full.
Steps of so many tokens are short."""

FIRST_TOKENS = 8
"""The room of a tail in a long step where little is written yet."""

SHORT_STEP_TOKENS = 32
"""The same in a short step: most of these end before it is full."""

WRITTEN_PER_ROOM = 4
"""It has room for one more token for each so many that its branch has written: at most a fifth of
the KV is empty then."""


def tail_tokens(rows: Sequence[Row], residency: Residency) -> int:
    """The tokens that each tail of these rows has room for.

    Where the policy is not `roomy`, a full tail has all rows wait and moves KV, so that tails have
    room for `SHORT_TOKENS`.
    """
    longest = max(row.room for row in rows)
    if not residency.roomy:
        return min(longest, SHORT_TOKENS)
    short = max(row.limit - row.start for row in rows) <= SHORT_TOKENS
    first = SHORT_STEP_TOKENS if short else FIRST_TOKENS
    share = sum(row.written for row in rows) // (len(rows) * WRITTEN_PER_ROOM)
    whole = share // FIRST_TOKENS * FIRST_TOKENS
    return min(longest, max(first, min(whole, SHORT_TOKENS)))


class Lengths:
    """What the steps that have ended came to, by the strings that end them."""

    def __init__(self) -> None:
        self.tokens = Counter[tuple[str, ...]]()
        self.steps = Counter[tuple[str, ...]]()

    def note(self, row: Row) -> None:
        """The step of a row has ended."""
        self.tokens[row.request.stops.stop] += row.written
        self.steps[row.request.stops.stop] += 1

    def left(self, row: Row) -> int:
        """How many more tokens a row is likely to write: what steps like this one have come to on
        average, less what it has; but as many again as it has written, as who has written much
        goes on for long."""
        kind = row.request.stops.stop
        mean = self.tokens[kind] // self.steps[kind] if self.steps[kind] else 0
        return min(row.limit - row.start - row.written, max(mean - row.written, row.written))


class RunningTails:
    """Places in one buffer of KV, one for each row at work. A row's tail grows in place, and
    becomes segments of the tree when it is full or its step is over; the place is then free again.

    kv: the buffer, None while nobody decodes.
    states: the recurrent states with the tails, None for models without any.
    """

    def __init__(self, runtime: Runtime):
        self.runtime = runtime
        self.kv: KV | None = None
        recurrent = runtime.runner.recurrent
        self.states: RunningStates | None = recurrent.running_states(runtime) if recurrent else None

    # ---------------------------------------------------------------- places

    def open(self, rows: Sequence[Row], upcoming: Sequence[Row], capacity: int) -> None:
        """Make a tail of `capacity` tokens for each row of a group. upcoming: the rows of the next
        group."""
        self.kv = self.runtime.residency.enter(paths(rows), paths(upcoming), capacity)
        for place, row in enumerate(rows):
            _seat(row, place)

    def make_room(self, rows: Sequence[Row], joining: Sequence[Row], lengths: Lengths) -> bool:
        """Have tails for the rows at work and for those that join; says whether the memory has room
        for them, and for what all of them are likely to write."""
        assert self.kv is not None
        residency = self.runtime.residency
        everyone = [*rows, *joining]
        count = max(len(everyone), self.kv.rows or 0)
        capacity = max(self.kv.tokens, tail_tokens(everyone, residency))
        grows = (count, capacity) != (self.kv.rows, self.kv.tokens)
        new_tokens = count * capacity if grows else 0
        new_tokens += sum(max(min(row.room, capacity), lengths.left(row)) for row in everyone)
        if not residency.has_room(new_tokens, len(everyone)):
            return False
        try:
            residency.require(new_tokens, len(everyone), count if grows else 0)
            if grows:
                filled = max(row.filled for row in rows)
                self.kv = grown(self.runtime.memory, self.kv, count, capacity, filled)
        except OutOfMemory:
            return False
        return True

    def seat(self, rows: Sequence[Row], joining: Sequence[Row]) -> None:
        """Give each row that joins a place that no other row has."""
        assert self.kv is not None
        taken = {row.place for row in rows}
        free = (place for place in range(self.kv.rows or 0) if place not in taken)
        for row in joining:
            _seat(row, next(free))

    def check(self, rows: Sequence[Row]) -> None:
        """Raise RuntimeError where the KV of a row at work was taken: its tail would be read in the
        wrong place."""
        for row in rows:
            if row.branch.leaf is not row.leaf:
                raise RuntimeError(f"the KV of {row.branch!r} was let go of while it decodes")

    def close_gaps(self, rows: Sequence[Row]) -> None:
        """Move the tails of these rows to the first places."""
        assert self.kv is not None
        by_place = sorted(rows, key=lambda row: row.place)
        keep_rows(self.runtime.memory, self.kv, [row.place for row in by_place])
        for place, row in enumerate(by_place):
            row.place = place

    def free(self) -> None:
        if self.states is not None:
            self.states.clear()
        if self.kv is not None:
            self.runtime.residency.leave(self.kv)
            self.kv = None

    # ---------------------------------------------------------------- what they hold

    def of(self, rows: Sequence[Row]) -> Tails:
        """The part of the buffer that these rows have filled."""
        assert self.kv is not None
        return Tails(self.kv, max(row.place for row in rows) + 1, max(row.filled for row in rows))

    def write_back(self, rows: Sequence[Row], least: int = WRITTEN_TOGETHER) -> None:
        """Send new tokens to the tails' host copy, if there is one, once they are at least so
        many."""
        assert self.kv is not None
        if self.kv.mirrored_tokens is not None:
            write_new(self.runtime.memory, self.of(rows), least)

    def freeze(self, row: Row) -> None:
        """Turn a row's tail into immutable segments of the tree, of a block at most."""
        filled = row.filled
        if filled == 0:
            return
        assert self.kv is not None
        branch, tree = row.branch, self.runtime.tree
        before = branch.leaf
        blocks = list[KV]()
        try:
            self._copy(row, filled, blocks)
            state = None if self.states is None else self.states.leave(branch)
        except BaseException:
            for kv in blocks:
                self.runtime.memory.free(kv)
            raise
        for kv in blocks:
            leaf = branch.leaf
            tokens = branch.tokens[leaf.end : leaf.end + kv.tokens]
            tree.move(branch, tree.attach(leaf, tokens, kv, self.runtime.opening(branch)))
        tree.set_state(branch.leaf, state)
        if state is not None and before.refs == 1 and before.start >= row.start - 1:
            tree.set_state(
                before, None
            )  # of an earlier part of this step, which nobody goes on from

    def freeze_if_room(self, row: Row) -> None:
        """Freeze a row's tail, else let go of its branch's KV, which is computed again when it goes
        on."""
        try:
            self.freeze(row)
        except OutOfMemory:
            self.runtime.tree.let_go(row.branch)

    def _copy(self, row: Row, filled: int, blocks: list[KV]) -> None:
        """Copy a row's tail into `blocks`, which are made here one by one."""
        assert self.kv is not None
        residency = self.runtime.residency
        path = [segment.storage for segment in row.branch.leaf.path()]
        size = residency.block_tokens or filled
        for first in range(0, filled, size):
            blocks.append(residency.allocate_frozen(min(size, filled - first), [*path, *blocks]))
            freeze(self.runtime.memory, self.kv, row.place, first, blocks[-1])

    def rescue(self, row: Row) -> None:
        """Keep what a row has decoded of a step that broke off; take back what its KV is lost
        of."""
        lost = row.filled
        try:
            self.freeze(row)
        except Exception:
            row.branch.take_back(lost)


def _seat(row: Row, place: int) -> None:
    if row.filled:
        raise RuntimeError(f"{row.branch!r} is to decode without the KV of {row.filled} tokens")
    row.place = place
    row.leaf = row.branch.leaf
