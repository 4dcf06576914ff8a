"""Partial attention over one run of keys, and how partial results merge.

A partial result is an output with the log-sum-exp of its scores; merging two by log-sum-exp is
exact online softmax.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from ttc.memory.kv import first_seen

FEW_ROWS = 256
"""Up to so many rows the written-out form beats the fused CPU kernel, which repacks all keys for
every call."""

VisibleRange = tuple[int | None, int | None, int | None, int]
"""A layer's window, chunk, recent and sink."""

Partial = tuple[Tensor, Tensor]
"""out (..., rows, value_dim), and the natural log-sum-exp of the scores (..., rows) in at least
float32."""


@dataclass(frozen=True)
class Layer:
    """What an attention layer says of itself: its index, score scale, soft cap and window (tokens).

    chunk: tokens of a chunk, where a row sees only those of the same chunk.
    recent, sink: of what the window leaves, only the last `recent` and the first `sink` tokens are
        seen (`Headwise` with streaming heads; None: all of it).
    """

    index: int
    scale: float
    softcap: float | None = None
    window: int | None = None
    chunk: int | None = None
    recent: int | None = None
    sink: int = 0

    @property
    def sight(self) -> VisibleRange:
        return self.window, self.chunk, self.recent, self.sink

    @property
    def nearest(self) -> int | None:
        return min((n for n in (self.window, self.recent) if n is not None), default=None)

    @property
    def sees_all(self) -> bool:
        return self.nearest is None and self.chunk is None

    def first_seen(self, position: int) -> int:
        """From which on a row at `position` sees everything up to itself."""
        return first_seen(position, self.nearest, self.chunk)

    def sees(self, positions: Tensor, keys: Tensor) -> Tensor:
        """(rows, keys) bool: which keys, given by position, rows see, causality aside."""
        behind = positions[:, None] - keys
        seen = torch.ones_like(behind, dtype=torch.bool)
        if self.recent is not None:
            seen = (behind < self.recent) | (keys < self.sink)
        if self.chunk is not None:
            seen &= behind <= positions[:, None] % self.chunk
        return seen if self.window is None else seen & (behind < self.window)


def partial_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer: Layer,
    *,
    causal: bool = False,
    visible: Tensor | None = None,
) -> Partial:
    """Softmax attention of q over one run of keys. q: (batch, heads, rows, dim). k, v: (batch,
    heads, keys, dim). visible: (rows, keys) bool, None for all."""
    fusable = visible is None and layer.softcap is None and q.shape[-1] == v.shape[-1]
    if (
        fusable
        and q.device.type == "cpu"
        and (causal or q.shape[-2] > FEW_ROWS or k.shape[-2] < FEW_ROWS)
    ):
        on_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        part: Partial = on_cpu(q, k, v, 0.0, causal, scale=layer.scale)
        return part
    if fusable and q.shape[-1] <= 256 and _has_flash(q.device, q.dtype):
        out = torch.ops.aten._scaled_dot_product_flash_attention(
            q, k, v, 0.0, causal, scale=layer.scale
        )
        return out[0], out[1]
    return _written_out(q, k, v, layer, causal, visible)


@cache
def _has_flash(device: torch.device, dtype: torch.dtype) -> bool:
    short = dtype in (torch.float16, torch.bfloat16)
    return device.type == "cuda" and short and torch.cuda.get_device_capability(device) >= (8, 0)


def _written_out(
    q: Tensor, k: Tensor, v: Tensor, layer: Layer, causal: bool, visible: Tensor | None
) -> Partial:
    """Matrix products around an explicit softmax; takes masks, soft caps and any widths."""
    scores = (q * layer.scale) @ k.transpose(-1, -2)  # (batch, heads, rows, keys)
    if layer.softcap is not None:
        scores = torch.tanh(scores / layer.softcap) * layer.softcap
    if causal:
        square = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        visible = square if visible is None else visible & square
    if visible is not None:
        scores.masked_fill_(~visible, float("-inf"))
    # a row that sees no key keeps a total of 0, a log-sum-exp of -inf and weight 0
    top = scores.amax(-1, keepdim=True).clamp_min_(torch.finfo(scores.dtype).min)
    weights = scores.sub_(top).exp_()
    dtype = torch.promote_types(q.dtype, torch.float32)
    total = weights.sum(-1, keepdim=True, dtype=dtype)
    out = (weights @ v).to(dtype) / total.clamp_min(torch.finfo(dtype).tiny)
    return out, (total.log() + top)[..., 0]


def merge_(out: Tensor, lse: Tensor, part_out: Tensor, part_lse: Tensor) -> None:
    """Fold a partial result into (out, lse) in place."""
    weight = torch.sigmoid(part_lse - lse)
    out.lerp_(part_out.to(out.dtype), weight[..., None])
    torch.logaddexp(lse, part_lse, out=lse)


def segment_attention(
    q: Tensor, k: Tensor, v: Tensor, layer: Layer, visible: Tensor | None
) -> Partial:
    """All rows of one segment at once, queries of a group folded together so that keys are read
    once. q: (kv_heads, groups, rows, dim); k, v: (kv_heads, keys, dim); visible: (rows, keys) bool
    or None."""
    kv_heads, groups, rows, dim = q.shape
    folded = q.reshape(1, kv_heads, groups * rows, dim)
    if visible is not None:
        visible = visible.expand(groups, *visible.shape).reshape(groups * rows, -1)
    out, lse = partial_attention(folded, k[None], v[None], layer, visible=visible)
    return out.view(kv_heads, groups, rows, v.shape[-1]), lse.reshape(kv_heads, groups, rows)
