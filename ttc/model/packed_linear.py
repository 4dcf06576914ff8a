"""Linear layers whose weights are laid out for the CPU's matrix units (oneDNN through PyTorch).

A decode step is bound by reading the weights once; the packed layout reads them about 1.6 times as
fast for few rows. Projections of one input (k, v; gate, up) are packed as one product.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

ROWS = 8
"""The number of rows that the layout is chosen for; other counts work as well."""

SIBLINGS = (("k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of layers that transformers' models call one after the other on the same input. Queries are
apart, as CAPTURE computes keys and values alone."""


class PackedProduct:
    """One packed weight behind one or more linear layers. The first that is called computes for
    all.

    weight, bias: of these layers side by side. sizes: rows of each.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, sizes: Sequence[int]):
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
        self.bias = bias
        self.sizes = list(sizes)
        self._input: Tensor | None = None
        self._outputs: list[Tensor] = []

    @classmethod
    def of(cls, linears: Sequence[nn.Linear]) -> PackedProduct:
        weight = torch.cat([linear.weight.detach() for linear in linears])
        biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
        sizes = [linear.out_features for linear in linears]
        return cls(weight, torch.cat(biases) if biases else None, sizes)

    def part(self, x: Tensor, index: int) -> Tensor:
        if self._input is not x:
            self._outputs = list(self.product(x).split(self.sizes, -1))
            self._input = x
        output = self._outputs[index]
        if index == len(self.sizes) - 1:
            self._input = None
            self._outputs = []
        return output

    def product(self, x: Tensor) -> Tensor:
        multiply = torch.ops.mkldnn._linear_pointwise
        product: Tensor = multiply(x, self.packed, self.bias, "none", [], "")
        return product


class PackedLinear(nn.Module):
    """In place of `nn.Linear` in inference: the same product, the weight in packed form only."""

    def __init__(self, linear: nn.Linear, product: PackedProduct, index: int):
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.shared = product
        self.index = index

    def forward(self, x: Tensor) -> Tensor:
        return self.shared.part(x, self.index)


def has_bfloat16() -> bool:
    if not torch.backends.mkldnn.is_available():
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def packs(device: torch.device, dtype: torch.dtype) -> bool:
    return device.type == "cpu" and dtype == torch.bfloat16 and has_bfloat16()


def can_pack(model: nn.Module) -> bool:
    weight = next(weight for weight in model.parameters() if weight.is_floating_point())
    return packs(weight.device, weight.dtype)


def is_plain(module: nn.Module) -> bool:
    """Whether a module runs its class's code on ordinary tensors; quantized ones need not."""
    weights = module.parameters(recurse=False)
    return "forward" not in vars(module) and all(type(w) is nn.Parameter for w in weights)


def pack_linears(model: nn.Module, leave: Sequence[nn.Module] = ()) -> None:
    """Replace every `nn.Linear` of `model` where that is of use (`can_pack`), a few at a time; a
    weight that nothing else uses is freed. leave: parts of the model that stay as they are."""
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
            product = PackedProduct.of([linears[name] for name in group])
            for index, name in enumerate(group):
                setattr(parent, name, PackedLinear(linears.pop(name), product, index))


def _groups(linears: dict[str, nn.Linear]) -> list[tuple[str, ...]]:
    groups = []
    alone = dict.fromkeys(linears)
    for names in SIBLINGS:
        if all(name in linears for name in names):
            kinds = {(linears[name].in_features, linears[name].bias is None) for name in names}
            if len(kinds) == 1:
                groups.append(names)
                alone = {name: None for name in alone if name not in names}
    return [*groups, *((name,) for name in alone)]
