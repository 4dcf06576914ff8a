"""Decoding: a batch that branches join and leave at any token."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate, chain
from math import inf
from threading import RLock
from weakref import WeakSet

import torch

from ttc.attention.plan import DecodePlan, depth_first
from ttc.errors import InvalidInput, OutOfMemory
from ttc.memory.kv import KV
from ttc.memory.tails import Tails, freeze, grown, keep_rows, write_new
from ttc.passes.arguments import check_step
from ttc.passes.rows import Request, Row, draw_tokens, paths
from ttc.passes.runtime import Runtime
from ttc.passes.states import RunningStates
from ttc.passes.stops import Gate, Stops, check_gate
from ttc.sampling import SAMPLED, Sampling
from ttc.tree.branch import Branch, StepEnd, by_problem, check_live
from ttc.usage import count_pass


class RunningBatch:
    """Branches that decode together, each until its step is over. Others join between two tokens, as far as there is
    room: first come, first served, the branches of one call of `add` all at once.

    The residency policy says who decodes together. The tails of these grow in place in one buffer; a branch that ends
    its step leaves the batch, its tail frozen into a segment, and its place is the next one's. Under a policy with a
    budget and two tiers all tails are frozen before others join or other passes run, for both need the room. Nobody
    joins a group that its policy keeps for a whole step (`Residency.keeps_groups`).

    What a branch decodes does not depend on who decodes beside it.

    gate: stops branches that have fallen behind. lock: held during each call. present: has the KV of branches there.
    batches: all batches of the engine. Where two of them do not find room side by side, they take turns.
    max_rows: the most branches that decode at once, None for no limit; those of one call of `add` are never parted.
    """

    def __init__(
        self,
        runtime: Runtime,
        gate: Gate | None,
        lock: RLock,
        present: Callable[[Sequence[Branch]], AbstractContextManager[None]],
        batches: WeakSet[RunningBatch],
        max_rows: int | None = None,
    ):
        if max_rows is not None and max_rows < 1:
            raise InvalidInput(f"max_rows={max_rows} must be at least 1, or None for no limit")
        self.runtime, self.gate, self.lock, self.present, self.batches = runtime, gate, lock, present, batches
        batches.add(self)
        self.max_rows = inf if max_rows is None else max_rows
        self.rows: list[Row] = []  # at work, in depth-first order
        self.waiting: list[list[Row]] = []  # to come, each list at once
        self.groups: list[list[Row]] = []  # to decode their step when those at work have
        self.tails: KV | None = None
        self.plan: DecodePlan | None = None
        self.recuts = 0  # the tree's count when the plan was made
        self.capacity = 0  # tokens that each tail of the groups has room for
        self.states = RunningStates(runtime) if runtime.runner.recurrent is not None else None

    # ---------------------------------------------------------------- calls

    def add(
        self,
        branches: Sequence[Branch],
        max_tokens: int | Sequence[int],
        *,
        stop: Sequence[str] = (),
        end: Sequence[str] = (),
        sampling: Sampling = SAMPLED,
        statistics: bool = False,
    ) -> None:
        """Let branches decode one step from the next token on; the options are those of `Engine.generate`.

        A gate compares the branches of one call. Raises InvalidInput, and changes nothing then.
        """
        with self.lock:
            check_live(branches)
            at_work = self.branches
            if busy := [branch for branch in branches if branch in at_work]:
                raise InvalidInput(f"{busy[0]!r} is decoding already; wait until its step has ended")
            most = list(max_tokens) if isinstance(max_tokens, Iterable) else [max_tokens] * len(branches)
            limits = self.runtime.limits
            check_step(limits, branches, most, stop, end, sampling)
            with self.present(branches):
                problems = [[branches[i] for i in rows] for rows in by_problem(branches)]
                stops = Stops(stop, end, limits, self.runtime.decode)
                request = Request(stops, sampling, statistics, problems)
                rows = []
                for branch, limit in zip(branches, most, strict=True):
                    length, left = len(branch.tokens), limits.left(len(branch.tokens))
                    rows.append(Row(branch, request, length, length + (limit if left is None else min(limit, left))))
                if rows:
                    self.waiting.append(rows)

    @torch.inference_mode()
    def step(self) -> list[Branch]:
        """Decode one token for every branch at work, and return those whose step is over; a group that its policy keeps
        decodes its whole step. If anything is raised, every branch keeps what it has decoded, and the batch is empty.
        """
        charged: list[Branch] = []
        with self.lock, self.runtime.metered(charged):
            try:
                self._let_in()
                charged += [row.branch for row in self.rows]
                ended = self._advance() if self.rows else []
                while self.rows and self.runtime.residency.keeps_groups:
                    ended += self._advance()
                return [row.branch for row in ended]
            except BaseException:
                self.close()
                raise

    @torch.inference_mode()
    def close(self) -> None:
        """Break off: every branch keeps what it has decoded, its step "interrupted"."""
        with self.lock:
            self._drop_plan()
            try:
                begun = [row for row in self._all() if len(row.branch.tokens) > row.start]
                for row in begun:
                    self._rescue(row)
            finally:
                self._leave()
                self.rows, self.waiting, self.groups = [], [], []

    def forget(self, branches: Iterable[Branch]) -> None:
        """Branches that are about to be released leave without their step being over."""
        gone = set(branches)
        if gone.isdisjoint(self.branches):
            return
        self._drop_plan()
        self.rows, *parts = [
            [row for row in rows if row.branch not in gone] for rows in (self.rows, *self.groups, *self.waiting)
        ]
        groups, waiting = parts[: len(self.groups)], parts[len(self.groups) :]
        self.groups, self.waiting = [rows for rows in groups if rows], [rows for rows in waiting if rows]
        if not self.rows:
            self._pause()

    @torch.inference_mode()
    def make_way(self) -> None:
        """Other passes are about to run: where these may need the room, tails become segments, and all wait."""
        if self.rows and not self.runtime.residency.roomy:
            self._pause()

    @property
    def branches(self) -> set[Branch]:
        """All branches whose step is not over."""
        return {row.branch for row in self._all()}

    def fits(self, tokens: int, states: int) -> float:
        """How many times over the memory has room for KV of so many tokens and so many recurrent states."""
        return self.runtime.residency.fits(tokens, states)

    def __len__(self) -> int:
        """The branches whose step is not over."""
        with self.lock:
            return sum(1 for _ in self._all())

    def _all(self) -> Iterable[Row]:
        return chain(self.rows, *self.groups, *self.waiting)

    # ---------------------------------------------------------------- joining

    def _let_in(self) -> None:
        residency = self.runtime.residency
        if not self.rows and self.groups and self.waiting:
            self._pause()  # groups are chosen again, newcomers among them
        if self.waiting and not self.groups and not (self.rows and residency.keeps_groups):
            if self.rows and not residency.roomy:
                self._pause()
            if self.rows:
                self._join()
            else:
                if not residency.roomy:
                    self._others_make_way()
                self._choose_groups()
        if not self.rows and self.groups:
            self._enter(self.groups.pop(0))

    def _pause(self) -> None:
        """Freeze all tails. Everybody waits, first those who came first."""
        self._drop_plan()
        for row in self.rows:
            self._freeze(row)
        begun: dict[Request, list[Row]] = {}
        for row in chain(self.rows, *self.groups):
            begun.setdefault(row.request, []).append(row)
        self._leave()
        self.rows, self.groups, self.waiting = [], [], [*begun.values(), *self.waiting]

    def _choose_groups(self) -> None:
        """Have the policy say which of the waiting branches decode together: of as many calls as it has room for."""
        ends = list(accumulate(map(len, self.waiting)))
        count = max(1, bisect_right(ends, self.max_rows))
        while True:
            rows = list(chain(*self.waiting[:count]))
            rows = [rows[i] for i in depth_first([row.branch.leaf.path() for row in rows])]
            for leaf in dict.fromkeys(row.branch.leaf for row in rows):
                self.runtime.tree.compact(leaf)
            self.capacity = max(row.room for row in rows)
            try:
                chosen = self.runtime.residency.groups(paths(rows), self.capacity)
                check_gate(self.gate, len(rows), chosen)
                break
            except OutOfMemory:
                if count == 1 and not self._others_make_way():
                    raise
                count = max(1, count - 1)
        self.groups = [[rows[i] for i in sorted(group)] for group in chosen]
        del self.waiting[:count]

    def _others_make_way(self) -> bool:
        """Have the engine's other batches wait, for this one needs their room. Says whether any was at work."""
        at_work = [batch for batch in list(self.batches) if batch is not self and (batch.rows or batch.groups)]
        for batch in at_work:
            batch._pause()
        return bool(at_work)

    def _enter(self, rows: list[Row]) -> None:
        """A group begins to decode; its tails are made."""
        self.rows, upcoming = rows, self.groups[0] if self.groups else []
        self.tails = self.runtime.residency.enter(paths(rows), paths(upcoming), self.capacity)
        for place, row in enumerate(rows):
            row.place = place

    def _join(self) -> None:
        """Seat those who wait beside those at work, as far as there is room."""
        assert self.tails is not None
        joined: list[Row] = []
        while self.waiting:
            rows = [*self.rows, *joined, *self.waiting[0]]
            if len(rows) > self.max_rows:
                break
            count, capacity = max(len(rows), self.tails.rows or 0), max(self.tails.tokens, *(row.room for row in rows))
            grows = (count, capacity) != (self.tails.rows, self.tails.tokens)
            try:  # what all tails will be frozen into, and larger tails
                new_tokens = sum(row.room for row in rows) + grows * count * capacity
                self.runtime.residency.require(new_tokens, len(rows), grows * count)
                if grows:
                    filled = max(row.filled for row in self.rows)
                    self.tails = grown(self.runtime.memory, self.tails, count, capacity, filled)
            except OutOfMemory:
                break
            joined += self.waiting.pop(0)
        if not joined:
            return
        self._drop_plan()
        for leaf in dict.fromkeys(row.branch.leaf for row in joined):
            self.runtime.tree.compact(leaf)
        taken = {row.place for row in self.rows}
        free = (place for place in range(self.tails.rows or 0) if place not in taken)
        for row in joined:
            row.place = next(free)
        rows = [*self.rows, *joined]
        self.rows = [rows[i] for i in depth_first([row.branch.leaf.path() for row in rows])]

    # ---------------------------------------------------------------- a token

    def _advance(self) -> list[Row]:
        """One token for every row at work. Returns the rows whose step is over."""
        rows, memory, tails, plan = self.rows, self.runtime.memory, self.tails, self._ready_plan()
        assert tails is not None
        logits = self.runtime.runner.forward([row.branch.tokens[-1] for row in rows], plan)
        plan.advance()
        if tails.mirrored_tokens is not None:
            write_new(memory, self._tails())
        count_pass(row.branch.usage for row in rows)
        draw_tokens(rows, logits)
        if not (ended := self._ended()):
            return []
        compact = plan.fused is None or any(tails.host)  # the kernel alone passes over gaps
        self._drop_plan()
        if tails.mirrored_tokens is not None:
            write_new(memory, self._tails(), least=1)
        self._let_out(ended, compact)
        return list(ended)

    def _ready_plan(self) -> DecodePlan:
        tree = self.runtime.tree
        if self.plan is not None and self.recuts != tree.recuts:
            self._drop_plan()
        if self.plan is None:
            assert self.tails is not None
            residency, rows = self.runtime.residency, self.rows
            entries = residency.entries(paths(rows))
            positions = [len(row.branch.tokens) - 1 for row in rows]
            stream = residency.stream(entries, positions, self._tails(), repeat=True)
            filled, places = [row.filled for row in rows], [row.place for row in rows]
            self.plan = DecodePlan(entries, positions, self.tails, filled, stream, places)
            if self.states is not None:
                self.plan.states = [self.states.of([row.branch for row in rows], self.tails)]
            self.recuts = tree.recuts
        if self.states is not None:
            self.states.note_opening(self.runtime.opening)
        return self.plan

    def _tails(self) -> Tails:
        assert self.tails is not None
        return Tails(self.tails, max(r.place for r in self.rows) + 1, max(r.filled for r in self.rows))

    def _ended(self) -> dict[Row, StepEnd]:
        """The rows whose last token was their step's, and why."""
        ended: dict[Row, StepEnd] = {}
        for row in self.rows:
            if reason := row.request.stops.check(row.branch, row.start, row.limit):
                ended[row] = reason
        if self.gate is not None:
            requests = dict.fromkeys(row.request for row in self.rows)
            for problem in chain(*(request.problems for request in requests)):
                for loser in self.gate.losers(problem):
                    loser.finish_reason = "gate"
                    loser.usage.gated_branches += 1
            ended |= {row: "gate" for row in self.rows if row.branch.gated}
        return ended

    # ---------------------------------------------------------------- leaving

    def _let_out(self, ended: dict[Row, StepEnd], compact: bool) -> None:
        """Freeze the rows that ended. compact: close the gaps between the other tails."""
        assert self.tails is not None
        done = set[Row]()
        try:
            for row, reason in ended.items():
                self._freeze(row)
                row.branch.end_step(reason)
                done.add(row)
        finally:
            self.rows = [row for row in self.rows if row not in done]
        if not self.rows:
            self._free_tails()
            if not self.groups:
                self.runtime.residency.end_step()
        elif compact:
            by_place = sorted(self.rows, key=lambda row: row.place)
            keep_rows(self.runtime.memory, self.tails, [row.place for row in by_place])
            for place, row in enumerate(by_place):
                row.place = place

    def _freeze(self, row: Row) -> None:
        """Turn a tail into immutable segments of the tree, each a block at most."""
        filled, blocks, branch = row.filled, list[KV](), row.branch
        if filled == 0:
            return
        assert self.tails is not None
        tree, residency, memory = self.runtime.tree, self.runtime.residency, self.runtime.memory
        size, path = residency.block_tokens or filled, [segment.storage for segment in branch.leaf.path()]
        try:
            for first in range(0, filled, size):
                blocks.append(residency.allocate_frozen(min(size, filled - first), [*path, *blocks]))
                freeze(memory, self.tails, row.place, first, blocks[-1])
            state = None if self.states is None else self.states.leave(branch)
        except BaseException:
            for kv in blocks:
                memory.free(kv)
            raise
        for kv in blocks:
            leaf = branch.leaf
            tokens = branch.tokens[leaf.end : leaf.end + kv.tokens]
            tree.move(branch, tree.attach(leaf, tokens, kv, self.runtime.opening(branch)))
        tree.set_state(branch.leaf, state)

    def _rescue(self, row: Row) -> None:
        """Keep what a branch has decoded of a step that broke off; if its KV is lost, take that back."""
        lost = row.filled
        try:
            self._freeze(row)
        except Exception:
            row.branch.take_back(lost)
        if len(row.branch.tokens) > row.start:
            row.branch.end_step("interrupted")

    def _leave(self) -> None:
        """Nobody is at work any more."""
        try:
            self._free_tails()
        finally:
            self.runtime.residency.end_step()

    def _free_tails(self) -> None:
        self._drop_plan()
        if self.states is not None:
            self.states.clear()
        if self.tails is not None:
            self.runtime.residency.leave(self.tails)
            self.tails = None

    def _drop_plan(self) -> None:
        if self.plan is not None:
            self.plan.close()
            self.plan = None
