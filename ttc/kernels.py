"""Partial attention over one run of keys, and how partial results merge.

A partial result is an output with the log-sum-exp of its scores; merging two by log-sum-exp is exact online softmax.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PAGE_TOKENS = 512
"""For few rows, long runs are cut into pages that the CPU kernel works on in parallel (flash-decoding)."""

Partial = tuple[Tensor, Tensor]
"""out (..., rows, value_dim), and the natural log-sum-exp of the scores (..., rows) in at least float32."""


@dataclass(frozen=True)
class Layer:
    """What an attention layer says of itself: its index, score scale, soft cap and sliding window (tokens)."""

    index: int
    scale: float
    softcap: float | None = None
    window: int | None = None


def partial_attention(
    q: Tensor, k: Tensor, v: Tensor, layer: Layer, *, causal: bool = False, visible: Tensor | None = None
) -> Partial:
    """Softmax attention of q over one run of keys.

    q: (batch, heads, rows, dim). k, v: (batch, heads, keys, dim). visible: (rows, keys) bool, None for all.
    """
    if visible is None and layer.softcap is None and q.shape[-1] == v.shape[-1]:
        if q.device.type == "cpu":
            return _flash_cpu(q, k, v, layer.scale, causal)
        if q.device.type == "cuda" and q.dtype in (torch.float16, torch.bfloat16) and q.shape[-1] <= 256:
            out = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=layer.scale)
            return out[0], out[1]
    return _explicit(q, k, v, layer, causal, visible)


def _flash_cpu(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Partial:
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
    return out, lse


def _explicit(q: Tensor, k: Tensor, v: Tensor, layer: Layer, causal: bool, visible: Tensor | None) -> Partial:
    """The written-out form, for masks, soft caps and widths that the fused kernels do not take."""
    scores = (q @ k.transpose(-1, -2)).to(torch.promote_types(q.dtype, torch.float32)) * layer.scale
    if layer.softcap is not None:
        scores = torch.tanh(scores / layer.softcap) * layer.softcap
    if causal:
        square = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        visible = square if visible is None else visible & square
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    lse = torch.logsumexp(scores, -1)
    # a row that sees no key has a log-sum-exp of -inf and weight 0
    probs = torch.exp(scores - lse.clamp_min(torch.finfo(lse.dtype).min)[..., None])
    return probs.to(v.dtype) @ v, lse


def merge_(out: Tensor, lse: Tensor, part_out: Tensor, part_lse: Tensor) -> None:
    """Fold a partial result into (out, lse) in place."""
    weight = torch.sigmoid(part_lse - lse)
    out.lerp_(part_out.to(out.dtype), weight[..., None])
    torch.logaddexp(lse, part_lse, out=lse)


def segment_attention(q: Tensor, k: Tensor, v: Tensor, layer: Layer, visible: Tensor | None) -> Partial:
    """All rows of one segment at once, queries of a group folded together so that keys are read once.

    q: (kv_heads, groups, rows, dim); k, v: (kv_heads, keys, dim); visible: (rows, keys) bool or None.
    """
    kv_heads, groups, rows, dim = q.shape
    folded = q.reshape(1, kv_heads, groups * rows, dim)
    if visible is not None:
        visible = visible.expand(groups, *visible.shape).reshape(groups * rows, -1)
    pages = k.shape[1] // PAGE_TOKENS
    if pages > 1 and visible is None and q.device.type == "cpu" and groups * rows <= 256:
        out, lse = _paged(folded, k, v, layer, pages)
    else:
        out, lse = partial_attention(folded, k[None], v[None], layer, visible=visible)
    return out.view(kv_heads, groups, rows, v.shape[-1]), lse.reshape(kv_heads, groups, rows)


def _paged(q: Tensor, k: Tensor, v: Tensor, layer: Layer, pages: int) -> Partial:
    whole = pages * PAGE_TOKENS
    paged_k, paged_v = (
        x[:, :whole].unflatten(1, (pages, PAGE_TOKENS)).transpose(0, 1) for x in (k, v)
    )  # (pages, kv_heads, PAGE_TOKENS, dim), no copy
    outs, lses = partial_attention(q.expand(pages, -1, -1, -1), paged_k, paged_v, layer)
    lse = torch.logsumexp(lses, 0, keepdim=True)
    out = (outs * torch.exp(lses - lse)[..., None]).sum(0, keepdim=True)
    if whole < k.shape[1]:
        merge_(out, lse, *partial_attention(q, k[None, :, whole:], v[None, :, whole:], layer))
    return out, lse
