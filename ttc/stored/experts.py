"""Experts (mixtures of experts) whose weights stay as they are stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ttc.model.stored import Stored
from ttc.stored.layers import Multiplying

PARTS = ("gate", "up", "down")
"""The matrices of an expert."""
Gating = Callable[[Tensor, Tensor], Tensor]
"""What a row's products with `gate` and `up` become."""


def plain_experts() -> tuple[type, ...]:
    """Modules of experts that `StoredExperts` stands for; both run the same code."""
    from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeExperts
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

    return Qwen2MoeExperts, Qwen3MoeExperts


def experts_of(model: nn.Module) -> dict[str, Any]:
    """The modules of a model that can become `StoredExperts`, by name."""
    kinds = plain_experts()
    return {path: module for path, module in model.named_modules() if type(module) in kinds}


def matrix_shapes(experts: Any) -> dict[str, tuple[int, int, int]]:
    """The shape of each of `PARTS`, (experts, rows, width), by a module of plain weights."""
    count, rows, hidden = experts.gate_up_proj.shape
    return {
        "gate": (count, rows // 2, hidden),
        "up": (count, rows // 2, hidden),
        "down": tuple(experts.down_proj.shape),
    }


@dataclass(frozen=True)
class Activated:
    """The usual gating: one product, activated, times the other."""

    act_fn: Callable[[Tensor], Tensor]

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        return self.act_fn(gate) * up


@dataclass(frozen=True)
class Clamped:
    """The gating of gpt-oss (`GptOssExperts._apply_gate`)."""

    alpha: float
    limit: float

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        gate = gate.clamp(max=self.limit)
        up = up.clamp(min=-self.limit, max=self.limit)
        return (up + 1) * (gate * torch.sigmoid(gate * self.alpha))


class StoredMatrices(Multiplying):
    """A matrix of each expert. packed: (experts, rows, bytes). width: the numbers of a row. bias:
    (experts, rows)."""

    def __init__(
        self,
        packed: Tensor,
        stored: int,
        width: int,
        bias: nn.Parameter | None = None,
    ):
        super().__init__(packed, stored, bias)
        self.width = width

    @property
    def numbers(self) -> int:
        experts, rows, _ = self.packed.shape
        return experts * rows * self.width

    def linear(self, x: Tensor, expert: int) -> Tensor:
        """What rows x become by one expert's matrix."""
        y = self.product(x, self.packed[expert])
        return y if self.bias is None else y + self.bias[expert]


class StoredExperts(Stored):
    """The experts of a layer. Each multiplies the rows that the router sends it, in the same order
    and types as transformers' own: those of `plain_experts`, or, with biases, of gpt-oss."""

    def __init__(
        self,
        gate: StoredMatrices,
        up: StoredMatrices,
        down: StoredMatrices,
        gating: Gating,
    ):
        super().__init__()
        self.gate = gate
        self.up = up
        self.down = down
        self.gating = gating
        self.numbers = gate.numbers + up.numbers + down.numbers

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """hidden_states: (rows, hidden). top_k_index, top_k_weights: (rows, k), the experts of each
        row and what their results are multiplied by."""
        experts, places = top_k_index.flatten().sort(stable=True)
        rows = places // top_k_index.shape[1]
        factors = top_k_weights.flatten()[places, None]
        inputs = hidden_states[rows]
        hit, counts = (part.tolist() for part in experts.unique_consecutive(return_counts=True))
        result = torch.zeros_like(hidden_states)
        parts = (hit, *(part.split(counts) for part in (inputs, rows, factors)))
        for expert, x, its, factor in zip(*parts, strict=True):
            y = self.gating(self.gate.linear(x, expert), self.up.linear(x, expert))
            y = self.down.linear(y, expert) * factor
            result.index_add_(0, its, y.to(result.dtype))
        return result

    def weight_bytes(self) -> dict[str, int]:
        return {
            "gate_up_proj": self.gate.packed.nbytes + self.up.packed.nbytes,
            "down_proj": self.down.packed.nbytes,
        }
