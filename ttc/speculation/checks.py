"""Speculation: a pass that checks drafted tokens, and keeps those that the branches draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ttc.errors import OutOfMemory
from ttc.model.generation_settings import GenerationSettings
from ttc.model.running.runner import ModelRunner
from ttc.passes.new_tokens import New, run
from ttc.passes.runtime import Runtime
from ttc.residency.base import Residency
from ttc.residency.resident import Resident
from ttc.scheduler.rows import Row, draw_tokens
from ttc.scheduler.stops import Gate
from ttc.scheduler.writing import room_of
from ttc.tree.branch import StepEnd
from ttc.usage import distinct

Guesses = Any
"""What is asked for drafts (`ttc.speculation.base.Draft`)."""


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


class DraftChecks:
    """The passes of one batch that check drafted tokens."""

    def __init__(self, runtime: Runtime, draft: Guesses):
        self.runtime = runtime
        self.draft = draft

    def check(self, rows: Sequence[Row], pause: Callable[[], None]) -> dict[Row, StepEnd] | None:
        """A pass over drafted tokens, of which each row keeps those that it draws: the rows whose
        step is over then. None where nothing is drafted, or has no room."""
        drafts = drafts_for(rows, self.draft)
        if not any(drafts):
            return None
        pause()
        tree = self.runtime.tree
        new = list[New]()
        try:
            for row, drafted in zip(rows, drafts, strict=True):
                tokens = [row.branch.tokens[-1], *drafted]
                places = tree.write(row.branch, tokens, room_of(row))
                new.append(New(row.branch, tokens, places, range(len(tokens))))
            logits = run(self.runtime, new)
            for meter in distinct(row.branch.usage for row in rows):
                meter.forward_passes += 1
            return keep_drawn(rows, drafts, logits, self.runtime.settings, self.draft)
        except OutOfMemory:
            return None
        finally:  # what is left of a draft was computed in vain
            for row in rows:
                tree.rewind(row.branch, len(row.branch.tokens) - 1)


def drafts_for(rows: Sequence[Row], draft: Guesses) -> list[list[int]]:
    """Drafted tokens for each row, as many as may pay, or none at all. The last token of a step is
    never drafted: the pass gives it in any case."""
    if len(rows) > draft.max_rows:
        return []
    if not (most := draft.length(len(rows))):
        draft.note_none()
        return []
    counts = [max(0, min(most, row.limit - len(row.branch.tokens) - 1)) for row in rows]
    if not any(counts):
        return []
    samplings = [row.request.sampling for row in rows]
    drafts: list[list[int]] = draft.propose([row.branch for row in rows], counts, samplings)
    return drafts


def keep_drawn(
    rows: Sequence[Row],
    drafts: Sequence[Sequence[int]],
    logits: Tensor,
    settings: GenerationSettings,
    draft: Guesses,
) -> dict[Row, StepEnd]:
    """Draw token after token for each row, as long as the one before was drafted as it was drawn.
    Returns the rows whose step is over.

    So the tokens, their figures and where a step ends are those of one token at a time.
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
        draw_tokens(drawing, logits[[firsts[i] + place for i in going]], settings)
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
