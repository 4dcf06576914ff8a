"""The recurrent states of a pass's sequences: taken from segments' ends, changed by the pass, and
kept at new ends."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttc.attention.plan import Plan
from ttc.errors import OutOfMemory
from ttc.memory.states import State, StateBatch
from ttc.passes.new_tokens import Target, require
from ttc.passes.runtime import Runtime
from ttc.tree.segment import MIN_SHARED_TOKENS, SNAPSHOT_TOKENS, Segment, common_prefix


class PassStates:
    """The states of one pass over new tokens: each run goes on from the state of the segment that
    it stands on, and leaves one at its end. What a pass changes counts on the device until `clear`.

    chosen: what the pass computes, with the segment that each goes on from, and whether its end is
        one that others go on from.
    """

    def __init__(self, runtime: Runtime):
        self.runtime = runtime
        self.memory = runtime.memory.states
        self.tree = runtime.tree
        self.chosen: dict[Target, tuple[Segment, int]] = {}
        self.claimed = 0
        self.batches: list[StateBatch] = []
        self.members: list[list[int]] = []  # which runs of the pass are the sequences of each batch

    def most(self, target: Target, targets: Sequence[Target]) -> int:
        """How many tokens of a target the pass may compute: up to where a state is kept, for others
        to go on from. None while it waits for another one's state, or for room. Raises OutOfMemory
        where there is none for the first one."""
        assert target.holder is not None
        leaf, tokens = target.holder.leaf, target.tokens
        if leaf.parent is not None and leaf.state is None:
            return 0
        others = [other for other in targets if self._alike(target, other)]
        if any(self._shared(target, other) for other in others if other in self.chosen):
            return 0
        if self.chosen and not self._another_fits(targets):
            return 0
        self.claim(1)
        start = leaf.end
        cuts = [start + SNAPSHOT_TOKENS - start % SNAPSHOT_TOKENS, target.opening]
        cuts += [start + self._shared(target, other) for other in others]
        end = min([len(tokens), *(cut for cut in cuts if cut > start)])
        self.chosen[target] = leaf, end
        return end - start

    @staticmethod
    def _alike(target: Target, other: Target) -> bool:
        both = target.shared and other.shared and other is not target
        return both and other.opening == target.opening

    @staticmethod
    def _shared(target: Target, other: Target) -> int:
        """How many tokens after a target's leaf another one begins with, too; 0 for few."""
        assert target.holder is not None
        shared = common_prefix(target.tokens, other.tokens) - target.holder.leaf.end
        return shared if shared >= MIN_SHARED_TOKENS or shared == len(other.tokens) else 0

    def _another_fits(self, targets: Sequence[Target]) -> bool:
        """Whether one more may run beside those that do, with room for what all of them lack."""
        try:
            require(self.runtime, targets)
        except OutOfMemory:
            return False
        return True

    # ---------------------------------------------------------------- the pass

    def claim(self, count: int) -> None:
        """Take the room of so many states, before that of what the pass writes. Raises
        OutOfMemory."""
        self.memory.claim(count)
        self.claimed += count

    def begin(self, plan: Plan, before: Sequence[Segment], in_opening: Sequence[bool]) -> None:
        """Give a plan the states of its runs, which go on after the segments `before`. in_opening:
        see `StateBatch`, of each run."""
        alike: dict[tuple[int, bool, bool], list[int]] = {}
        spans = [run.rows for run in plan.runs]
        for run, (segment, span, inside) in enumerate(zip(before, spans, in_opening, strict=True)):
            begun = state_of(segment) is not None
            alike.setdefault((span.stop - span.start, begun, inside), []).append(run)
        self.members = list(alike.values())
        for runs in self.members:
            rows = torch.stack([torch.arange(spans[run].start, spans[run].stop) for run in runs])
            states = [state_of(before[run]) for run in runs]
            tensors = {} if None in states else self.memory.zeros(len(runs))
            self.memory.load(states, tensors)
            self.batches.append(StateBatch(rows, tensors, [in_opening[run] for run in runs]))
        plan.states = self.batches

    def end(self, targets: Sequence[Target]) -> None:
        """The pass is done: keep what it left, for each run at the end of its target's path.
        targets: of each run."""
        for batch, runs in zip(self.batches, self.members, strict=True):
            for place, run in enumerate(runs):
                target = targets[run]
                assert target.holder is not None
                leaf, (before, end) = target.holder.leaf, self.chosen[target]
                if target.passing is before and before.refs == 1:
                    self.tree.set_state(before, None)
                target.passing = None if leaf.end == end else leaf
                if target.kept or target.passing:
                    fits = self.runtime.memory.device.free_bytes >= self.memory.nbytes
                    near = fits if target.passing else self.runtime.residency.state_on_device()
                    self.tree.set_state(leaf, self.memory.keep(batch.tensors, place, near))

    def clear(self) -> None:
        self.memory.give(self.claimed)
        self.claimed = 0
        self.batches = []


def state_of(segment: Segment) -> State | None:
    if segment.state is None and segment.parent is not None:
        raise RuntimeError(
            f"segment {segment.serial} at {segment.start} has no recurrent state to go on from"
        )
    return segment.state
