"""A policy run without tensors: what crosses the link, and what the device holds at its peak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ttc.attention.plan import Plan
from ttc.memory.dry_link import NOWHERE
from ttc.memory.kv import LayerShape


@dataclass
class DryRunner:
    """Stands for a model: it reads what a policy makes a pass read, and computes nothing.

    vocabulary: how many tokens there are, of which one is drawn at random.
    """

    shapes: tuple[LayerShape, ...]
    dtype: torch.dtype
    vocabulary: int
    model: Any = None
    device: torch.device = field(init=False, default=NOWHERE)

    def forward(
        self, tokens: Sequence[int], plan: Plan, keep: Sequence[int] | None = None
    ) -> Tensor:
        for layer, shape in enumerate(self.shapes):
            new = torch.empty(shape.kv_heads, len(tokens), 1, device=NOWHERE)
            keys = new.expand(-1, -1, shape.key_dim).to(self.dtype)
            values = new.expand(-1, -1, shape.value_dim).to(self.dtype)
            if any(run.places[0].storage.device[layer] is None for run in plan.runs):
                plan.store(layer, keys, values)
            for _ in plan.stream.read(layer) if plan.stream is not None else ():
                pass
        return torch.zeros(len(tokens if keep is None else keep), self.vocabulary)
