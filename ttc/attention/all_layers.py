"""The attention of all layers of a decode pass, for compiled code that runs the layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ttc.attention.fused_cpu import CompiledAttention
from ttc.attention.kernels import Layer
from ttc.attention.plan import Plan


class LayerCalls(NamedTuple):
    """A call of the CPU kernel for each layer, good for all passes of a plan."""

    kernel: int
    """Its address."""
    parameters: np.ndarray
    """A row for each layer, int64."""
    counters: np.ndarray
    """Are to be 0 before each pass."""


def all_layers(
    plan: Plan,
    layers: Sequence[Layer],
    q: Tensor,
    new: tuple[Tensor, Tensor],
    out: Tensor,
    lse: Tensor,
    threads: int,
) -> LayerCalls | None:
    """The calls by which a plan's layers attend; None where a layer's attention is more than one
    call of the kernel.

    q, new: as in `FusedAttention.attend`. out: (rows, heads x value_dim), float32 or bfloat16. lse:
        (rows, heads). All layers find their queries and new KV there and leave their results, one
        after the other. threads: how many will call the kernel at most.
    """
    if not plan.in_storages or plan.stream is not None:
        return None
    fused = plan.kernel_on(q)
    if not isinstance(fused, CompiledAttention):
        return None
    if any(fused.arrays.absent) or not all(fused.takes(layer, q) for layer in layers):
        return None
    parameters = np.zeros((len(layers), len(fused.parameters)), np.int64)
    counters = np.stack([fused.counters_for(threads) for _ in layers])
    for row, counted, layer in zip(parameters, counters, layers, strict=True):
        own = new[0][None], new[1][None]  # not read where owners are told
        fused.describe(row, counted, layer, q, *own, new, out, lse, threads)
    return LayerCalls(fused.kernel.function, parameters, counters)
