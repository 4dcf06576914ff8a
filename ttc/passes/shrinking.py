"""A pass that rows leave between layers, so that the layers after are really saved for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ttc.attention.hf_hook import attending
from ttc.attention.kernels import Layer
from ttc.attention.plan import Entry, ExtendPlan, Piece
from ttc.errors import UnsupportedModel
from ttc.memory.kv import KV, LayerKV
from ttc.model.check import CHECK_TOKENS
from ttc.model.lens import Lens, joined, parts_of
from ttc.model.runner import ModelRunner

Decide = Callable[[int, Sequence[int], Tensor], set[int]]
"""(layers computed, branches of the pass that are left, their lens logits (branches, vocab)) -> those that leave."""
Watch = Callable[[Sequence[int], int, Tensor, Tensor], None]
"""Sees each look: branches, layers computed, their last rows' states (branches, width), their lens logits."""


class _AllOut(Exception):
    """No row is left, so the layers that follow need not run."""


class ShrinkingPass:
    """One forward pass over the pieces of a plan, which leave it when `decide` says so.

    decide: asked after layer `first_look` and each later one but the last. found: per piece the layers that it went
    through and the logits (vocab,) of its last row there. rows: computed by each layer.
    KV that a piece which left would have written in later layers is never written: its segments must be dropped.
    """

    def __init__(self, lens: Lens, plan: ExtendPlan, decide: Decide, first_look: int, watch: Watch | None = None):
        self.lens, self.whole, self.plan, self.decide, self.first_look = lens, plan, plan, decide, first_look
        self.watch = watch
        self.live = list(range(len(plan.pieces)))
        self.kept: Tensor | None = None  # the rows that are left, once some are gone
        self.found: dict[int, tuple[int, Tensor]] = {}
        self.rows = [0] * len(lens.layers)
        self.lens_rows = 0

    def run(self, runner: ModelRunner, tokens: Sequence[int]) -> None:
        forwards = [self._instead_of(layer.forward, depth) for depth, layer in enumerate(self.lens.layers, 1)]
        with self.lens.running(forwards), suppress(_AllOut):
            runner.forward(tokens, self.whole, keep=[0])

    def _instead_of(self, own: Callable[..., Any], depth: int) -> Callable[..., Any]:
        """What layer number `depth` runs: itself on the rows that are left, then a look at them."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            if self.kept is not None:  # the model's loop hands the previous layer's states on, and all else unchanged
                args = (*args[:1], *self._rows_of(args[1:]))
                kwargs = {k: v if k == "hidden_states" else self._rows_of(v) for k, v in kwargs.items()}
            with attending(self.plan):
                output = own(*args, **kwargs)
            return self._look(depth, output)

        return forward

    def _look(self, depth: int, output: Any) -> Any:
        states = parts_of(output)[0]
        self.rows[depth - 1] = states.shape[1]
        last = depth == len(self.rows)
        if depth < self.first_look and not last:
            return output
        ends = [piece.rows.stop - 1 for piece in self.plan.pieces]
        logits = self.lens.logits(output, ends)
        self.lens_rows += len(logits)
        if self.watch is not None:
            self.watch(self.live, depth, states[0, ends], logits)
        leaving = set(self.live) if last else self.decide(depth, self.live, logits)
        self.found |= {i: (depth, row) for i, row in zip(self.live, logits, strict=True) if i in leaving}
        return self.without(leaving, output)

    def without(self, leaving: set[int], output: Any) -> Any:
        """What the next layer gets of a layer's output once the pieces `leaving` are gone."""
        if not leaving:
            return output
        states, others = parts_of(output)
        stay = [piece.rows for i, piece in zip(self.live, self.plan.pieces, strict=True) if i not in leaving]
        self.live = [i for i in self.live if i not in leaving]
        if not self.live:
            raise _AllOut
        self.plan = Remaining(self.whole, self.live)
        self.kept = _indices([self.whole.pieces[i].rows for i in self.live], states.device)
        return joined(states.index_select(1, _indices(stay, states.device)), others)

    def _rows_of(self, value: Any) -> Any:
        """What is left of a layer's argument: its kept rows if it has a row for each of the pass, else all of it."""
        if isinstance(value, dict):
            return {k: self._rows_of(v) for k, v in value.items()}
        if isinstance(value, tuple | list):
            return type(value)(map(self._rows_of, value))
        if not isinstance(value, Tensor) or (dim := _row_dim(value, len(self.whole.positions))) is None:
            return value
        return value if self.kept is None else value.index_select(dim, self.kept.to(value.device))


class Remaining(ExtendPlan):
    """What the pieces numbered `live` still need of a plan. Its stream goes on, so entries keep their numbers."""

    def __init__(self, whole: ExtendPlan, live: Sequence[int]):
        spans = [whole.pieces[i].rows for i in live]
        kept = {row for span in spans for row in range(span.start, span.stop)}
        rank = [0, *accumulate(row in kept for row in range(len(whole.positions)))]

        def moved(rows: slice) -> slice:
            return slice(rank[rows.start], rank[rows.stop])

        super().__init__(
            [Entry(e.kv, e.start, e.length, moved(e.rows)) for e in whole.entries],
            [whole.positions[row] for row in sorted(kept)],
            [Piece(moved(whole.pieces[i].rows), whole.pieces[i].blocks) for i in live],
            whole.memory,
            whole.stream,
        )

    def _attend(self, layer: Layer, index: int, q: Tensor, copy: LayerKV, out: Tensor, lse: Tensor) -> None:
        rows = self.entries[index].rows
        if rows.start < rows.stop:
            super()._attend(layer, index, q, copy, out, lse)


def _indices(spans: Sequence[slice], device: torch.device) -> Tensor:
    return torch.tensor([row for span in spans for row in range(span.start, span.stop)], device=device)


def _row_dim(tensor: Tensor, rows: int) -> int | None:
    """The dimension that counts the pass's rows: the first such after one of 1 (one sequence), else the leading."""
    shape = tensor.shape
    after_one = (dim for dim in range(1, len(shape)) if shape[dim - 1] == 1 and shape[dim] == rows)
    return next(after_one, 0 if shape and shape[0] == rows else None)


@torch.inference_mode()
def checked_lens(runner: ModelRunner) -> Lens:
    """The lens of a runner's model.

    Raises UnsupportedModel unless, on a few tokens, the lens after the last layer gives the model's own logits, also
    for rows that go on alone.
    """
    if runner.recurrent is not None:
        raise UnsupportedModel(
            f"{type(runner.model).__name__} has recurrent layers, and rows that leave a pass early would leave their "
            "states incomplete; score it without an exit"
        )
    lens = Lens(runner.model)
    name, half = type(runner.model).__name__, CHECK_TOKENS // 2
    vocabulary = runner.model.config.get_text_config().vocab_size
    kv = KV(len(runner.shapes), CHECK_TOKENS)
    kv.device = [
        LayerKV.empty(shape, CHECK_TOKENS, None, runner.dtype, runner.device, on_host=False) for shape in runner.shapes
    ]
    pieces = [Piece(slice(n, n + half), [(kv, n, half)]) for n in (0, half)]
    plan = ExtendPlan([], [*range(half)] * 2, pieces)
    tokens = [7 * (n + 1) % vocabulary for n in range(CHECK_TOKENS)]
    expected = runner.forward(tokens, plan)[half - 1 :: half].double()
    together = ShrinkingPass(lens, plan, lambda *_: set(), first_look=1)
    alone = ShrinkingPass(lens, plan, lambda depth, *_: {0} if depth == 1 else set(), first_look=1)
    try:
        together.run(runner, tokens)
        alone.run(runner, tokens)
    except Exception as error:
        raise UnsupportedModel(f"{name} cannot leave a scoring pass early: {error}") from error
    found = torch.stack([together.found[0][1], together.found[1][1], alone.found[1][1]]).double()
    gap = (found - expected[[0, 1, 1]]).abs()
    # mixture-of-experts routing may flip in 16 bits, so the mean is compared there, not the largest
    exact = runner.dtype in (torch.float32, torch.float64)
    off = float(gap.max() if exact else gap.mean())
    limit = 1e-4 + (1e-4 if exact else 5e-2) * float(expected.abs().max())
    if not off <= limit:
        raise UnsupportedModel(
            f"{name} gives other logits from its last layer's states than in one run (off by {off:.3g}, limit "
            f"{limit:.3g}), so it cannot leave a scoring pass early; score it without an exit"
        )
    return lens
