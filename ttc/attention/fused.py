"""A layer's attention in one call: what a plan asks of a kernel, and which kernel it gets."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

from torch import Tensor

from ttc.attention import fused_cpu
from ttc.attention.kernels import Layer, Partial
from ttc.attention.pieces import Piece
from ttc.attention.plan_arrays import PlanArrays
from ttc.memory.storage import Storage
from ttc.parts import find

SWITCH = "TTC_FUSED"
"""The environment variable that turns the kernels off when it is 0."""

NewKV = tuple[int, int, Storage, int]
"""Where new tokens' KV stays: the first row, how many rows, the storage, and its first token to
fill."""


class FusedAttention(Protocol):
    """A kernel, ready for one plan. Not to be called from two threads at once."""

    arrays: PlanArrays

    def takes(self, layer: Layer, q: Tensor) -> bool: ...

    def attend(
        self,
        layer: Layer,
        q: Tensor,
        own_keys: Tensor,
        own_values: Tensor,
        new: tuple[Tensor, Tensor] | None,
    ) -> Partial:
        """q: (kv_heads, groups, rows, dim). own_keys, own_values: (owners, kv_heads, tokens, dim).
        new: keys and values (kv_heads, rows, dim) to be put behind what is there, or None. Returns
        out (kv_heads, groups, rows, value_dim) and its log-sum-exp, float32."""
        ...

    def store(self, layer: int, key: Tensor, value: Tensor) -> bool:
        """Write new keys and values (kv_heads, rows, dim) where they stay on the device; says
        whether the kernel did."""
        ...

    def advance(self) -> None: ...


def fused_attention(
    entries: Sequence[Piece],
    runs: Sequence[tuple[int, int]],
    positions: Sequence[int],
    q: Tensor,
    filled: Sequence[int] | None = None,
    new: Sequence[NewKV] = (),
    owners: tuple[Sequence[Any], Sequence[int]] | None = None,
) -> FusedAttention | None:
    """The kernel for these entries and runs of new tokens; None where there is none for `q`'s type
    and device, or PyTorch's operations are faster. runs, filled, owners: see `PlanArrays`. new:
    what `store` writes. q: (kv_heads, groups, rows, dim)."""
    if os.environ.get(SWITCH) == "0":
        return None
    if q.device.type == "cpu":
        return fused_cpu.fused_attention(entries, runs, positions, q, filled, owners)
    attention_on = _attention_on(q.device.type)
    return attention_on and attention_on(entries, runs, positions, q, filled, new, owners)


@cache
def _attention_on(device: str) -> Callable[..., FusedAttention | None] | None:
    attention: Callable[..., FusedAttention | None] | None = find("attention", device)
    return attention
