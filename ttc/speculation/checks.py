"""Speculation: a pass that checks drafted tokens, and keeps those that the branches draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from ttc.attention.entry import shared_entries
from ttc.memory.kv import KV
from ttc.model.processors import Processor
from ttc.model.running.runner import ModelRunner
from ttc.passes.runtime import Runtime
from ttc.residency.base import Residency
from ttc.residency.resident import Resident
from ttc.sampling import Sampling
from ttc.scheduler.rows import Row, draw_tokens, paths
from ttc.scheduler.stops import Gate
from ttc.speculation.draft_plan import DraftPlan, TailRows
from ttc.tree.branch import Branch, StepEnd
from ttc.usage import distinct


def why_not(runner: ModelRunner, residency: Residency, gate: Gate | None) -> str:
    """Why an engine of these parts cannot check drafts, "" where it can."""
    if gate is not None:
        return "a decode gate compares branches token by token; use gate=none"
    if runner.recurrent is not None:
        return "the model has layers whose state cannot be taken back by a token"
    if runner.device.type != "cpu":
        return "drafts are checked on a CPU only; a GPU records its passes for a token of each row"
    if runner.link is not None:
        return "layers run in several places; use placement=resident"
    if type(residency) is not Resident:
        return "KV is kept in another way than memory=resident does; use that"
    return ""


class Guesses(Protocol):
    """What the passes ask of a draft (`ttc.speculation.base.Draft`)."""

    max_rows: int

    def length(self, rows: int) -> int: ...
    def note(self, checked: int, accepted: int) -> None: ...
    def note_none(self) -> None: ...
    def propose(
        self, branches: Sequence[Branch], counts: Sequence[int], samplings: Sequence[Sampling]
    ) -> list[list[int]]: ...


class DraftChecks:
    """The passes of one batch that check drafted tokens."""

    def __init__(self, runtime: Runtime, draft: Guesses):
        self.runtime = runtime
        self.draft = draft

    def check(self, rows: Sequence[Row], tails: KV) -> tuple[DraftPlan, dict[Row, StepEnd]] | None:
        """A pass over drafted tokens, of which each row keeps those that it draws: its plan, and
        the rows whose step is over then. None where nothing is drafted."""
        drafts = drafts_for(rows, self.draft, tails.tokens)
        if not any(drafts):
            return None
        plan = plan_of(rows, drafts, tails)
        logits = self.runtime.runner.forward(tokens_of(rows, drafts), plan)
        for meter in distinct(row.branch.usage for row in rows):
            meter.forward_passes += 1
        processors = self.runtime.settings.processors
        return plan, keep_drawn(rows, drafts, logits, processors, self.draft)


def drafts_for(rows: Sequence[Row], draft: Guesses, capacity: int) -> list[list[int]]:
    """Drafted tokens for each row, as many as may pay and have room, or none at all.

    capacity: the tokens that each tail has room for. The last token of a step is never drafted: the
    pass gives it in any case.
    """
    if len(rows) > draft.max_rows:
        return []
    if not (most := draft.length(len(rows))):
        draft.note_none()
        return []
    counts = [
        max(0, min(most, row.limit - len(row.branch.tokens) - 1, capacity - row.filled - 1))
        for row in rows
    ]
    if not any(counts):
        return []
    samplings = [row.request.sampling for row in rows]
    return draft.propose([row.branch for row in rows], counts, samplings)


def plan_of(rows: Sequence[Row], drafts: Sequence[Sequence[int]], tails: KV) -> DraftPlan:
    """The plan of the pass: of each row its last token, and its drafted ones."""
    counts = [1 + len(drafted) for drafted in drafts]
    positions, runs = list[int](), list[TailRows]()
    for row, count in zip(rows, counts, strict=True):
        first = len(positions)
        start = len(row.branch.tokens) - 1
        runs.append(TailRows(slice(first, first + count), row.place, row.filled))
        positions += range(start, start + count)
    return DraftPlan(shared_entries(paths(rows), counts), positions, tails, runs)


def tokens_of(rows: Sequence[Row], drafts: Sequence[Sequence[int]]) -> list[int]:
    """The tokens of the pass, in the order of its plan."""
    tokens = list[int]()
    for row, drafted in zip(rows, drafts, strict=True):
        tokens += [row.branch.tokens[-1], *drafted]
    return tokens


def keep_drawn(
    rows: Sequence[Row],
    drafts: Sequence[Sequence[int]],
    logits: Tensor,
    processors: Sequence[Processor],
    draft: Guesses,
) -> dict[Row, StepEnd]:
    """Draw token after token for each row, as long as the one before was drafted as it was drawn.
    Returns the rows whose step is over.

    So the tokens, their figures and where a step ends are those of one token at a time. What is
    left of a draft was computed in vain: its KV stands beyond what the tail counts, and is written
    over.
    """
    firsts = [0]
    for drafted in drafts:
        firsts.append(firsts[-1] + 1 + len(drafted))
    ended: dict[Row, StepEnd] = {}
    going = list(range(len(rows)))
    accepted = [0] * len(rows)
    place = 0
    while going:
        drawing = [rows[i] for i in going]
        draw_tokens(drawing, logits[[firsts[i] + place for i in going]], processors)
        equal = list[int]()
        for i in going:
            row = rows[i]
            token = row.branch.tokens[-1]
            reason = row.request.stops.check(row.branch, row.start, row.limit)
            if reason is not None:
                ended[row] = reason
            if place == len(drafts[i]):
                continue
            hit = token == drafts[i][place]
            accepted[i] += hit
            if hit and reason is None:
                equal.append(i)
        going = equal
        place += 1
    for row, drafted, count in zip(rows, drafts, accepted, strict=True):
        if drafted:
            row.branch.usage.drafted_tokens += len(drafted)
            row.branch.usage.accepted_tokens += count
            draft.note(min(count + 1, len(drafted)), count)
    return ended
