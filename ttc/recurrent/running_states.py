"""The recurrent states of the branches that decode, which lie with their tails."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ttc.memory.states import State, StateBatch
from ttc.memory.storage import Storage as KV
from ttc.passes.runtime import Runtime
from ttc.recurrent.pass_states import state_of
from ttc.tree.branch import Branch


class RunningStates:
    """The states of branches that decode, side by side in the buffer of their tails, which each
    token changes in place.

    A branch's state is copied there from the segment that it stands on. The place of a branch that
    leaves is taken by the last one.
    """

    def __init__(self, runtime: Runtime):
        self.residency = runtime.residency
        self.memory = runtime.memory.states
        self.branches: list[Branch] = []
        self.tails: KV | None = None
        self.batch: StateBatch | None = None

    def of(self, branches: Sequence[Branch], tails: KV) -> StateBatch:
        """The states of these branches, in the order of a pass's rows; who is not among them has
        left. tails: theirs, which have the states of those who were there before in the same
        places."""
        self.tails = tails
        for branch in [branch for branch in self.branches if branch not in branches]:
            self._remove(branch)
        joining = [branch for branch in branches if branch not in self.branches]
        assert tails.states is not None
        self.memory.load(
            [state_of(branch.leaf) for branch in joining], tails.states, len(self.branches)
        )
        self.branches += joining
        rows = torch.tensor([[branches.index(branch)] for branch in self.branches])
        count = len(self.branches)
        self.batch = StateBatch(
            rows, {part: tensor[:count] for part, tensor in tails.states.items()}
        )
        return self.batch

    def note_opening(self, opening: Callable[[Branch], int]) -> None:
        """A token is about to be computed. opening: see `Segment`."""
        assert self.batch is not None
        self.batch.in_opening = [len(branch.tokens) <= opening(branch) for branch in self.branches]

    def leave(self, branch: Branch) -> State:
        """Keep a copy of a branch's state. Raises RuntimeError when a pass broke off, so that it is
        lost."""
        if self.batch is None or self.batch.broken:
            raise RuntimeError("a pass broke off, and the states of its branches are lost")
        return self.memory.keep(
            self.batch.tensors, self.branches.index(branch), self.residency.state_on_device()
        )

    def clear(self) -> None:
        self.branches = []
        self.tails = None
        self.batch = None

    def _remove(self, branch: Branch) -> None:
        place = self.branches.index(branch)
        last = len(self.branches) - 1
        assert self.tails is not None and self.tails.states is not None
        for tensor in self.tails.states.values():
            if place != last:
                tensor[place] = tensor[last]
        self.branches[place] = self.branches[last]
        self.branches.pop()
