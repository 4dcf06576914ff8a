"""The recurrent states of a pass's sequences: taken from segments' ends, changed by the pass, and
kept at new ends."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttc.memory.states import State, StateBatch
from ttc.memory.storage import Storage as KV
from ttc.passes.runtime import Runtime
from ttc.tree.segment import Segment


class PassStates:
    """States of passes over new tokens: each run goes on from the state of the segment that it
    stands on, and leaves one at its end. What a pass changes counts on the device from `begin` to
    `end`, or to `clear`.

    max_runs: how many runs a pass may have.
    """

    def __init__(self, runtime: Runtime, runs: int, tokens: int, ends: int, kept: bool):
        """Raises OutOfMemory unless there is room for the KV of so many tokens, and for states at
        so many ends. kept: False where `end` is not called. All runs are in one pass then, and
        while some leave it early, those of the others are copied."""
        self.residency = runtime.residency
        self.memory = runtime.memory.states
        self.tree = runtime.tree
        self.each = 1 if kept else 2
        self.max_runs = min(runs, self.residency.max_sequences(tokens, ends)) if kept else runs
        self.residency.require(tokens, ends, self.each * self.max_runs)
        self.claimed = 0
        self.batches: list[StateBatch] = []
        self.members: list[list[int]] = []  # which runs of the pass are the sequences of each batch

    def begin(
        self,
        before: Sequence[Segment],
        spans: Sequence[slice],
        in_opening: Sequence[bool],
        needed: set[KV],
    ) -> list[StateBatch]:
        """The batches of a pass whose runs go on after the segments `before`, the rows of each
        being one of `spans`. in_opening: see `StateBatch`, of each run. needed: the KV that the
        pass reads."""
        count = self.each * len(before)
        nbytes = count * self.memory.nbytes
        if not self.residency.make_room(nbytes, needed):
            self.residency.make_room(nbytes)
        self.memory.claim(count)
        self.claimed = count
        alike: dict[tuple[int, bool, bool], list[int]] = {}
        for run, (segment, span, inside) in enumerate(zip(before, spans, in_opening, strict=True)):
            alike.setdefault(
                (span.stop - span.start, state_of(segment) is not None, inside), []
            ).append(run)
        self.batches = []
        self.members = list(alike.values())
        for runs in self.members:
            rows = torch.stack([torch.arange(spans[run].start, spans[run].stop) for run in runs])
            states = [state_of(before[run]) for run in runs]
            tensors = {} if None in states else self.memory.zeros(len(runs))
            self.memory.load(states, tensors)
            self.batches.append(StateBatch(rows, tensors, [in_opening[run] for run in runs]))
        return self.batches

    def end(
        self, segments: Sequence[Segment], passed: Sequence[Segment | None], passing: Sequence[bool]
    ) -> None:
        """The pass is done: keep what it left, for each run at the segment that it ends with.
        passed: a segment whose state was kept for this pass alone. passing: whether what is kept is
        for the next pass alone."""
        for batch, runs in zip(self.batches, self.members, strict=True):
            for place, run in enumerate(runs):
                for segment in (segments[run], passed[run]):
                    if segment is not None:
                        self.tree.set_state(segment, None)
                fits = self.residency.memory.device.free_bytes >= self.memory.nbytes
                near = fits if passing[run] else self.residency.state_on_device()
                self.tree.set_state(segments[run], self.memory.keep(batch.tensors, place, near))
        self.clear()

    def clear(self) -> None:
        self.memory.give(self.claimed)
        self.claimed = 0
        self.batches = []
        self.members = []


def state_of(segment: Segment) -> State | None:
    if segment.state is None and segment.parent is not None:
        raise RuntimeError(
            f"segment {segment.serial} at {segment.start} has no recurrent state to go on from"
        )
    return segment.state
