"""A model's logits after any of its layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from ttc.decoder_layers import decoder_layers
from ttc.errors import UnsupportedModel, refusing
from ttc.model.replaced_functions import running_as


class Lens:
    """A model's logits as they would be if a layer were its last one.

    The model itself runs, its decoder layers handing the given states through. Raises
    UnsupportedModel for a model without a list of its layers; what the lens gives is checked by
    `ttc.passes.shrinking.checked_lens`.
    """

    def __init__(self, model: Any):
        self.model = model
        whole = "{error}, so it cannot leave a scoring pass early; score it without an exit"
        with refusing(UnsupportedModel, whole, UnsupportedModel):
            self.layers = decoder_layers(model)

    def logits(self, output: Any, rows: Sequence[int]) -> Tensor:
        """(rows, vocab) in at least float32, for `rows` of what a layer returned."""
        states, others = parts_of(output)
        index = torch.tensor(list(rows), device=states.device)
        picked = joined(states.index_select(row_dim(states), index), others)
        ids = torch.zeros(1, len(rows), dtype=torch.long, device=self.model.device)
        with self.running([lambda *_, **__: picked] * len(self.layers)):
            output = self.model(input_ids=ids, position_ids=ids, use_cache=False)
        logits: Tensor = output.logits[0]
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def running(self, forwards: Sequence[Callable[..., Any]]) -> AbstractContextManager[None]:
        return running_as(self.layers, forwards)


def parts_of(output: Any) -> tuple[Tensor, tuple[Any, ...] | None]:
    return (output[0], (*output[1:],)) if isinstance(output, tuple | list) else (output, None)


def row_dim(states: Tensor) -> int:
    """Which dimension counts rows: the one after the batch of one sequence. Models with several
    streams of states have these before the batch or after the rows."""
    return tuple(states.shape).index(1) + 1


def rows_of(output: Any) -> Tensor:
    states = parts_of(output)[0]
    return states.movedim(row_dim(states), 0).flatten(1, -2)[:, 0]


def joined(states: Tensor, others: tuple[Any, ...] | None) -> Any:
    return states if others is None else (states, *others)
