"""Do recurrent layers give the same over packed rows that go on from kept states? Asked at load.

Three kinds of passes run: a prefix from its beginning; what follows in two sequences of different
lengths, from the prefix's state; and single tokens of several sequences side by side, one of which
begins there, from a state of zeros.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ttc.errors import UnsupportedModel, refusing
from ttc.memory.states import StateBatch, StateShape, Tensors
from ttc.model.check.attention_check import check_same, deviation, is_precise
from ttc.model.check.recording import AttentionCall, PackedRows
from ttc.recurrent.modules import Recurrent

if TYPE_CHECKING:
    from ttc.model.check.model_check import ModelCheck

SINGLE_TOKENS = 5

Place = tuple[int, int]
"""A sequence of the recorded batch, and a position in it."""


def check_recurrent(
    recurrent: Recurrent, check: ModelCheck, calls: list[AttentionCall], ids: Tensor, logits: Tensor
) -> None:
    """Find out how the modules are to run, and set them up.

    calls, logits (2, tokens, vocabulary): recorded of two sequences `ids` (2, tokens), whose first
    half is the same. A least time step is looked for first: in 16 bits it hardly shows.
    Raises UnsupportedModel when no way gives what was recorded.
    """
    passes = _Passes(recurrent, check, calls, ids, logits)
    refusals = []
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
    for number, module in enumerate(recurrent.modules):
        if module.least is None:
            continue
        weight: Tensor = module.module.get_parameter("in_proj.weight")
        random = torch.Generator().manual_seed(number)
        hidden = torch.randn(1, SINGLE_TOKENS, weight.shape[1], generator=random).to(weight)
        together, single = ({module.cache_name: recurrent.cache_of({})} for _ in range(2))
        forward = module.forward()
        with module.least.of_opening([False]):
            for cache in (together, single):
                forward(hidden[:, :1], **cache)  # a token from no state, which begins both
            result = forward(hidden[:, 1:], **together)
        tokens = hidden[:, 1:].split(1, 1)
        expected = torch.cat([module.module.forward(token, **single) for token in tokens], 1)
        error, limit = deviation(expected, result, is_precise(weight.dtype), 1e-4, 0.25)
        if not error <= limit:
            raise UnsupportedModel(
                f"its recurrent layer {number} differs by {error:.3g} between several tokens and "
                "single ones, and not by its least time step alone"
            )


class _Passes:
    def __init__(
        self,
        recurrent: Recurrent,
        check: ModelCheck,
        calls: list[AttentionCall],
        ids: Tensor,
        logits: Tensor,
    ):
        self.recurrent = recurrent
        self.check = check
        self.calls = calls
        self.ids = ids
        self.logits = logits
        tokens = ids.shape[1]
        self.prefix = tokens // 2
        self.ends = [tokens - SINGLE_TOKENS - 1, tokens - SINGLE_TOKENS]  # of both sequences

    def run(self) -> None:
        begun = StateBatch(torch.arange(self.prefix)[None], {})
        self._pass([[(0, t) for t in range(self.prefix)]], [begun], "from the beginning")
        self.recurrent.shape = StateShape.of(begun.tensors)
        try:
            batches = self._go_on(begun.tensors)
        except UnsupportedModel:
            self.recurrent.by_token = True
            batches = self._go_on(begun.tensors)
        self._single_tokens(batches, self.recurrent.shape)

    def _go_on(self, state: Tensors) -> list[StateBatch]:
        runs = [[(s, t) for t in range(self.prefix, self.ends[s])] for s in (1, 0)]
        rows = torch.arange(len(runs[0]) + len(runs[1])).split([len(run) for run in runs])
        batches = [
            StateBatch(numbers[None], {part: tensor.clone() for part, tensor in state.items()})
            for numbers in rows
        ]
        self._pass(runs, batches, "on from a kept state")
        return batches

    def _single_tokens(self, batches: list[StateBatch], shape: StateShape) -> None:
        states = [batches[0].tensors, shape.zeros(1), batches[1].tensors]
        joined = {part: torch.cat([tensors[part] for tensors in states]) for part in shape.parts}
        batch = StateBatch(torch.tensor([[2], [0], [1]]), joined)
        for step in range(SINGLE_TOKENS):
            places = [(0, step), (0, self.ends[0] + step), (1, self.ends[1] + step)]
            self._pass([[place] for place in places], [batch], "token by token")

    def _pass(self, runs: list[list[Place]], batches: list[StateBatch], how: str) -> None:
        places = [place for run in runs for place in run]
        sequences, positions = (torch.tensor(numbers) for numbers in zip(*places, strict=True))

        def pack(batch: Tensor, axis: int) -> Tensor:
            return batch.movedim(axis, 1)[sequences, positions][None].movedim(1, axis)

        ends = accumulate(map(len, runs))
        spans = [slice(end - len(run), end) for end, run in zip(ends, runs, strict=True)]
        rows = PackedRows(pack(self.ids, 1), positions.tolist(), pack)
        with refusing(
            UnsupportedModel,
            f"its recurrent layers give something else when they go {how} than in one run over a "
            "sequence ({error})",
            UnsupportedModel,
            words=lambda error: str(error).partition(" when branches")[0],
        ):
            with self.recurrent.running(batches):
                result = self.check.replay(self.calls, rows, [*range(len(places))], spans)
            expected = pack(self.logits, 1)
            check_same("the logits differ", expected, result, self.check.precise, 1e-4, 0.25)
