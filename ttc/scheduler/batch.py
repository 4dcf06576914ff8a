"""Decoding: a batch that branches join and leave at any token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ttc.attention.entry import Reads, depth_first
from ttc.attention.plan import DecodePlan
from ttc.backend import Batch
from ttc.errors import InvalidInput
from ttc.memory.kv import KV
from ttc.parts import find
from ttc.passes.arguments import check_step
from ttc.passes.runtime import Runtime
from ttc.sampling import SAMPLED, Sampling
from ttc.scheduler.admission import Admission
from ttc.scheduler.calls import Calls
from ttc.scheduler.rows import Request, Row, draw_tokens, paths
from ttc.scheduler.running_tails import RunningTails
from ttc.scheduler.stops import Gate, Stops
from ttc.step import Step
from ttc.task import check_interrupt
from ttc.tree.branch import Branch, StepEnd, by_problem, check_live
from ttc.usage import Usage, distinct

if TYPE_CHECKING:
    from ttc.attention.plan import Plan
    from ttc.scheduler.seams import DraftChecks, PassAhead


class RunningBatch(Batch):
    """Branches that decode together, each until its step is over. Others join between two tokens,
    as far as there is room: first come, first served, the branches of one call of `add` all at
    once if they find room.

    Tails take room as they are written. When one is full all become segments, and rows are chosen
        again: the youngest wait where there is no room for the next part of all of them.

    A token is three things: `schedule` says which rows decode, `run` is the model's pass, and
        `postprocess` draws the tokens and lets go of the rows whose step is over. The residency
        policy says who decodes together. On a GPU the next token's pass may be launched before this
        token is read (`ahead`). Under a policy with a budget and two tiers all tails are frozen
        before others join or other passes run, for both need the room. Nobody joins a group that
        its policy keeps for a whole step.

    What a branch decodes does not depend on who decodes with it.

    unfinished: the rows whose step is not over, wherever they are: at work, in a group, waiting, or
        on the way from one to another. A cache takes their KV from none of them.
    gate: stops branches that have fallen behind. calls: of the engine, which all its batches are
        part of. Where two of them do not find room side by side, they take turns.
    max_rows: how many branches decode at once at most, None for no limit; those of one request
        are never parted.
    drafts: guess tokens while few rows decode, so that a pass may give several of each row; None
        for nothing.
    """

    def __init__(
        self,
        runtime: Runtime,
        gate: Gate | None,
        calls: Calls,
        max_rows: int | None = None,
        drafts: DraftChecks | None = None,
    ):
        self.runtime = runtime
        self.gate = gate
        self.drafts = drafts
        self.calls = calls
        self.admission = Admission(
            runtime, gate, max_rows, self._preempt_others, calls.wake, calls.let_go
        )
        self.running_tails = RunningTails(runtime)
        self.ahead: PassAhead | None = None
        if runtime.run_ahead and (pass_ahead := find("ahead", "cuda")) is not None:
            self.ahead = pass_ahead(runtime, gate, drafts)
        self.unfinished: dict[Branch, Row] = {}
        self.rows: list[Row] = []  # at work, in depth-first order
        self.plan: DecodePlan | None = None
        self.meters: list[Usage] = []  # of the problems in the plan
        self.recuts = 0  # the tree's count when the plan was made
        calls.batches.add(self)

    # ---------------------------------------------------------------- calls

    def add(
        self,
        branches: Sequence[Branch],
        step: Step,
        sampling: Sampling = SAMPLED,
        limits: Sequence[int] | None = None,
    ) -> None:
        """Let branches decode one step from the next token on (see `ttc.backend.Batch`).

        A gate compares the branches of one problem and call. Raises InvalidInput, and changes
        nothing then.
        """
        with self.calls.lock:
            check_live(branches)
            at_work = self.branches
            if busy := [branch for branch in branches if branch in at_work]:
                raise InvalidInput(
                    f"{busy[0]!r} is decoding already; wait until its step has ended"
                )
            model = self.runtime.limits
            step_tokens = check_step(model, branches, step, sampling, limits)
            with self.calls.present(branches, wake=False):  # whose KV is there once they find room
                decode = self.runtime.decode
                stops = Stops(step.delimiters, step.end, model, decode, step.stop_loops)
                everyone = [list(range(len(branches)))]
                for places in everyone if self.gate is None else by_problem(branches):
                    together = [branches[i] for i in places]
                    request = Request(stops, sampling, step.statistics, together)
                    rows = [Row.of(branches[i], request, step_tokens[i], model) for i in places]
                    self.unfinished |= {row.branch: row for row in rows}
                    self.admission.add(rows)

    @torch.inference_mode()
    def step(self) -> list[Branch]:
        """Decode one token for every branch at work, or several where drafts are checked, and
        return those whose step is over; a group that its policy keeps decodes its whole step. If
        anything is raised, every branch keeps what it has decoded, and the batch is empty.
        """
        with self.calls.lock:
            try:
                if self.runtime.under_way:
                    self.calls.finish_others()
            except BaseException:
                self.close()
                raise
            return self._token()

    @torch.inference_mode()
    def finish(self) -> None:
        """Decode until every step is over, for a caller that leaves the model alone meanwhile."""
        with self.calls.lock:
            while len(self):
                self._token()
                try:
                    check_interrupt()
                except BaseException:
                    self.close()
                    raise

    def _token(self) -> list[Branch]:
        link = self.runtime.residency.memory.link
        before = list(link.uncharged)
        rows = list[Row]()
        try:
            rows += self.schedule()
            ended = list[Branch]()
            while self.rows:
                if self.drafts is None or (checked := self._check_drafts(self.drafts)) is None:
                    ended += self.postprocess(self.run())
                else:
                    ended += checked
                if not self.runtime.residency.keeps_groups or self.full:
                    break
            return ended
        except BaseException:
            self.close()
            raise
        finally:
            if link.uncharged != before:
                self.runtime.charge([row.branch for row in rows], before)

    @torch.inference_mode()
    def close(self) -> None:
        """Break off: every branch keeps what it has decoded, its step "interrupted"."""
        with self.calls.lock:
            self._drop_plan()
            try:
                at_work = set(self.rows)
                for row in self.unfinished.values():
                    if row in at_work:
                        self.running_tails.rescue(row)
                    if row.written:
                        row.branch.end_step("interrupted")
            finally:
                self.rows = []
                self.unfinished = {}
                self.admission.clear()
                self._end_step()

    def forget(self, branches: Iterable[Branch]) -> None:
        """Branches that are about to be released leave without their step being over."""
        gone = set(branches)
        self.admission.crowded = False  # those who wait may find the room of any branch
        if gone.isdisjoint(self.unfinished):
            return
        self._drop_plan()
        self.rows = [row for row in self.rows if row.branch not in gone]
        self.admission.forget(gone)
        for branch in gone:
            self.unfinished.pop(branch, None)
        if not self.rows:
            self.preempt()

    @torch.inference_mode()
    def make_way(self, needed: Sequence[Branch] = ()) -> None:
        """Other passes are about to run: where these may need the room, or the KV of branches that
        decode here, tails become segments, and all wait."""
        decoding = {row.branch for row in self.rows}
        if decoding and not (self.runtime.residency.roomy and decoding.isdisjoint(needed)):
            self.preempt()

    @torch.inference_mode()
    def interrupt(self) -> None:
        """All rows wait, and tails become segments."""
        if self.at_work:
            self.preempt()

    @property
    def branches(self) -> set[Branch]:
        """All branches whose step is not over."""
        return set(self.unfinished)

    def fits(self, tokens: int, states: int) -> float:
        """How many times over there is room for KV of so many tokens and so many recurrent
        states."""
        return self.runtime.residency.fits(tokens, states)

    @property
    def tails(self) -> KV | None:
        return self.running_tails.kv

    @property
    def full(self) -> bool:
        """Whether the tail of some row has no room for the next token."""
        if self.tails is None or not self.rows:
            return False
        filled = [row.filled for row in self.rows] if self.plan is None else self.plan.filled
        return max(filled) >= self.tails.tokens

    def __len__(self) -> int:
        with self.calls.lock:
            return len(self.unfinished)

    # ---------------------------------------------------------------- a token

    def schedule(self) -> list[Row]:
        """The rows that decode the next token. Rows that wait join them, as far as there is
        room."""
        admission, residency = self.admission, self.runtime.residency
        if not self.rows and admission.groups and admission.waiting:
            self.preempt()  # groups are chosen again, newcomers among them
        if self.full:
            self.preempt()
        if (
            admission.waiting
            and not admission.crowded
            and not admission.groups
            and not (self.rows and residency.keeps_groups)
        ):
            if self.rows and not residency.roomy:
                self.preempt()
            if self.rows:
                self._join()
            else:
                if not residency.roomy:
                    self._preempt_others()
                admission.choose_groups()
        if not self.rows and admission.groups:
            self.rows, upcoming = admission.next_group()
            self.running_tails.open(self.rows, upcoming, admission.capacity)
        return self.rows

    def run(self) -> Tensor:
        """One pass of the model: the logits (rows, vocab) of each row's next token."""
        plan = self._ready_plan()
        logits = None if self.ahead is None else self.ahead.take(self.rows)
        if logits is None:
            tokens = [row.branch.tokens[-1] for row in self.rows]
            logits = self.runtime.runner.forward(tokens, plan)
        plan.advance()
        return logits

    def postprocess(self, logits: Tensor) -> list[Branch]:
        """Draw a token for every row, and let go of those whose step is over, which are
        returned."""
        if self.tails is not None and self.tails.mirrored_tokens is not None:
            self.running_tails.write_back(self.rows)
        for meter in self.meters:
            meter.forward_passes += 1
        plan, processors = self.plan, self.runtime.settings.processors
        assert plan is not None
        if self.ahead is None or not self._may_run_ahead(self.ahead):
            draw_tokens(self.rows, logits, processors)
        elif not draw_tokens(self.rows, logits, processors, self._run_ahead):
            self.ahead.drop()
        ended = self._ended()
        if ended:
            self._let_go(ended, plan)
        return [row.branch for row in ended]

    def _may_run_ahead(self, ahead: PassAhead) -> bool:
        """Whether the same rows, and no others, are likely to decode the next token, with room for
        it."""
        alone = next(iter(self.admission), None) is None
        return ahead.may_launch(self.rows) and alone and not self.full

    def _run_ahead(self, tokens: Tensor) -> None:
        """Launch the pass of the next token. If it fails, it is made again when it is its turn,
        which may fail then."""
        assert self.ahead is not None and self.plan is not None
        try:
            self.ahead.launch(self.rows, self.plan, tokens)
        except Exception:
            self._drop_plan()

    def _ready_plan(self) -> DecodePlan:
        """The plan of the pass: that of the token before, while the rows and the tree are the
        same."""
        tree, states = self.runtime.tree, self.running_tails.states
        if self.plan is not None and self.recuts != tree.recuts:
            self._drop_plan()
        if self.plan is None:
            self.plan = self._make_plan()
            self.meters = distinct(row.branch.usage for row in self.rows)
            self.recuts = tree.recuts
        if states is not None:
            states.note_opening(self.runtime.opening)
        return self.plan

    def _make_plan(self) -> DecodePlan:
        tails = self.running_tails
        residency = self.runtime.residency
        rows = self.rows
        assert tails.kv is not None
        tails.check(rows)
        entries = residency.entries(paths(rows))
        positions = [len(row.branch.tokens) - 1 for row in rows]
        stream = residency.stream(Reads(entries, positions, tails.of(rows), repeat=True))
        filled = [row.filled for row in rows]
        places = [row.place for row in rows]
        plan = DecodePlan(entries, positions, tails.kv, filled, stream, places)
        if tails.states is not None:
            plan.states = [tails.states.of([row.branch for row in rows], tails.kv)]
        return plan

    def _check_drafts(self, drafts: DraftChecks) -> list[Branch] | None:
        """A pass over drafted tokens, of which each row keeps those that it draws: the branches
        whose step is over then. None where nothing is drafted."""
        assert self.tails is not None
        rows = self.rows
        self.running_tails.check(rows)
        before = [len(row.branch.tokens) for row in rows]
        checked = drafts.check(rows, self.tails)
        if checked is None:
            return None
        plan, ended = checked
        if self.plan is not None:
            grown = zip(rows, before, strict=True)
            self.plan.advance_by([len(row.branch.tokens) - length for row, length in grown])
        if ended:
            self._let_go(ended, plan)
        return [row.branch for row in ended]

    def _drop_plan(self) -> None:
        """Rows, tails or the tree are about to change, or have changed."""
        self._close_plan()
        if self.ahead is not None:
            self.ahead.drop()

    def _close_plan(self) -> None:
        if self.plan is not None:
            self.plan.close()
            self.plan = None

    def _ended(self) -> dict[Row, StepEnd]:
        ended: dict[Row, StepEnd] = {}
        for row in self.rows:
            if reason := row.request.stops.check(row.branch, row.start, row.limit):
                ended[row] = reason
        if self.gate is not None:
            for request in dict.fromkeys(row.request for row in self.rows):
                for loser in self.gate.losers(request.branches):
                    loser.finish_reason = "gate"
                    loser.usage.gated_branches += 1
            ended |= {row: "gate" for row in self.rows if row.branch.gated}
        return ended

    # ---------------------------------------------------------------- joining and leaving

    def _join(self) -> None:
        while joined := self.admission.join(self.rows, self.running_tails):
            self._drop_plan()
            self.running_tails.seat(self.rows, joined)
            rows = [*self.rows, *joined]
            self.rows = [rows[i] for i in depth_first([row.branch.leaf.path() for row in rows])]

    def _let_go(self, ended: dict[Row, StepEnd], plan: Plan) -> None:
        """The steps of these rows are over after a pass with this plan."""
        tails = self.running_tails
        assert tails.kv is not None
        # the kernel alone passes over them
        has_gaps = plan.fused is not None and not any(tails.kv.host)
        self._close_plan()  # the other rows' pass ahead is theirs still
        tails.write_back(self.rows, least=1)
        frozen = set[Row]()
        try:
            for row, reason in ended.items():
                tails.freeze_if_room(row)
                row.branch.end_step(reason)
                del self.unfinished[row.branch]
                self.admission.note_end(row)
                frozen.add(row)
        finally:
            self.rows = [row for row in self.rows if row not in frozen]
        if not self.rows:
            self._drop_plan()
            tails.free()
            if not self.admission.groups:
                self.runtime.residency.end_step()
        elif not has_gaps:
            tails.close_gaps(self.rows)

    def preempt(self) -> None:
        """Freeze all tails. All rows wait, first those that came first."""
        self._drop_plan()
        for row in sorted(self.rows, key=lambda row: row.number):
            self.running_tails.freeze_if_room(row)
        self.admission.put_back(self.rows)
        self.rows = []
        self._end_step()

    def _preempt_others(self) -> bool:
        """Have the engine's other batches wait, for this one needs their room. Says whether any was
        at work."""
        at_work = [
            batch for batch in list(self.calls.batches) if batch is not self and batch.at_work
        ]
        for batch in at_work:
            batch.preempt()
        return bool(at_work)

    def youngest(self) -> list[Branch]:
        """The branches whose step is not over, the last that came first."""
        rows = sorted(self.unfinished.values(), key=lambda row: row.number, reverse=True)
        return [row.branch for row in rows]

    @property
    def at_work(self) -> bool:
        """Whether rows decode, or have a group in which they will."""
        return bool(self.rows or self.admission.groups)

    def _end_step(self) -> None:
        try:
            self.running_tails.free()
        finally:
            self.runtime.residency.end_step()
