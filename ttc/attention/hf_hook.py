"""The attention function that Hugging Face models call, registered as `IMPLEMENTATION`.

The plan travels as the keyword argument `tree_plan`. No mask is registered under the name, so transformers builds
none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from ttc.attention.kernels import Layer
from ttc.attention.plan import Plan
from ttc.errors import UnsupportedModel

IMPLEMENTATION = "ttc_tree"


def tree_attention(
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
    tree_plan: Plan | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of packed rows by plan. query: (1, heads, rows, dim); returns (1, rows, heads, value_dim)."""
    if tree_plan is None:
        raise UnsupportedModel(
            f"{type(module).__name__} was called without a plan: it ran outside the engine, or its model does not pass "
            "keyword arguments on to attention. To use the model elsewhere: model.set_attn_implementation('sdpa')"
        )
    heads, dim, kv_heads = query.shape[1], query.shape[3], key.shape[1]
    scale = dim**-0.5 if scaling is None else scaling
    layer = Layer(int(module.layer_idx), scale, softcap, sliding_window)  # type: ignore[arg-type]
    q = query[0].unflatten(0, (kv_heads, heads // kv_heads))  # (kv_heads, groups, rows, dim)
    out, lse = tree_plan.attend(layer, q, key[0], value[0])
    if s_aux is not None:  # attention sinks: one more score per head, with no value behind it
        out = out * torch.sigmoid(lse - s_aux.to(lse.dtype).view(kv_heads, -1, 1))[..., None]
    return out.to(query.dtype).flatten(0, 1).transpose(0, 1)[None], None


AttentionInterface.register(IMPLEMENTATION, tree_attention)
