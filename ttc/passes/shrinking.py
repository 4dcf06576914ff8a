"""A pass that rows leave between layers, so that the layers after are really saved for them."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ttc.attention.hf_hook import attending
from ttc.attention.plan import Plan, Run
from ttc.errors import UnsupportedModel, refusing
from ttc.memory.states import StateBatch, Tensors
from ttc.memory.storage import Places, Storage
from ttc.model.check.model_check import CHECK_TOKENS
from ttc.model.recurrent_layers import Recurrent
from ttc.model.running.lens import Lens, joined, parts_of, row_dim, rows_of
from ttc.model.running.runner import ModelRunner

Decide = Callable[[int, Sequence[int], Tensor], set[int]]
"""(layers computed, branches that are left, their lens logits (branches, vocab)) -> those that
leave."""
LayerWatch = Callable[[Sequence[int], int, Tensor, Tensor], None]
"""Sees each look: branches, layers computed, their last rows' states (branches, width), their lens
logits."""


class _AllOut(Exception):
    """No row is left, so the layers that follow need not run."""


class ShrinkingPass:
    """One forward pass over the runs of a plan, which leave it when `decide` says so, asked after
    layer `first_look` and each later one but the last.

    results: per run the layers that it went through and the logits (vocab,) of its last row there.
        rows: computed by each layer.
    A run that leaves writes no KV in later layers: its segments must be dropped.
    """

    def __init__(
        self,
        lens: Lens,
        plan: Plan,
        decide: Decide,
        first_look: int,
        watch: LayerWatch | None = None,
    ):
        self.lens = lens
        self.whole = plan
        self.plan = plan
        self.decide = decide
        self.first_look = first_look
        self.watch = watch
        self.live = list(range(len(plan.runs)))
        self.kept: Tensor | None = None  # the rows that are left, once some are gone
        # what the last layer gave besides states, for the next one
        self.others: tuple[Any, ...] = ()
        # KV that layers leave for later ones
        self.shared: list[UserDict[str, tuple[Tensor, ...]]] = []
        self.recurrent: Recurrent | None = None
        self.results: dict[int, tuple[int, Tensor]] = {}
        self.rows = [0] * len(lens.layers)
        self.lens_rows = 0

    def run(self, runner: ModelRunner, tokens: Sequence[int]) -> None:
        self.recurrent = runner.recurrent
        forwards = [
            self._instead_of(layer.forward, depth)
            for depth, layer in enumerate(self.lens.layers, 1)
        ]
        with self.lens.running(forwards), suppress(_AllOut):
            runner.forward(tokens, self.whole, keep=[0])

    def _instead_of(self, layer_forward: Callable[..., Any], depth: int) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            # the model's loop hands on what the layer before gave, and all else unchanged
            if self.kept is not None:
                args = (*args[:1], *self._rows_of(args[1:]))
                kwargs = {
                    k: v if k == "hidden_states" else self._rows_of(v) for k, v in kwargs.items()
                }
            self.shared = [
                value for value in (*args, *kwargs.values()) if isinstance(value, UserDict)
            ]
            with attending(self.plan):
                output = layer_forward(*args, **kwargs)
            self.others = parts_of(output)[1] or ()
            return self._look(depth, output)

        return forward

    def _look(self, depth: int, output: Any) -> Any:
        states = rows_of(output)
        self.rows[depth - 1] = len(states)
        last = depth == len(self.rows)
        if depth < self.first_look and not last:
            return output
        ends = [run.rows.stop - 1 for run in self.plan.runs]
        logits = self.lens.logits(output, ends)
        self.lens_rows += len(logits)
        if self.watch is not None:
            self.watch(self.live, depth, states[ends], logits)
        leaving = set(self.live) if last else self.decide(depth, self.live, logits)
        self.results |= {
            i: (depth, row) for i, row in zip(self.live, logits, strict=True) if i in leaving
        }
        return self.without(leaving, depth, output)

    def without(self, leaving: set[int], depth: int, output: Any) -> Any:
        """What the next layer gets of layer `depth`'s output once the runs `leaving` are gone."""
        if not leaving:
            return output
        states, others = parts_of(output)
        dim = row_dim(states)
        spans = [
            run.rows for i, run in zip(self.live, self.plan.runs, strict=True) if i not in leaving
        ]
        self.live = [i for i in self.live if i not in leaving]
        if not self.live:
            raise _AllOut
        self.plan = Remaining(self.whole, self.live, depth)
        if self.recurrent is not None:
            self.recurrent.go_on_with(self.plan.states)
        self.kept = _indices([self.whole.runs[i].rows for i in self.live], states.device)
        stay = _indices(spans, states.device)
        for shared in self.shared:
            for name, tensors in shared.items():  # keys and values (1, kv_heads, rows, dim)
                shared[name] = tuple(
                    tensor.index_select(-2, stay.to(tensor.device)) for tensor in tensors
                )
        self.others = _picked(self.others, states.shape[dim], stay)
        return joined(states.index_select(dim, stay), None if others is None else self.others)

    def _rows_of(self, value: Any) -> Any:
        """What is left of a layer's argument: its kept rows if it has one for each row of the
        pass."""
        if self.kept is None or any(value is other for other in self.others):
            return value
        if isinstance(value, tuple):
            return tuple(map(self._rows_of, value))
        return _picked(value, len(self.whole.positions), self.kept)


class Remaining(Plan):
    """What the runs numbered `live` still need of a plan after `depth` layers."""

    def __init__(self, whole: Plan, live: Sequence[int], depth: int = 0):
        spans = [whole.runs[i].rows for i in live]
        kept = {row for span in spans for row in range(span.start, span.stop)}
        rank = [0, *accumulate(row in kept for row in range(len(whole.positions)))]

        def moved(rows: slice) -> slice:
            return slice(rank[rows.start], rank[rows.stop])

        super().__init__(
            [replace(piece, rows=moved(piece.rows)) for piece in whole.pieces],
            [whole.positions[row] for row in sorted(kept)],
            [Run(moved(whole.runs[i].rows), whole.runs[i].places) for i in live],
        )
        self.policy = whole.policy
        self.stream = whole.stream
        self._turns = whole._turns  # a module that serves several layers goes on with its next one
        ranks = torch.tensor(rank)
        self.states = []
        for batch in whole.states:
            if stay := [n for n, row in enumerate(batch.rows[:, 0].tolist()) if row in kept]:
                self.states.append(batch.only(stay, ranks[batch.rows[stay]], depth))


def _indices(spans: Sequence[slice], device: torch.device) -> Tensor:
    return torch.tensor(
        [row for span in spans for row in range(span.start, span.stop)], device=device
    )


def _picked(value: Any, rows: int, kept: Tensor) -> Any:
    if isinstance(value, dict):
        return {k: _picked(v, rows, kept) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_picked(item, rows, kept) for item in value)
    if not isinstance(value, Tensor) or (dim := _row_dim(value, rows)) is None:
        return value
    return value.index_select(dim, kept.to(value.device))


def _row_dim(tensor: Tensor, rows: int) -> int | None:
    """The dimension that counts the pass's rows: the first such after one of 1, else the
    leading."""
    shape = tensor.shape
    after_one = (dim for dim in range(1, len(shape)) if shape[dim - 1] == 1 and shape[dim] == rows)
    return next(after_one, 0 if shape and shape[0] == rows else None)


class _Trial:
    """Two sequences of a few tokens, which go on from recurrent states where a model has any."""

    def __init__(self, runner: ModelRunner):
        vocabulary = runner.model.config.get_text_config().vocab_size
        self.runner = runner
        self.half = CHECK_TOKENS // 2
        self.tokens = [7 * (n + 1) % vocabulary for n in range(CHECK_TOKENS)]
        self.kv = Storage.uncounted(runner.shapes, CHECK_TOKENS, runner.dtype, runner.device)
        self.states: Tensors = {}
        if runner.recurrent is not None:
            first = self.plan()
            runner.forward(self.tokens, first)
            self.states = first.states[0].tensors

    def plan(self) -> Plan:
        half = self.half
        runs = [Run(slice(n, n + half), [Places(self.kv, n, half)]) for n in (0, half)]
        plan = Plan([], [*range(half)] * 2, runs)
        if self.runner.recurrent is not None:
            copies = {part: tensor.clone() for part, tensor in self.states.items()}
            plan.states = [
                StateBatch(torch.arange(CHECK_TOKENS).view(2, half), copies, [True, True])
            ]
        return plan

    def shrinking(self, lens: Lens, decide: Decide) -> ShrinkingPass:
        done = ShrinkingPass(lens, self.plan(), decide, first_look=1)
        done.run(self.runner, self.tokens)
        return done


@torch.inference_mode()
def checked_lens(runner: ModelRunner) -> Lens:
    """The lens of a runner's model. Raises UnsupportedModel unless, on a few tokens, the lens after
    the last layer gives the model's own logits, also for rows that go on alone."""
    lens = Lens(runner.model)
    name = type(runner.model).__name__
    trial = _Trial(runner)
    expected = runner.forward(trial.tokens, trial.plan())[trial.half - 1 :: trial.half].double()
    with refusing(
        Exception, f"{name} cannot leave a scoring pass early: {{error}}", UnsupportedModel
    ):
        together = trial.shrinking(lens, lambda *_: set())
        alone = trial.shrinking(lens, lambda depth, *_: {0} if depth == 1 else set())
        if together.live:
            raise RuntimeError("its last layer does not run on text alone")
        actual = torch.stack(
            [together.results[0][1], together.results[1][1], alone.results[1][1]]
        ).double()
    gap = (actual - expected[[0, 1, 1]]).abs()
    # mixture-of-experts routing may flip in 16 bits, so the mean is compared there, not the largest
    exact = runner.dtype in (torch.float32, torch.float64)
    off = float(gap.max() if exact else gap.mean())
    limit = 1e-4 + (1e-4 if exact else 5e-2) * float(expected.abs().max())
    if not off <= limit:
        raise UnsupportedModel(
            f"{name} gives other logits from its last layer's states than in one run (off by "
            f"{off:.3g}, limit {limit:.3g}), so it cannot leave a scoring pass early; score it "
            "without an exit"
        )
    return lens
