"""The batch that searches decode in, and how many problems are under way at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from ttc.cost_model.options import MOST_ROWS
from ttc.errors import BranchRefused, RemoteError
from ttc.protocols import Backend, Batch, RunsBatches
from ttc.sampling import SAMPLED, Sampling
from ttc.tree.branch import Branch
from ttc.tree.tree import SNAPSHOT_TOKENS

PROBLEMS = 16
"""Problems under way at once, unless the caller says otherwise, until the first has ended, which tells what one needs,
and on a backend that does not say what it has room for."""

NOTHING = (0, 0, 0)
"""Rows, tokens and states that no problem has asked for."""

WINDOW = 64
"""Problems after whose end it is forgotten what others had asked for before them: a server may run for weeks."""


@dataclass
class Draining:
    """The batch of a backend that has `generate` alone: whatever was added decodes its whole step."""

    backend: Backend
    added: dict[tuple[Any, ...], list[tuple[Sequence[Branch], int]]] = field(default_factory=dict)

    def add(
        self,
        branches: Sequence[Branch],
        max_tokens: int,
        *,
        stop: Sequence[str] = (),
        end: Sequence[str] = (),
        sampling: Sampling = SAMPLED,
        statistics: bool = False,
    ) -> None:
        """Let branches decode one step; steps of different lengths go together."""
        self.added.setdefault((tuple(stop), tuple(end), sampling, statistics), []).append((branches, max_tokens))

    def step(self) -> list[Branch]:
        """One call of `generate` for all that have the same options."""
        ended: list[Branch] = []
        while self.added:
            options = next(iter(self.added))
            calls, (stop, end, sampling, statistics) = self.added.pop(options), options
            branches = [branch for group, _ in calls for branch in group]
            limits = [limit for group, limit in calls for _ in group]
            most: int | list[int] = limits[0] if len(set(limits)) == 1 else limits
            more = {"statistics": True} if statistics else {}
            try:
                self.backend.generate(branches, most, stop=stop, end=end, sampling=sampling, **more)
            except BranchRefused as refusal:  # the others' step is lost with it
                raise RemoteError(str(refusal)) from refusal
            ended += branches
        return ended

    def forget(self, branches: Sequence[Branch]) -> None:
        """Leave out branches that are about to be released."""
        gone = set(branches)
        for calls in self.added.values():
            calls[:] = [([branch for branch in group if branch not in gone], limit) for group, limit in calls]

    def close(self) -> None:
        self.added.clear()

    def fits(self, tokens: int, states: int) -> float:
        """The backend does not say."""
        return inf

    def __len__(self) -> int:
        return sum(len(group) for calls in self.added.values() for group, _ in calls)


@dataclass
class Room:
    """Says how many more problems may begin.

    concurrency: the most problems under way, None for as many as there is room for. max_rows: the most branches that
    decode at once, None for `MOST_ROWS` where `concurrency` is None too, else for no limit.

    A problem is taken to need as many rows, as many tokens of KV and as many recurrent states as the most that any
    problem of late has asked for at once. Its tokens are its prompt, a step for each branch that it keeps, and for each
    branch of the next step a tail and what that is frozen into. Its states, if the model keeps any, are those along the
    prompt, and two of each branch: of one that it keeps its own and where it parted from others, of one that decodes
    the one that changes and the one that is kept. Half of the memory is left to trees that grow larger. So the first
    problem begins alone.

    at_first: the most problems under way before one has ended. done: how many have.
    asked_now, asked_before: the most rows, tokens and states asked for since the last `WINDOW` problems had ended, and
        in the window before that.
    """

    batch: Batch
    concurrency: int | None
    max_rows: int | None
    at_first: float = inf
    done: int = 0
    asked_now: tuple[int, ...] = NOTHING
    asked_before: tuple[int, ...] = NOTHING

    @classmethod
    def of(cls, backend: Backend, concurrency: int | None, max_rows: int | None) -> Room:
        """The room that a backend has, and a batch in it."""
        if not isinstance(backend, RunsBatches):
            return cls(Draining(backend), PROBLEMS if concurrency is None else concurrency, None)
        if concurrency is None and max_rows is None:
            return cls(backend.running_batch(MOST_ROWS), None, MOST_ROWS, at_first=PROBLEMS)
        return cls(backend.running_batch(max_rows), concurrency, max_rows)

    def asked(self, rows: int, prompt_tokens: int, step_tokens: int, kept: int = 0) -> None:
        """A problem that keeps so many branches has asked for `rows` more, each of which may grow by `step_tokens`."""
        tokens = prompt_tokens + (kept + 2 * rows) * step_tokens
        states = 1 + prompt_tokens // SNAPSHOT_TOKENS + 2 * (kept + rows)
        self.asked_now = tuple(map(max, self.asked_now, (rows, tokens, states)))

    def ended(self) -> None:
        """A problem has ended, so that it is known what one needs. What one asked for long ago is forgotten."""
        self.at_first = inf
        self.done += 1
        if self.done % WINDOW == 0:
            self.asked_before, self.asked_now = self.asked_now, NOTHING

    def forget(self, branches: Sequence[Branch]) -> None:
        """Branches whose step is under way are about to be released. Backends with a batch of their own know it."""
        if isinstance(self.batch, Draining):
            self.batch.forget(branches)

    def problems(self, active: int, waiting: int) -> int:
        """How many of the `waiting` problems may begin beside those that are under way."""
        rows, tokens, states = map(max, self.asked_now, self.asked_before)
        most = waiting if self.concurrency is None else min(waiting, self.concurrency - active)
        if self.max_rows is not None and rows:
            most = min(most, (self.max_rows - len(self.batch)) // rows)
        if self.concurrency is None:
            fitting = self.batch.fits(tokens, states) // 2 if tokens else 1
            most = int(min(most, fitting - active, self.at_first - active))
        return max(most, int(not active and waiting > 0))
