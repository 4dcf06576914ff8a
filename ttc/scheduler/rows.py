"""The rows of a running batch: what each branch was asked for, and its next token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

from torch import Tensor

from ttc.model.limits import ModelLimits
from ttc.sampling import Sampling, draw, random_states
from ttc.scheduler.stops import Stops
from ttc.tree.branch import Branch
from ttc.tree.segment import Segment


@dataclass(frozen=True, eq=False)
class Request:
    """What `RunningBatch.add` was asked for: one step of some branches, which begin it together."""

    stops: Stops
    sampling: Sampling
    statistics: bool
    problems: list[list[Branch]]


@dataclass(eq=False)
class Row:
    """A branch in a batch.

    start, limit: `len(tokens)` at the step's start, and where it ends at the latest.
    place: the number of its tail, once it has one.
    """

    branch: Branch
    request: Request
    start: int
    limit: int
    place: int = -1

    @classmethod
    def of(cls, branch: Branch, request: Request, step_tokens: int, limits: ModelLimits) -> Row:
        """A branch that is about to decode a step of at most so many tokens."""
        length = len(branch.tokens)
        left = limits.left(length)
        return cls(branch, request, length, length + (step_tokens if left is None else min(step_tokens, left)))

    @property
    def filled(self) -> int:
        """The tokens that its tail holds."""
        return len(self.branch.tokens) - 1 - self.branch.leaf.end

    @property
    def room(self) -> int:
        """The tokens that its tail has to have room for."""
        return self.limit - 1 - self.branch.leaf.end


def draw_tokens(rows: Sequence[Row], logits: Tensor) -> None:
    """Draw a token for each row, those with the same options together."""
    alike: dict[tuple[Sampling, bool], list[int]] = {}
    for i, row in enumerate(rows):
        alike.setdefault((row.request.sampling, row.request.statistics), []).append(i)
    for (sampling, statistics), chosen in alike.items():
        branches = [rows[i].branch for i in chosen]
        states = random_states([b.key for b in branches], [len(b.tokens) for b in branches])
        draws = draw(logits if len(alike) == 1 else logits[chosen], sampling, states, statistics=statistics)
        columns = (column or [nan] * len(branches) for column in draws)
        for branch, token, *figures in zip(branches, *columns, strict=True):
            branch.append(int(token), *figures)
            branch.usage.generated_tokens += 1


def paths(rows: Sequence[Row]) -> list[list[Segment]]:
    """The segments that each row's branch stands on."""
    return [row.branch.leaf.path() for row in rows]
