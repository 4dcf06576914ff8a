"""What goes into a layer's K and V projections, kept for ACT blocks (CAPTURE, section IV-A)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

Regenerate = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(layer, inputs (tokens, width), positions (tokens,)) -> keys, values (kv_heads, tokens, dim)."""
