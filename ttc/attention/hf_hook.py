"""The attention function that Hugging Face models call, registered as `IMPLEMENTATION`. What
defines models in transformers takes seconds to import, so only what has a model does it.

The plan of a pass is a context variable, for not every model passes keyword arguments on to its
attention. No mask is registered under the name, so transformers builds none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ttc.attention.kernels import Layer
from ttc.attention.plan import Plan
from ttc.errors import UnsupportedModel

IMPLEMENTATION = "ttc_tree"


AttentionChoice = list[tuple[Any, str | None]]
"""Each configuration in a model, with the name of its attention implementation."""

_BEFORE: WeakKeyDictionary[torch.nn.Module, AttentionChoice] = WeakKeyDictionary()
"""What the models that run over the engine's attention were set to before."""


@dataclass(frozen=True)
class AttentionPlace:
    """What the check at load learns of an attention module. layers: the numbers of its calls among
    all calls of attention in a pass. window, chunk: in tokens, where it leaves these to the mask.
    """

    layers: tuple[int, ...]
    window: int | None
    chunk: int | None


_PLAN: ContextVar[Any] = ContextVar("plan", default=None)


@contextmanager
def attending(plan: Any) -> Iterator[None]:
    before = _PLAN.set(plan)
    try:
        yield
    finally:
        _PLAN.reset(before)


def current_plan() -> Any:
    return _PLAN.get()


PLACES: WeakKeyDictionary[torch.nn.Module, AttentionPlace] = WeakKeyDictionary()
"""The attention modules whose number is not their `layer_idx`, or whose window or chunk they are
not told."""


def tree_attention(  # noqa: PLR0913 - transformers calls it so
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of packed rows by the plan of the pass. query: (1, heads, rows, dim); returns (1,
    rows, heads, value_dim)."""
    plan: Plan | None = current_plan()
    if plan is None:
        raise UnsupportedModel(
            f"{type(module).__name__} was called without a plan: it ran outside the engine. To use "
            "the model elsewhere: with engine.lent() as model"
        )
    heads = query.shape[1]
    dim = query.shape[3]
    kv_heads = key.shape[1]
    scale = dim**-0.5 if scaling is None else scaling
    chunk = None
    if (place := PLACES.get(module)) is None:
        index = int(module.layer_idx)  # type: ignore[arg-type]
    else:
        index = place.layers[0] if len(place.layers) == 1 else plan.turn(place.layers)
        sliding_window = place.window if sliding_window is None else sliding_window
        chunk = place.chunk
    layer = Layer(index, scale, softcap, sliding_window, chunk)
    q = query[0].unflatten(0, (kv_heads, heads // kv_heads))  # (kv_heads, groups, rows, dim)
    out, lse = plan.attend(layer, q, key[0], value[0])
    if s_aux is not None:  # attention sinks: one more score per head, with no value behind it
        out = out * torch.sigmoid(lse - s_aux.to(lse.dtype).view(kv_heads, -1, 1))[..., None]
    return out.to(query.dtype).flatten(0, 1).transpose(0, 1)[None].contiguous(), None


def can_set_attention(model: Any) -> bool:
    from transformers import PreTrainedModel

    parts = (part for part in model.modules() if isinstance(part, PreTrainedModel))
    return any(part._can_set_attn_implementation() for part in parts)


def install(model: Any) -> None:
    """Set the model's attention to the engine's, and remember what it was."""
    from transformers import AttentionInterface

    AttentionInterface.register(IMPLEMENTATION, tree_attention)
    if not is_installed(model) and can_set_attention(model):
        _BEFORE[model] = _choice(model)
        model.set_attn_implementation(IMPLEMENTATION)


def uninstall(model: Any) -> None:
    """Set it to what it was before `install`; a copy of such a model gets eager attention."""
    if is_installed(model):
        if model in _BEFORE:
            _restore(_BEFORE.pop(model))
        else:
            model.set_attn_implementation("eager")


def is_installed(model: Any) -> bool:
    return bool(model.config.get_text_config()._attn_implementation == IMPLEMENTATION)


@contextmanager
def lent(model: Any) -> Iterator[None]:
    uninstall(model)
    try:
        yield
    finally:
        install(model)


@contextmanager
def attention_set_to(model: Any, implementation: str) -> Iterator[None]:
    """The model over another attention implementation, where it can be set."""
    if not can_set_attention(model):
        yield
        return
    before = _choice(model)
    try:
        model.set_attn_implementation(implementation)
        yield
    finally:
        _restore(before)


def _choice(model: Any) -> AttentionChoice:
    configs = {id(model.config): model.config}
    for module in model.modules():
        config = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation"):
            configs[id(config)] = config
    waiting = list(configs.values())
    while waiting:  # parts that belong to no module, or to one that keeps no configuration
        config = waiting.pop()
        for name in getattr(config, "sub_configs", None) or {}:
            part = getattr(config, name, None)
            if part is not None and id(part) not in configs:
                configs[id(part)] = part
                waiting.append(part)
    return [(config, config._attn_implementation) for config in configs.values()]


def _restore(choice: AttentionChoice) -> None:
    for config, implementation in choice:
        # the property would change the parts as well
        config._attn_implementation_internal = implementation
