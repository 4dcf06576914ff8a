"""The recurrent states of the branches that decode."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ttc.branch import Branch
from ttc.memory.states import State, StateBatch, Tensors
from ttc.passes.runtime import Runtime


class RunningStates:
    """The states of branches that decode, side by side in a buffer, which each token changes in
    place.

    A branch's state is copied there from the segment that it stands on. The place of a branch that
    leaves, None until then, is taken by the last one.
    """

    def __init__(self, runtime: Runtime):
        self.residency = runtime.residency
        self.memory = runtime.memory.states
        self.tree = runtime.tree
        self.branches: list[Branch | None] = []
        self.buffer: Tensors = {}
        self.places = 0
        self.batch: StateBatch | None = None

    def make_room(self, count: int) -> None:
        """Have places for so many branches. Raises OutOfMemory."""
        if count <= self.places:
            return
        self.memory.claim(count - self.places)
        self.places = count
        larger = self.memory.zeros(count)
        for part, tensor in self.buffer.items():
            larger[part][: len(tensor)] = tensor
        self.buffer = larger

    def of(self, branches: Sequence[Branch]) -> StateBatch:
        """The states of these branches, in the order of a pass's rows; who is not among them has
        left. There is room for them."""
        for branch in [branch for branch in self.branches if branch not in branches]:
            self._remove(branch)
        joining = [branch for branch in branches if branch not in self.branches]
        last_state = self.tree.last_state
        states = [last_state(branch.leaf).state for branch in joining]
        self.memory.load(states, self.buffer, len(self.branches))
        self.branches += joining
        rows = torch.tensor([[branches.index(branch)] for branch in self.branches if branch])
        tensors = {part: tensor[: len(rows)] for part, tensor in self.buffer.items()}
        self.batch = StateBatch(rows, tensors)
        return self.batch

    def note_opening(self, opening: Callable[[Branch], int]) -> None:
        """A token is about to be computed. opening: see `Segment`."""
        assert self.batch is not None
        self.batch.in_opening = [
            branch is not None and len(branch.tokens) <= opening(branch) for branch in self.branches
        ]

    def leave(self, branch: Branch) -> State:
        """Keep a copy of a branch's state. Raises RuntimeError when a pass broke off, so that it is
        lost."""
        if self.batch is None or self.batch.broken or branch not in self.branches:
            raise RuntimeError("a pass broke off, and the states of its branches are lost")
        return self.memory.keep(
            self.batch.tensors, self.branches.index(branch), self.residency.state_on_device()
        )

    def forget(self, branch: Branch) -> None:
        """A branch leaves. It may come back with another state, which it has got meanwhile."""
        if branch in self.branches:
            self.branches[self.branches.index(branch)] = None

    def clear(self) -> None:
        self.memory.give(self.places)
        self.places = 0
        self.branches = []
        self.buffer = {}
        self.batch = None

    def _remove(self, branch: Branch | None) -> None:
        place = self.branches.index(branch)
        last = self.branches.pop()
        if last is not branch:
            for tensor in self.buffer.values():
                tensor[place] = tensor[len(self.branches)]
            self.branches[place] = last
