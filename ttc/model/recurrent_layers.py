"""Layers that keep a recurrent state: what is asked of them. The part `recurrent` runs them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor
from transformers.cache_utils import (
    CacheLayerMixin,
    DynamicCache,
    LinearAttentionCacheLayerMixin,
)

from ttc.memory.states import StateBatch, StateShape
from ttc.parts import handler

FIND_TOKENS = 4
"""Tokens that a model runs on to see which modules they are."""


StatesOfPass = Any
"""The states of a pass over new tokens (`ttc.recurrent.pass_states`)."""
StatesOfBranches = Any
"""The states of branches that decode (`ttc.recurrent.running_states`)."""


class Recurrent(Protocol):
    """A model's modules of this kind.

    layers: the numbers of their layers. knows_opening: a token before a branch's first generated
    one is computed in another way. shape: what is kept of a sequence, known after the first pass.
    """

    knows_opening: bool
    shape: StateShape | None

    @property
    def layers(self) -> set[int]: ...

    def check(self, check: Any, calls: list[Any], ids: Tensor, logits: Tensor) -> None:
        """Find out how the modules are to run. Raises UnsupportedModel where no way is exact."""
        ...

    def running(self, batches: Sequence[StateBatch]) -> AbstractContextManager[None]:
        """Have the modules compute the sequences of a pass."""
        ...

    def go_on_with(self, batches: Sequence[StateBatch]) -> None: ...

    def pass_states(self, runtime: Any) -> StatesOfPass: ...

    def running_states(self, runtime: Any) -> StatesOfBranches: ...


def find_recurrent(model: Any, ids: Tensor) -> Recurrent | None:
    """The modules of a model that keep a recurrent state; None without any. ids: (1, tokens), at
    least `FIND_TOKENS`."""
    if not keeps_states(model.config):
        return None
    recurrent: Recurrent | None = handler("layers", "recurrent")(model, ids)
    return recurrent


def keeps_states(config: Any) -> bool:
    """Whether any layer keeps a recurrent state in the cache that transformers makes."""
    layers = _layers(config)
    return any(
        isinstance(layer, LinearAttentionCacheLayerMixin) and layer.number_of_states
        for layer in layers
    )


def layers_without_tokens(config: Any) -> set[int]:
    """The numbers of layers that mix no tokens and keep no state."""
    return {
        number
        for number, layer in enumerate(_layers(config))
        if not isinstance(layer, CacheLayerMixin) and not getattr(layer, "number_of_states", 0)
    }


def _layers(config: Any) -> list[Any]:
    try:
        return DynamicCache(config=config).layers
    except Exception:  # a configuration that transformers cannot make a cache for
        return []
