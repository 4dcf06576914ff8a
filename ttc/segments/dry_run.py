"""A policy run without tensors: what crosses the link, and what the device holds at its peak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ttc.memory.kv import LayerShape
from ttc.attention.plan import TreePlan

NOWHERE = torch.device("meta")
"""Where tensors have sizes and no numbers."""


@dataclass
class DryRunner:
    """Stands for a model: it reads what a policy makes a pass read, and computes nothing.

    vocabulary: how many tokens there are, of which one is drawn at random. by_kernel: whether a
        kernel would attend.
    """

    shapes: tuple[LayerShape, ...]
    dtype: torch.dtype
    vocabulary: int
    by_kernel: bool
    model: Any = None
    device: torch.device = field(init=False, default=NOWHERE)

    def forward(
        self, tokens: Sequence[int], plan: TreePlan, keep: Sequence[int] | None = None
    ) -> Tensor:
        for layer in range(len(self.shapes)):
            absent = [n for n, piece in enumerate(plan.entries) if piece.kv.readable(layer) is None]
            if absent:
                for _ in plan.read(layer, plan.entries, absent):  # type: ignore[arg-type]
                    pass
        plan.goes_on = plan.in_storages and self.by_kernel
        return torch.zeros(len(tokens if keep is None else keep), self.vocabulary)
