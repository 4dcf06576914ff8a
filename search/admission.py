"""Admission: how many problems are under way at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from ttc.backend import TOGETHER_TOKENS, Backend, Batch
from ttc.branch import Branch
from ttc.tree.segment import SNAPSHOT_TOKENS

PROBLEMS = 16
"""Problems under way at once by default, until the first has ended, which tells what one needs,
and on a backend that does not say what it has room for."""

WINDOW = 64
"""Problems after whose end earlier demands are forgotten: a server may run for weeks."""


class Demand(NamedTuple):
    """The most that one problem has needed at once.

    rows: of the batch. tokens: of KV. states: recurrent ones.
    """

    rows: int = 0
    tokens: int = 0
    states: int = 0

    def larger(self, other: Demand) -> Demand:
        return Demand(*map(max, self, other))


@dataclass
class ProblemAdmission:
    """The batch that searches decode in, and how many more problems may begin.

    concurrency: the most problems under way, None for as many as there is room for.
    max_rows: the most branches that decode at once, None for no limit.

    A problem is taken to need the most that any problem of late has needed at once: its prompt, and
        a step for each branch that it keeps and for each branch of the next step. A step counts for
        what branches have written in it; one that is not over yet for `TOGETHER_TOKENS` at most.
        Where that was too little, the youngest branches of the batch wait. The recurrent states of
        a problem are those along the prompt, and two of each branch. Half of the memory is left to
        trees that grow larger, so that the first problem begins alone.

    at_first: the most problems under way before one has ended. ended: how many have.
    recent, earlier: what was needed since the last `WINDOW` problems had ended, and before that.
    """

    batch: Batch
    concurrency: int | None
    max_rows: int | None
    at_first: float = inf
    ended: int = 0
    recent: Demand = field(default_factory=Demand)
    earlier: Demand = field(default_factory=Demand)

    @classmethod
    def of(
        cls, backend: Backend, concurrency: int | None = None, max_rows: int | None = None
    ) -> ProblemAdmission:
        """Without limits: the backend's `most_rows`, and `PROBLEMS` at first."""
        if not backend.joins:
            return cls(backend.running_batch(), concurrency or PROBLEMS, None)
        if concurrency is None and max_rows is None:
            limit = backend.most_rows
            return cls(backend.running_batch(limit), None, limit, at_first=PROBLEMS)
        return cls(backend.running_batch(max_rows), concurrency, max_rows)

    @property
    def demand(self) -> Demand:
        return self.recent.larger(self.earlier)

    def note_expansion(
        self, rows: int, prompt_tokens: int, step_tokens: int, kept: int = 0
    ) -> None:
        """A problem that keeps `kept` branches asks for `rows` more of up to `step_tokens`
        tokens."""
        self._note(rows, prompt_tokens, min(step_tokens, TOGETHER_TOKENS), kept)

    def note_step(self, children: Sequence[Branch], prompt_tokens: int, kept: int = 0) -> None:
        """The step of these branches is over, which are all that their problem has beside `kept`
        ones."""
        written = sum(len(child.tokens) - _start(child) for child in children)
        self._note(len(children), prompt_tokens, -(-written // len(children)), kept)

    def _note(self, rows: int, prompt_tokens: int, step_tokens: int, kept: int) -> None:
        tokens = prompt_tokens + (kept + rows) * step_tokens
        states = 1 + prompt_tokens // SNAPSHOT_TOKENS + 2 * (kept + rows)
        self.recent = self.recent.larger(Demand(rows, tokens, states))

    def has_room(self, active: int) -> bool:
        """Whether memory has room for one more problem beside the `active` ones."""
        if self.concurrency is not None:
            return active < self.concurrency
        return self._fits() > active

    def _fits(self) -> float:
        """How many problems there is room for; one while nobody has said what it needs."""
        _, tokens, states = self.demand
        return self.batch.fits(tokens, states) if tokens else 1

    def note_end(self) -> None:
        self.at_first = inf
        self.ended += 1
        if self.ended % WINDOW == 0:
            self.earlier, self.recent = self.recent, Demand()

    def count(self, active: int, waiting: int) -> int:
        """How many of the `waiting` problems may begin; one at least where none is active."""
        if not waiting:
            return 0  # what memory has left is not asked at every token
        rows = self.demand.rows
        admitted = waiting if self.concurrency is None else min(waiting, self.concurrency - active)
        if self.max_rows is not None and rows:
            admitted = min(admitted, (self.max_rows - len(self.batch)) // rows)
        if self.concurrency is None:
            fitting = self._fits() // 2 if self.demand.tokens else 1
            admitted = int(min(admitted, fitting - active, self.at_first - active))
        return max(admitted, int(not active))


def _start(branch: Branch) -> int:
    return branch.prompt_length if branch.parent is None else len(branch.parent.tokens)
