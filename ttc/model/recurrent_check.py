"""Do a model's recurrent layers give the same over packed rows that go on from kept states? Asked once, at load.

Three kinds of passes run, on the tokens and against the outputs of the plain run: a prefix from its beginning; what
follows in two sequences of different lengths, from the prefix's state; and single tokens of several sequences side by
side, one of which begins there, from a state of zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ttc.errors import UnsupportedModel
from ttc.memory.states import StateBatch, StateShape, Tensors
from ttc.model.recording import Call, Rows
from ttc.model.recurrent import Recurrent

SINGLE_TOKENS = 5

Place = tuple[int, int]
"""A sequence of the recorded batch, and a position in it."""


class Check(Protocol):
    """What `ttc.model.check` lends: a pass that is answered from the record, and a comparison."""

    def replay(self, calls: list[Call], rows: Rows, keep: list[int], spans: Sequence[slice]) -> Tensor: ...

    def same(self, what: str, expected: Tensor, found: Tensor, exact: float, rounded: float) -> None: ...


def check_recurrent(recurrent: Recurrent, check: Check, calls: list[Call], ids: Tensor, logits: Tensor) -> None:
    """Raise UnsupportedModel unless passes over packed rows give what was recorded: calls, and logits (2, tokens,
    vocabulary) of the two sequences `ids` (2, tokens), whose first half is the same.

    Modules that do not go on from a state with several tokens at once are given them one by one (`by_token`). A least
    time step that transformers applies to several tokens alone is looked for first: in 16 bits it hardly shows.
    """
    passes, refusals = _Passes(recurrent, check, calls, ids, logits), []
    for fewer_operations, least_time_step in ((True, True), (True, False), (False, False)):
        able = recurrent.set_up(fewer_operations=fewer_operations, least_time_step=least_time_step)
        if not able and least_time_step:
            continue
        try:
            _check_after_opening(recurrent)
            return passes.run()
        except UnsupportedModel as error:
            refusals.append(error)
    raise refusals[-1]


def _check_after_opening(recurrent: Recurrent) -> None:
    """Raise UnsupportedModel unless several tokens without the least time step give what single ones do by the module's
    own code."""
    for number, module in enumerate(recurrent.modules):
        if module.least is None:
            continue
        weight: Tensor = module.module.get_parameter("in_proj.weight")
        hidden = torch.randn(1, SINGLE_TOKENS, weight.shape[1], generator=torch.Generator().manual_seed(number))
        hidden = hidden.to(weight)
        caches = [{module.name: recurrent.empty_cache()} for _ in range(2)]
        with module.least.of_opening([False]):
            for cache in caches:
                module.forward()(hidden[:, :1], **cache)  # a token from no state, which begins both
            found = module.forward()(hidden[:, 1:], **caches[0])
        own = torch.cat([module.module.forward(token, **caches[1]) for token in hidden[:, 1:].split(1, 1)], 1)
        size, gap = float(own.float().abs().max()), float((found - own).float().abs().max())
        if not gap <= (1e-4 if weight.dtype in (torch.float32, torch.float64) else 0.1) * size:
            raise UnsupportedModel(
                f"its recurrent layer {number} differs by {gap:.3g} between several tokens and single ones, and not by "
                "its least time step alone"
            )


class _Passes:
    def __init__(self, recurrent: Recurrent, check: Check, calls: list[Call], ids: Tensor, logits: Tensor):
        self.recurrent, self.check, self.calls = recurrent, check, calls
        self.ids, self.logits = ids, logits
        self.prefix = ids.shape[1] // 2
        self.ends = [ids.shape[1] - SINGLE_TOKENS - 1, ids.shape[1] - SINGLE_TOKENS]  # of sequence 0, of sequence 1

    def run(self) -> None:
        begun = StateBatch(torch.arange(self.prefix)[None], {})
        self._pass([[(0, t) for t in range(self.prefix)]], [begun], "from the beginning")
        self.recurrent.shape = StateShape.of(begun.tensors)
        try:
            left = self._go_on(begun.tensors)
        except UnsupportedModel:
            self.recurrent.by_token = True
            left = self._go_on(begun.tensors)
        self._single_tokens(left, self.recurrent.shape)

    def _go_on(self, state: Tensors) -> list[StateBatch]:
        """Two sequences from the state of the prefix, the second one first."""
        runs = [[(s, t) for t in range(self.prefix, self.ends[s])] for s in (1, 0)]
        first, count = len(runs[0]), len(runs[0]) + len(runs[1])
        rows = [torch.arange(first)[None], torch.arange(first, count)[None]]
        batches = [StateBatch(numbers, {part: t.clone() for part, t in state.items()}) for numbers in rows]
        self._pass(runs, batches, "on from a kept state")
        return batches

    def _single_tokens(self, left: list[StateBatch], shape: StateShape) -> None:
        """Both sequences further, and beside them the first one again, from its first token."""
        parts = [left[0].tensors, shape.zeros(1), left[1].tensors]
        together = {part: torch.cat([tensors[part] for tensors in parts]) for part in shape.parts}
        batch = StateBatch(torch.tensor([[2], [0], [1]]), together)
        for step in range(SINGLE_TOKENS):
            places: list[Place] = [(0, step), (0, self.ends[0] + step), (1, self.ends[1] + step)]
            self._pass([[place] for place in places], [batch], "token by token")

    def _pass(self, runs: list[list[Place]], batches: list[StateBatch], how: str) -> None:
        """Compute `runs` of places, packed in this order, and compare them with the record."""
        places = [place for run in runs for place in run]
        sequences, positions = (torch.tensor(numbers) for numbers in zip(*places, strict=True))

        def pack(batch: Tensor, axis: int) -> Tensor:
            return batch.movedim(axis, 1)[sequences, positions][None].movedim(1, axis)

        ends = [sum(map(len, runs[: n + 1])) for n in range(len(runs))]
        spans = [slice(end - len(run), end) for end, run in zip(ends, runs, strict=True)]
        rows = Rows(pack(self.ids, 1), positions.tolist(), pack)
        try:
            with self.recurrent.running(batches):
                found = self.check.replay(self.calls, rows, [*range(len(places))], spans)
            self.check.same("the logits differ", pack(self.logits, 1), found, 1e-4, 0.25)
        except UnsupportedModel as error:
            what = str(error).partition(" when branches")[0]
            raise UnsupportedModel(
                f"its recurrent layers give something else when they go {how} than in one run over a sequence ({what})"
            ) from error
