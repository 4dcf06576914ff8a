"""Decoding: a batch that branches join and leave at any token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ttc.attention.pieces import depth_first
from ttc.attention.plan import Plan
from ttc.backend import Batch
from ttc.branch import Branch
from ttc.errors import InvalidInput, OutOfMemory, on_failure
from ttc.parts import find
from ttc.passes.arguments import check_step
from ttc.passes.runtime import Runtime
from ttc.sampling import SAMPLED, Sampling
from ttc.scheduler.admission import Admission
from ttc.scheduler.calls import Calls
from ttc.scheduler.rows import Request, Row, draw_tokens, paths
from ttc.scheduler.stops import Gate, Stops
from ttc.scheduler.writing import Writing
from ttc.step import Step
from ttc.task import check_interrupt
from ttc.tree.branch import StepEnd, by_problem, check_live
from ttc.usage import Usage, distinct

if TYPE_CHECKING:
    from ttc.scheduler.seams import DraftChecks, PassAhead


class RunningBatch(Batch):
    """Branches that decode together, each until its step is over. Others join between two tokens,
    as far as there is room: first come, first served, the branches of one call of `add` all at once
    if they find room. What a branch decodes does not depend on who decodes with it.

    A token is three things: `schedule` says which rows decode, `run` is the model's pass, and
    `postprocess` draws the tokens and lets go of the rows whose step is over. Who has filled a
    storage begins another; where there is no room for that, rows are chosen again, and the youngest
    wait. The residency policy says who decodes together. Under one with a budget and two tiers all
    wait before others join or other passes run, for both need the room. Nobody joins a group that
    its policy keeps for a whole step.

    unfinished: the rows whose step is not over, wherever they are. A cache takes their KV from none
        of them.
    gate: stops branches that have fallen behind. calls: of the engine. Where two of its batches do
        not find room side by side, they take turns.
    max_rows: how many branches decode at once at most, None for no limit; those of one request are
        never parted.
    drafts: guess tokens while few rows decode, so that a pass may give several of each row.
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
        self.writing = Writing(runtime)
        self.admission = Admission(
            runtime,
            self.writing,
            gate,
            max_rows,
            self._preempt_others,
            calls.wake,
            calls.let_go_of_others,
        )
        self.ahead: PassAhead | None = None
        if runtime.run_ahead and (pass_ahead := find("ahead", "cuda")) is not None:
            self.ahead = pass_ahead(runtime, gate, drafts)
        self.unfinished: dict[Branch, Row] = {}
        self.rows: list[Row] = []  # at work, in depth-first order
        self.plan: Plan | None = None
        self.room = 0  # the passes that the plan is good for
        self.meters: list[Usage] = []  # of the problems in the plan
        calls.batches.add(self)

    # ---------------------------------------------------------------- calls

    def add(
        self,
        branches: Sequence[Branch],
        step: Step,
        sampling: Sampling = SAMPLED,
        limits: Sequence[int] | None = None,
    ) -> None:
        """Let branches decode one step from the next token on (see `ttc.backend.Batch`). A gate
        compares the branches of one problem and call. Raises InvalidInput, and changes nothing
        then."""
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
                    request = Request(
                        stops,
                        sampling,
                        step.statistics,
                        together,
                        step.grammar,
                        step.top_logprobs,
                    )
                    rows = [Row.of(branches[i], request, step_tokens[i], model) for i in places]
                    self.unfinished |= {row.branch: row for row in rows}
                    self.admission.add(rows)

    @torch.inference_mode()
    def step(self) -> list[Branch]:
        """Decode one token for every branch at work, or several where drafts are checked, and
        return those whose step is over; a group that its policy keeps decodes its whole step. If
        anything is raised, every branch keeps what it has decoded, and the batch is empty."""
        with self.calls.lock:
            with on_failure(self.close):
                if self.runtime.under_way:
                    self.calls.finish_others()
            return self._token()

    @torch.inference_mode()
    def finish(self) -> None:
        """Decode until every step is over, for a caller that leaves the model alone meanwhile."""
        with self.calls.lock:
            while len(self):
                self._token()
                with on_failure(self.close):
                    check_interrupt()

    def _token(self) -> list[Branch]:
        link = self.runtime.residency.memory.link
        before = list(link.uncharged)
        rows = list[Row]()
        try:
            with on_failure(self.close):
                rows += self.schedule()
                ended = list[Branch]()
                while self.rows:
                    if self.drafts is None or (checked := self._check_drafts(self.drafts)) is None:
                        ended += self.postprocess(self.run())
                    else:
                        ended += checked
                    if not self.runtime.residency.keeps_groups:
                        break
                return ended
        finally:
            if link.uncharged != before:
                self.runtime.charge([row.branch for row in rows], before)

    @torch.inference_mode()
    def close(self) -> None:
        """Break off: every branch keeps what it has decoded, its step "interrupted"."""
        with self.calls.lock:
            self._drop_plan()
            self.writing.close(self.rows, done=True)
            self.admission.clear()
            self.runtime.residency.end_step()
            for row in self.unfinished.values():
                if row.written:
                    row.branch.end_step("interrupted")
            self.rows = []
            self.unfinished = {}

    def forget(self, branches: Iterable[Branch]) -> None:
        """Branches that are about to be released leave without their step being over."""
        gone = set(branches)
        self.admission.crowded = False  # those who wait may find the room of any branch
        if gone.isdisjoint(self.unfinished):
            return
        self._drop_plan()
        self.writing.close([row for row in self.rows if row.branch in gone], done=True)
        self.rows = [row for row in self.rows if row.branch not in gone]
        self.admission.forget(gone)
        for branch in gone:
            self.unfinished.pop(branch, None)
        if not self.rows:
            self.preempt()

    @torch.inference_mode()
    def make_way(self, needed: Sequence[Branch] = ()) -> None:
        """Other passes are about to run: where these may need the room, or the KV of branches that
        decode here, all wait."""
        decoding = {row.branch for row in self.rows}
        if decoding and not (self.runtime.residency.roomy and decoding.isdisjoint(needed)):
            self.preempt()

    @torch.inference_mode()
    def interrupt(self) -> None:
        """All rows wait."""
        if self.at_work:
            self.preempt()

    @property
    def branches(self) -> set[Branch]:
        """All branches whose step is not over."""
        return set(self.unfinished)

    def fits(self, tokens: int, states: int) -> float:
        """How many times over there is room for so many tokens and recurrent states."""
        return self.runtime.residency.fits(tokens, states)

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
            try:
                self.rows = admission.next_group()
            except OutOfMemory:
                self.preempt()
                admission.choose_groups()
                self.rows = admission.next_group()
        return self.rows

    def run(self) -> Tensor:
        """One pass of the model: the logits (rows, vocab) of each row's next token."""
        self.writing.check(self.rows)
        plan = self.plan or self._make_plan()
        if self.writing.states is not None:
            self.writing.states.note_opening(self.runtime.opening)
        logits = None if self.ahead is None else self.ahead.take(self.rows)
        if logits is None:
            tokens = [row.branch.tokens[-1] for row in self.rows]
            logits = self.runtime.runner.forward(tokens, plan)
        plan.advance()
        self.room = self.room - 1 if plan.in_storages else 0
        return logits

    def postprocess(self, logits: Tensor) -> list[Branch]:
        """Draw a token for every row, and let go of those whose step is over, which are
        returned."""
        for meter in self.meters:
            meter.forward_passes += 1
        settings = self.runtime.settings
        if self.ahead is None or not self._may_run_ahead(self.ahead):
            draw_tokens(self.rows, logits, settings)
        elif not draw_tokens(self.rows, logits, settings, self._run_ahead):
            self.ahead.drop()
        ended = self._ended()
        if ended:
            self._let_go(ended)
        elif not self.room:
            self._drop_plan()
        return [row.branch for row in ended]

    def _may_run_ahead(self, ahead: PassAhead) -> bool:
        """Whether the same rows, and no others, are likely to decode the next token, with room
        for it."""
        alone = next(iter(self.admission), None) is None
        return ahead.may_launch(self.rows) and alone and self.room > 0

    def _run_ahead(self, tokens: Tensor) -> None:
        """Launch the pass of the next token. If it fails, it is made again when it is its turn."""
        assert self.ahead is not None and self.plan is not None
        try:
            self.ahead.launch(self.rows, self.plan, tokens)
        except Exception:
            self._drop_plan()

    def _make_plan(self) -> Plan:
        """A plan for the rows as they are, what they have written being pieces of it. Where there
        is no room for their next tokens they are chosen again."""
        rows = self.rows
        try:
            self.writing.renew(rows)
            self.plan, self.room = self.writing.plan(rows)
        except OutOfMemory:
            self.preempt()
            self.admission.choose_groups()
            rows = self.rows = self.admission.next_group()
            self.plan, self.room = self.writing.plan(rows)
        self.meters = distinct(row.branch.usage for row in rows)
        return self.plan

    def _check_drafts(self, drafts: DraftChecks) -> list[Branch] | None:
        """A pass over drafted tokens: the branches whose step is over then. None where nothing is
        drafted."""
        ended = drafts.check(self.rows, self._pause)
        if ended is None:
            return None
        self._let_go(ended)
        return [row.branch for row in ended]

    def _pause(self) -> None:
        """Another pass writes where the rows at work do."""
        self._drop_plan()
        self.writing.close(self.rows)

    def _drop_plan(self) -> None:
        """Rows or their places are about to change, or have changed."""
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
        while joined := self.admission.join(self.rows):
            self._drop_plan()
            rows = [*self.rows, *joined]
            self.rows = [rows[i] for i in depth_first(paths(rows))]

    def _let_go(self, ended: dict[Row, StepEnd]) -> None:
        """The steps of these rows are over."""
        self._close_plan()  # the other rows' pass ahead is theirs still
        self.writing.close(ended, done=True)
        for row, reason in ended.items():
            row.branch.end_step(reason)
            del self.unfinished[row.branch]
            self.admission.note_end(row)
        self.rows = [row for row in self.rows if row not in ended]
        if not self.rows:
            self._drop_plan()
            if not self.admission.groups:
                self.runtime.residency.end_step()

    def preempt(self) -> None:
        """All rows wait, first those that came first."""
        self._drop_plan()
        self.admission.put_back(self.rows)
        self.rows = []
        self.runtime.residency.end_step()

    def _preempt_others(self) -> bool:
        """Have the engine's other batches wait. Says whether any was at work."""
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
