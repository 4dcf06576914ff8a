"""A model's logits after any of its layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ttc.decoder_layers import decoder_layers
from ttc.errors import UnsupportedModel


class Lens:
    """A model's logits as they would be if a layer were its last one.

    The model itself runs, with its decoder layers handing the given states through; so whatever it does after them is
    done, and no list of architectures is kept. Raises UnsupportedModel for a model without a list of its layers;
    `ttc.passes.shrinking.checked_lens` checks what the lens gives.
    """

    def __init__(self, model: Any):
        self.model = model
        try:
            self.layers = decoder_layers(model)
        except UnsupportedModel as error:
            raise UnsupportedModel(
                f"{error}, so it cannot leave a scoring pass early; score it without an exit"
            ) from error

    def logits(self, output: Any, rows: Sequence[int]) -> Tensor:
        """(rows, vocab) in at least float32, for `rows` of what a layer returned: states, or a tuple that begins with
        them."""
        states, others = parts_of(output)
        picked = joined(states.index_select(row_dim(states), torch.tensor(list(rows), device=states.device)), others)
        with self.running([lambda *_, **__: picked] * len(self.layers)):
            ids = torch.zeros(1, len(rows), dtype=torch.long, device=self.model.device)
            found: Tensor = self.model(input_ids=ids, position_ids=ids, use_cache=False).logits[0]
        return found.to(torch.promote_types(found.dtype, torch.float32))

    @contextmanager
    def running(self, forwards: Sequence[Callable[..., Any]]) -> Iterator[None]:
        """Let the decoder layers run `forwards` meanwhile."""
        before = [layer.__dict__.get("forward") for layer in self.layers]
        try:
            for layer, forward in zip(self.layers, forwards, strict=True):
                layer.forward = forward
            yield
        finally:
            for layer, own in zip(self.layers, before, strict=True):
                layer.__dict__.pop("forward", None)
                if own is not None:
                    layer.forward = own


def parts_of(output: Any) -> tuple[Tensor, tuple[Any, ...] | None]:
    """The states that a layer returned, and what came beside them (None where the states came alone)."""
    return (output[0], (*output[1:],)) if isinstance(output, tuple | list) else (output, None)


def row_dim(states: Tensor) -> int:
    """Which dimension of a layer's states counts rows: the one after the batch of one sequence. Most are (1, rows,
    width); models with several streams of states have these before the batch or after the rows."""
    return tuple(states.shape).index(1) + 1


def rows_of(output: Any) -> Tensor:
    """The states (rows, width) that a layer returned; the first of several streams."""
    states = parts_of(output)[0]
    return states.movedim(row_dim(states), 0).flatten(1, -2)[:, 0]


def joined(states: Tensor, others: tuple[Any, ...] | None) -> Any:
    return states if others is None else (states, *others)
