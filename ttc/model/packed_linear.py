"""Linear layers whose weights are laid out for the CPU's matrix units.

A decode step is bound by reading the weights once; the packed layout reads them about 1.6 times as fast for the few
rows that search decodes at a time (oneDNN through PyTorch, bfloat16). Projections of one input (q, k, v; gate, up) are
packed as one product, which saves calls.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

ROWS = 8
"""The number of rows that the layout is chosen for; other counts work as well."""

SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of layers that transformers' models call one after the other on the same input."""


class PackedProduct:
    """One packed weight behind one or more linear layers. The first that is called computes for all."""

    def __init__(self, linears: Sequence[nn.Linear]):
        weight = torch.cat([linear.weight.detach() for linear in linears])
        biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
        self.bias = torch.cat(biases) if biases else None
        self.sizes = [linear.out_features for linear in linears]
        self._input: Tensor | None = None
        self._outputs: list[Tensor] = []

    def part(self, x: Tensor, index: int) -> Tensor:
        """The output of layer `index` for `x`."""
        if self._input is not x:
            self._outputs = list(self.product(x).split(self.sizes, -1))
            self._input = x
        output = self._outputs[index]
        if index == len(self.sizes) - 1:
            self._input, self._outputs = None, []
        return output

    def product(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return product


class PackedLinear(nn.Module):
    """A drop-in for `nn.Linear` in inference: the same product, the weight kept in packed form only."""

    def __init__(self, linear: nn.Linear, product: PackedProduct, index: int):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.shared, self.index = product, index

    def forward(self, x: Tensor) -> Tensor:
        return self.shared.part(x, self.index)


def can_pack(model: nn.Module) -> bool:
    """Whether packing the model is of use."""
    weight = next(model.parameters())
    return packs(weight.device, weight.dtype)


def packs(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether weights are packed there: in bfloat16 on a CPU whose oneDNN has kernels for it."""
    return (
        device.type == "cpu"
        and dtype == torch.bfloat16
        and torch.backends.mkldnn.is_available()
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def is_plain(module: nn.Module) -> bool:
    """Whether a module computes by its class's code on ordinary tensors. In a quantized model ordinary modules may have
    other weights (torchao) or other code (compressed-tensors)."""
    weights = module.parameters(recurse=False)
    return "forward" not in vars(module) and all(type(weight) is nn.Parameter for weight in weights)


def pack_linears(model: nn.Module, leave: Sequence[nn.Module] = ()) -> None:
    """Replace every `nn.Linear` of `model`, a few at a time, where that is of use (`can_pack`); a weight that nothing
    else uses is freed. leave: parts of the model that stay as they are."""
    if not can_pack(model):
        return
    staying = {module for part in leave for module in part.modules()}
    for parent in [module for module in model.modules() if module not in staying]:
        linears = {
            name: child
            for name, child in parent.named_children()
            if type(child) is nn.Linear and is_plain(child) and child.weight.dtype == torch.bfloat16
        }
        for group in _groups(linears):
            product = PackedProduct([linears[name] for name in group])
            for index, name in enumerate(group):
                setattr(parent, name, PackedLinear(linears.pop(name), product, index))


def _groups(linears: dict[str, nn.Linear]) -> list[tuple[str, ...]]:
    """The names of `linears`, siblings together where their inputs and biases match."""
    groups = [
        names
        for names in SIBLINGS
        if all(name in linears for name in names)
        and len({(linears[name].in_features, linears[name].bias is None) for name in names}) == 1
    ]
    taken = {name for names in groups for name in names}
    return groups + [(name,) for name in linears if name not in taken]
