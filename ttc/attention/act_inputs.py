"""What goes into a layer's K and V projections, kept for ACT blocks (CAPTURE, section IV-A)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ttc.attention.extend_plan import ExtendPlan
from ttc.attention.plan import DecodePlan, Plan

Regenerate = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(layer, inputs (tokens, width), positions (tokens,)) -> keys, values (kv_heads, tokens, dim)."""


def keep_inputs(plan: Plan, layer: int, inputs: Tensor) -> None:
    """Store the inputs (rows, width) of a pass in its tails, or in the ACT blocks of new tokens."""
    if (keep := getattr(plan, "keep_inputs", None)) is not None:
        keep(layer, inputs)
    elif isinstance(plan, DecodePlan):
        kept = plan.tails.inputs.device[layer] if plan.tails.inputs is not None else None
        if kept is not None:
            kept.keys[plan.places, 0, plan.filled] = inputs
    elif isinstance(plan, ExtendPlan):
        for row, count, kv, first in plan.new:
            if layer not in kv.acts:
                continue
            part = inputs[None, row : row + count]
            where = (slice(None), slice(first, first + count))
            if (copy := kv.device[layer]) is not None:
                copy.keys[where] = part
            if kv.host[layer] is not None and plan.memory is not None:
                plan.memory.store(kv, layer, where, part, part[..., :0])
