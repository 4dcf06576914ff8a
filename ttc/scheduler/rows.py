"""The rows of a running batch: what each branch was asked for, and its next token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from math import nan

import numpy as np
from torch import Tensor

from ttc.model.limits import ModelLimits
from ttc.model.processors import Processor, Texts, processed
from ttc.sampling import Sampling, draw, random_states
from ttc.scheduler.stops import Stops
from ttc.tree.branch import Branch
from ttc.tree.segment import Segment

_numbers = count()


@dataclass(frozen=True, eq=False)
class Request:
    """What `RunningBatch.add` was asked for: one step of some branches, which begin it together if
    there is room; of one problem's, where a gate compares them."""

    stops: Stops
    sampling: Sampling
    statistics: bool
    branches: list[Branch]


@dataclass(eq=False)
class Row:
    """A branch in a batch.

    start, limit: `len(tokens)` at the step's start, and where it ends at the latest.
    place: the number of its tail, once it has one.
    number: how many rows came before it.
    """

    branch: Branch
    request: Request
    start: int
    limit: int
    place: int = -1
    number: int = field(default_factory=lambda: next(_numbers))
    _text: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    _count: int = 0

    @classmethod
    def of(cls, branch: Branch, request: Request, step_tokens: int, limits: ModelLimits) -> Row:
        """A branch that is about to decode a step of at most so many tokens."""
        length = len(branch.tokens)
        left = limits.left(length)
        return cls(
            branch,
            request,
            length,
            length + (step_tokens if left is None else min(step_tokens, left)),
        )

    @property
    def written(self) -> int:
        """The tokens of the step so far."""
        return len(self.branch.tokens) - self.start

    @property
    def filled(self) -> int:
        """The tokens that its tail holds; of a row that waits, those whose KV has to be computed
        again."""
        return len(self.branch.tokens) - 1 - self.branch.leaf.end

    @property
    def room(self) -> int:
        """The tokens that its tail may still have to hold."""
        return self.limit - 1 - self.branch.leaf.end

    def text(self) -> np.ndarray:
        """The branch's tokens as an array, which grows with them: a long text is not read again for
        each token."""
        tokens = self.branch.tokens
        if len(self._text) < len(tokens):
            self._text = np.empty(max(self.limit, len(tokens)), np.int64)
            self._count = 0
        self._text[self._count : len(tokens)] = tokens[self._count :]
        self._count = len(tokens)
        return self._text[: self._count]


def draw_tokens(rows: Sequence[Row], logits: Tensor, processors: Sequence[Processor] = ()) -> None:
    """Draw a token for each row, those with the same options together.

    processors: change what tokens are drawn by first; what is kept of a token stays the model's.
    """
    requests: dict[Request, list[int]] = {}
    for i, row in enumerate(rows):
        requests.setdefault(row.request, []).append(i)
    alike: dict[tuple[Sampling, bool], list[int]] = {}
    for request, places in requests.items():
        alike.setdefault((request.sampling, request.statistics), []).extend(places)
    for (sampling, statistics), places in alike.items():
        chosen = sorted(places)  # as the logits: rows of several requests may alternate
        alike_rows = [rows[i] for i in chosen]
        branches = [row.branch for row in alike_rows]
        states = random_states([b.key for b in branches], [len(b.tokens) for b in branches])
        chosen_logits = logits if len(alike) == 1 else logits[chosen]
        scores = _scores(alike_rows, chosen_logits, processors) if processors else None
        draws = draw(chosen_logits, sampling, states, statistics=statistics, scores=scores)
        columns = (column or [nan] * len(branches) for column in draws)
        for branch, token, *figures in zip(branches, *columns, strict=True):
            branch.append(int(token), *figures)
            branch.usage.generated_tokens += 1


def _scores(rows: Sequence[Row], logits: Tensor, processors: Sequence[Processor]) -> Tensor:
    """What the rows' tokens are drawn by. A branch's tokens count, whatever its KV is from."""
    texts = Texts(
        [row.text() for row in rows], [row.branch.prompt_length for row in rows], logits.device
    )
    return processed(processors, texts, logits)


def paths(rows: Sequence[Row]) -> list[list[Segment]]:
    return [row.branch.leaf.path() for row in rows]
