"""Where the rows at work write: each at the end of a storage, which grows in place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial

from ttc.attention.plan import Plan, Run
from ttc.branch import Branch
from ttc.errors import OutOfMemory, on_failure
from ttc.memory.storage import Places, Storage, room_for
from ttc.model.recurrent_layers import StatesOfBranches
from ttc.passes.runtime import Runtime
from ttc.scheduler.rows import Row, paths


def room_of(row: Row) -> int:
    """The room of a storage that a row begins."""
    return room_for(row.room, len(row.branch.tokens) - row.branch.prompt_length)


class Writing:
    """Opens places for the next tokens of rows, and notes in the tree what they have written.
    storages: where each row has written in its step. They stay on the device until it is over."""

    def __init__(self, runtime: Runtime):
        self.runtime = runtime
        self.storages: dict[Row, dict[Storage, None]] = {}
        recurrent = runtime.runner.recurrent
        self.states: StatesOfBranches | None = (
            recurrent.running_states(runtime) if recurrent else None
        )

    def enter(self, rows: Sequence[Row]) -> None:
        """Begin a group. Raises OutOfMemory, and changes nothing then."""
        self.open(rows, begins=True)

    def open(self, rows: Sequence[Row], begins: bool = False) -> None:
        """Give each row a place for its next token. Raises OutOfMemory: none of them has one
        then."""
        tree = self.runtime.tree
        with on_failure(partial(self.close, rows, done=True)):
            if self.states is not None:
                self.states.make_room(len(self.storages.keys() | set(rows)))
            if begins:
                self.runtime.residency.enter(paths(rows))
            for row in rows:
                if row.filled:
                    raise RuntimeError(
                        f"{row.branch!r} is to decode without the KV of {row.filled} tokens"
                    )
                tree.open(row.branch, room_of(row))
                row.begun = len(row.branch.tokens) - 1
                row.leaf = row.branch.leaf
                tree.set_opening(row.leaf, row.leaf.start, self.runtime.opening(row.branch))
                self.storages.setdefault(row, {})[row.leaf.storage] = None

    def renew(self, rows: Sequence[Row]) -> None:
        """Note what rows have written, and give each that has no place a new one. Raises
        OutOfMemory: none of these has a place then."""
        written = [
            row for row in rows if row.begun is None or (row.filled and not self._keeps(row))
        ]
        self.close(written)
        self.open(written)

    def _keeps(self, row: Row) -> bool:
        """Whether all that a row has written where it writes stays its own: what others read is
        packed, and it has room to write on before that."""
        storage = row.branch.leaf.storage
        packs = self.runtime.residency.memory.codec is not None
        return packs and row.filled < storage.left

    def close(self, rows: Iterable[Row], done: bool = False) -> None:
        """Note what rows have written. done: their steps are over, or wait."""
        tree, policy = self.runtime.tree, self.runtime.residency
        rows = list(rows)
        for row in rows:
            branch, begun, row.begun = row.branch, row.begun, None
            if branch.leaf is row.leaf and begun is not None:  # else it was let go of
                storage = branch.leaf.storage
                tree.close(branch, branch.tokens[begun:-1])
                row.leaf = branch.leaf
                if storage.filled:
                    try:
                        policy.settled([storage])
                    except OutOfMemory:  # what has no room packed is computed again
                        tree.rewind(branch, storage.start)
            if done and self.states is not None and row in self.storages:
                self._leave_state(branch, self.states)
        left = [storage for row in rows if done for storage in self.storages.pop(row, ())]
        policy.leave([storage for storage in left if storage in policy.memory.live])
        if self.states is not None and not self.storages:
            self.states.clear()

    def _leave_state(self, branch: Branch, states: StatesOfBranches) -> None:
        """Keep a branch's state at its leaf; without it, its KV is computed again."""
        tree = self.runtime.tree
        if branch.leaf.state is None:
            with suppress(OutOfMemory, RuntimeError):
                tree.keep_state(branch.leaf, states.leave(branch), branch.prompt_length)
        states.forget(branch)
        tree.move(branch, tree.last_state(branch.leaf))

    def check(self, rows: Sequence[Row]) -> None:
        """Raise RuntimeError where the KV of a row at work was taken."""
        for row in rows:
            if row.begun is not None and row.branch.leaf is not row.leaf:
                raise RuntimeError(f"the KV of {row.branch!r} was let go of while it decodes")

    def plan(self, rows: Sequence[Row]) -> tuple[Plan, int]:
        """The plan of the next token of each row, and for how many passes their storages have
        room."""
        positions = [len(row.branch.tokens) - 1 for row in rows]
        storages = [row.branch.leaf.storage for row in rows]
        written = [row.filled for row in rows]
        runs = [
            Run(slice(n, n + 1), [Places(storage, storage.filled + own, 1)], own)
            for n, (storage, own) in enumerate(zip(storages, written, strict=True))
        ]
        read = self.runtime.residency.pieces(paths(rows), [1] * len(rows), positions)
        room = min(storage.left - own for storage, own in zip(storages, written, strict=True))
        plan = self.runtime.plan(read, positions, runs)
        if self.states is not None:
            plan.states = [self.states.of([row.branch for row in rows])]
        return plan, room
