"""The attention function that Hugging Face models call, registered as `IMPLEMENTATION`.

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
from transformers import AttentionInterface

from ttc.attention.kernels import Layer
from ttc.attention.plan import Plan
from ttc.errors import UnsupportedModel

IMPLEMENTATION = "ttc_tree"


@dataclass(frozen=True)
class Place:
    """What the check at load learns of an attention module that its attributes and arguments don't
    tell.

    layers: the numbers of its calls among all calls of attention in a pass. window, chunk: its
        sliding window and its chunks, in tokens, where it leaves these to the mask.
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


PLACES: WeakKeyDictionary[torch.nn.Module, Place] = WeakKeyDictionary()
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


AttentionInterface.register(IMPLEMENTATION, tree_attention)
