"""The recurrent states of a pass's sequences: taken from segments' ends, changed by the pass, and kept at new ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ttc.memory.states import State, StateBatch, Tensors, side_by_side
from ttc.tree.branch import Branch
from ttc.tree.segment import Segment
from ttc.tree.tree import Tree


class PassStates:
    """States of passes over new tokens: each run goes on from the state of the segment that it stands on, and leaves
    one at its own end."""

    def __init__(self, tree: Tree):
        self.tree = tree
        self.batches: list[StateBatch] = []
        self.members: list[list[int]] = []  # which runs of the pass are the sequences of each batch

    def require(self, tokens: int, ends: int) -> None:
        """Raise OutOfMemory unless there is room for the KV of so many tokens and for states at so many ends."""
        self.tree.memory.require_states(ends, tokens)

    def begin(self, before: Sequence[Segment], spans: Sequence[slice], in_opening: Sequence[bool]) -> list[StateBatch]:
        """The batches of a pass whose runs go on after the segments `before`, the rows of each being one of `spans`.
        in_opening: see `StateBatch`, of each run."""
        alike: dict[tuple[int, bool, bool], list[int]] = {}
        for run, (segment, span, inside) in enumerate(zip(before, spans, in_opening, strict=True)):
            alike.setdefault((span.stop - span.start, _state(segment) is not None, inside), []).append(run)
        self.batches, self.members = [], list(alike.values())
        for runs in self.members:
            states = [state for run in runs if (state := _state(before[run])) is not None]
            rows = torch.stack([torch.arange(spans[run].start, spans[run].stop) for run in runs])
            tensors = side_by_side(states) if states else {}
            self.batches.append(StateBatch(rows, tensors, [in_opening[run] for run in runs]))
        return self.batches

    def end(self, segments: Sequence[Segment]) -> None:
        """The pass is done: keep what it left, for each run at the segment that it ends with."""
        for batch, runs in zip(self.batches, self.members, strict=True):
            for place, run in enumerate(runs):
                self.tree.set_state(segments[run], State.copied(batch.tensors, place))


def _state(segment: Segment) -> State | None:
    """The state that one goes on from after a segment, None after the trunk."""
    if segment.state is None and segment.parent is not None:
        raise RuntimeError(f"segment {segment.serial} at {segment.start} has no recurrent state to go on from")
    return segment.state


class RunningStates:
    """The states of branches that decode, side by side in one buffer, which each token changes in place.

    A branch's state is copied there from the segment that it stands on; whoever else stands on that keeps it. The place
    of a branch that leaves is taken by the last one. The buffer is counted as states of `capacity` branches.
    """

    def __init__(self, tree: Tree):
        self.tree = tree
        self.branches: list[Branch] = []
        self.capacity = 0
        self.tensors: Tensors = {}
        self.batch: StateBatch | None = None

    def of(self, branches: Sequence[Branch]) -> StateBatch:
        """The states of these branches, in the order of a pass's rows; who is not among them has left."""
        for branch in [branch for branch in self.branches if branch not in branches]:
            self._remove(branch)
        joining = [branch for branch in branches if branch not in self.branches]
        self._make_room(len(branches))
        for branch in joining:
            state = _state(branch.leaf)
            for part, tensor in self.tensors.items():
                place = tensor[len(self.branches)]
                place.zero_() if state is None else place.copy_(state.tensors[part][0])
            self.branches.append(branch)
        rows = torch.tensor([[branches.index(branch)] for branch in self.branches])
        count = len(self.branches)
        self.batch = StateBatch(rows, {part: tensor[:count] for part, tensor in self.tensors.items()})
        return self.batch

    def note_opening(self, opening: Callable[[Branch], int]) -> None:
        """A token is about to be computed. opening: see `Segment`."""
        assert self.batch is not None
        self.batch.in_opening = [len(branch.tokens) <= opening(branch) for branch in self.branches]

    def leave(self, branch: Branch) -> State:
        """A copy of a branch's state. Raises RuntimeError when a pass broke off, so that it is lost."""
        if self.batch is None or self.batch.broken:
            raise RuntimeError("a pass broke off, and the states of its branches are lost")
        return State.copied(self.tensors, self.branches.index(branch))

    def clear(self) -> None:
        """Nobody decodes any more."""
        self.tree.memory.states.give(self.capacity * self.tree.memory.state_bytes)
        self.branches, self.capacity, self.tensors, self.batch = [], 0, {}, None

    def _make_room(self, count: int) -> None:
        if count <= self.capacity:
            return
        memory = self.tree.memory
        assert memory.state_shape is not None
        memory.states.take(count * memory.state_bytes)
        larger = memory.state_shape.zeros(count)
        for part, tensor in self.tensors.items():
            larger[part][: len(self.branches)] = tensor[: len(self.branches)]
        memory.states.give(self.capacity * memory.state_bytes)
        self.tensors, self.capacity = larger, count

    def _remove(self, branch: Branch) -> None:
        place, last = self.branches.index(branch), len(self.branches) - 1
        for tensor in self.tensors.values():
            if place != last:
                tensor[place] = tensor[last]
        self.branches[place] = self.branches[last]
        self.branches.pop()
