"""The rows of a running batch: what each branch was asked for, and its next token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import nan
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ttc.branch import Branch
from ttc.draws import QueuedDraw, columns_on_host, queue_draw, random_states, read_draws
from ttc.memory.small_copies import SoFar, upload
from ttc.model.generation_settings import Drawing, GenerationSettings
from ttc.model.limits import ModelLimits
from ttc.model.processors import Texts, processed
from ttc.sampling import Sampling
from ttc.scheduler.stops import Stops
from ttc.step import Grammar
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
    grammar: Grammar | None = None
    top_logprobs: int = 0


@dataclass(eq=False)
class Row:
    """A branch in a batch.

    start, limit: `len(tokens)` at the step's start, and where it ends at the latest.
    begun: the number of the token whose KV it wrote first where it writes now, None while it is not
        at work. leaf: the segment that it writes in then. number: how many rows came before it.
    """

    branch: Branch
    request: Request
    start: int
    limit: int
    begun: int | None = None
    leaf: Segment | None = None
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
        """The tokens that it has written where it writes now; of a row that waits, those whose KV
        has to be computed again."""
        return len(self.branch.tokens) - 1 - self.branch.leaf.end

    @property
    def room(self) -> int:
        """The tokens whose KV it may still have to write, from its leaf on."""
        return self.limit - 1 - self.branch.leaf.end

    def text(self) -> np.ndarray:
        """The branch's tokens as an array, which grows with them."""
        tokens = self.branch.tokens
        if len(self._text) < len(tokens):
            self._text = np.empty(max(self.limit, len(tokens)), np.int64)
            self._count = 0
        self._text[self._count : len(tokens)] = tokens[self._count :]
        self._count = len(tokens)
        return self._text[: self._count]


def draw_tokens(
    rows: Sequence[Row],
    logits: Tensor,
    settings: GenerationSettings,
    meanwhile: Callable[[Tensor], None] | None = None,
) -> bool:
    """Draw a token for each row, those with the same options together. The work of all of them is
    queued on the device before any is waited for.

    settings: of the model; what is kept of a token stays as they do not change it.
    meanwhile: is called with the tokens (rows,) on the device before they are waited for.
    Returns False where `meanwhile` got other tokens than the rows, some of which were drawn again.
    """
    groups = _alike(rows)
    queued = list[QueuedDraw]()
    for (sampling, statistics, has_grammar), places in groups.items():
        group = [rows[i] for i in places]
        branches = [row.branch for row in group]
        states = random_states([b.key for b in branches], [len(b.tokens) for b in branches])
        group_logits = logits if len(groups) == 1 else rows_of(logits, places)
        drawing = settings.drawing(sampling)
        read = _texts(group, group_logits, drawing) if drawing.reads_texts else {}
        allowed = _allowed(group, logits.shape[-1]) if has_grammar else None
        queued.append(
            queue_draw(
                group_logits,
                drawing.sampling,
                states,
                statistics=statistics,
                allowed=allowed,
                **read,
            )
        )
    columns = None
    if meanwhile is not None:
        so_far = SoFar(logits.device)
        meanwhile(_in_order(queued, list(groups.values())))
        with so_far:
            columns = columns_on_host(queued)
    for places, draws in zip(groups.values(), read_draws(queued, columns), strict=True):
        kept = (column or [nan] * len(places) for column in draws)
        for i, token, *figures in zip(places, *kept, strict=True):
            branch = rows[i].branch
            branch.append(int(token), *figures)
            branch.usage.generated_tokens += 1
    _keep_alternatives(rows, logits)
    return not any(draw.drawn_again for draw in queued)


def _keep_alternatives(rows: Sequence[Row], logits: Tensor) -> None:
    """Note the likeliest tokens in the places of those that were drawn last, for rows that ask for
    them. Their log-probabilities are the model's own, as those of the tokens are."""
    asking = [i for i, row in enumerate(rows) if row.request.top_logprobs]
    if not asking:
        return
    own = rows_of(logits, asking)
    own = own.to(torch.promote_types(own.dtype, torch.float32))
    most = max(rows[i].request.top_logprobs for i in asking)
    values, tokens = own.topk(min(most, own.shape[-1]))
    values = values.double() - own.logsumexp(-1, keepdim=True).double()
    for i, numbers, logprobs in zip(asking, tokens.tolist(), values.tolist(), strict=True):
        branch, count = rows[i].branch, rows[i].request.top_logprobs
        drawn = {branch.tokens[-1]: branch.logprobs[-1]}
        pairs = zip(numbers[:count], logprobs[:count], strict=True)
        place = len(branch.tokens) - 1
        branch.alternatives[place] = [(n, drawn.get(n, logprob)) for n, logprob in pairs]


def _alike(rows: Sequence[Row]) -> dict[tuple[Sampling, bool, bool], list[int]]:
    """The numbers of the rows that are drawn alike, by their options. They rise."""
    requests: dict[Request, list[int]] = {}
    for i, row in enumerate(rows):
        requests.setdefault(row.request, []).append(i)
    alike: dict[tuple[Sampling, bool, bool], list[int]] = {}
    for request, places in requests.items():
        options = request.sampling, request.statistics, request.grammar is not None
        alike.setdefault(options, []).extend(places)
    return {options: sorted(places) for options, places in alike.items()}


def _allowed(rows: Sequence[Row], vocab: int) -> np.ndarray:
    """The tokens that may follow in each row by its grammar, as `queue_draw` takes them."""
    allowed = np.zeros((len(rows), -(-vocab // 32)), np.uint32)
    for row, words in zip(rows, allowed, strict=True):
        assert row.request.grammar is not None
        row.request.grammar.fill(row.branch, words)
    return allowed


def rows_of(tensor: Tensor, places: Sequence[int]) -> Tensor:
    """Some rows of a tensor, chosen on their device without waiting for it."""
    (on_device,) = upload([np.array(places, np.int64)], tensor.device)
    return tensor.index_select(0, on_device)


def _in_order(queued: Sequence[QueuedDraw], groups: Sequence[Sequence[int]]) -> Tensor:
    """The tokens of draws for some rows each, in the order of the rows, on the device."""
    tokens = torch.cat([draw.tokens for draw in queued])
    if len(groups) == 1:
        return tokens
    return rows_of(tokens, np.argsort(np.concatenate(groups)).tolist())


def _texts(rows: Sequence[Row], logits: Tensor, drawing: Drawing) -> dict[str, Any]:
    """What a draw is told of the rows' texts: the texts, or the scores that they lead to."""
    texts = [row.text() for row in rows]
    if not drawing.processors:
        return {"texts": texts}
    read = Texts(texts, [row.branch.prompt_length for row in rows], logits.device)
    return {"scores": processed(drawing.processors, read, logits)}


def paths(rows: Sequence[Row]) -> list[list[Segment]]:
    return [row.branch.leaf.path() for row in rows]
