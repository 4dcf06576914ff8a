"""Which modules of a model keep a recurrent state: those that ask transformers' cache for one."""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, LinearAttentionCacheLayerMixin

from ttc.model.recurrent_layers import FIND_TOKENS
from ttc.passes.runtime import Runtime
from ttc.recurrent.check import check_recurrent
from ttc.recurrent.modules import CACHE_NAMES, Recurrent
from ttc.recurrent.pass_states import PassStates
from ttc.recurrent.running_states import RunningStates


class RecurrentLayers(Recurrent):
    """The recurrent layers of a model as the engine asks for them."""

    def check(self, *recorded: Any) -> None:
        """recorded: see `check_recurrent`."""
        check_recurrent(self, *recorded)

    def pass_states(self, runtime: Runtime) -> PassStates:
        return PassStates(runtime)

    def running_states(self, runtime: Runtime) -> RunningStates:
        return RunningStates(runtime)


class _WatchedCache(DynamicCache):
    def __init__(self, config: Any):
        super().__init__(config=config)
        self.running: list[nn.Module] = []
        self.stateful: dict[nn.Module, None] = {}

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def __len__(self) -> int:
        return len(self.layers)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0

    def get_linear_cache(self, layer_idx: int) -> Any:
        return self.get_recurrent_state(layer_idx)

    def set_linear_cache(self, layer_idx: int, state: Any) -> None:
        self.update_recurrent_state(state, layer_idx)


def _noted(name: str) -> Any:
    def noted(self: _WatchedCache, *args: Any, **kwargs: Any) -> Any:
        self.stateful[self.running[-1]] = None
        return getattr(super(_WatchedCache, self), name)(*args, **kwargs)

    return noted


for _kind in ("conv", "recurrent"):
    for _name in (f"get_{_kind}_state", f"update_{_kind}_state"):
        setattr(_WatchedCache, _name, _noted(_name))


def _cache_class(body: Any) -> type[DynamicCache] | None:
    scope = inspect.unwrap(type(body).forward).__globals__
    classes = (value for value in scope.values() if isinstance(value, type))
    caches = (value for value in classes if value.__module__ == type(body).__module__)
    return next((value for value in caches if issubclass(value, DynamicCache)), None)


@torch.inference_mode()
def find_recurrent(model: Any, ids: Tensor) -> RecurrentLayers | None:
    """The modules that keep a recurrent state in transformers' cache; None for a model without.

    ids: (1, tokens), what the model runs on to see which modules they are.
    """
    try:
        cache = _WatchedCache(model.config)
    except Exception:  # a configuration that transformers cannot make a cache for
        return None
    counts = [
        layer.number_of_states if isinstance(layer, LinearAttentionCacheLayerMixin) else 0
        for layer in cache.layers
    ]
    if not any(counts):
        return None
    body = getattr(model, "body", model)
    theirs = _cache_class(body)
    if theirs is not None:
        cache.__class__ = type(theirs.__name__, (_WatchedCache, theirs), {})
    parameters = inspect.signature(body.forward).parameters
    name = next((name for name in CACHE_NAMES if name in parameters), CACHE_NAMES[-1])

    def begins(module: nn.Module, _: Any) -> None:
        cache.running.append(module)

    def ends(*_: Any) -> None:
        cache.running.pop()

    with ExitStack() as watched:  # hooks of the model's own modules, as other threads run others
        for module in model.modules():
            watched.callback(module.register_forward_pre_hook(begins).remove)
            watched.callback(module.register_forward_hook(ends, always_call=True).remove)
        model(input_ids=ids[:, :FIND_TOKENS], use_cache=True, **{name: cache})
    return RecurrentLayers(list(cache.stateful), counts) if cache.stateful else None
