"""Linear layers of the host that the device helps with: it computes some of their rows, with weights that cross the
link, which a split leaves idle."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from accelerate.hooks import add_hook_to_module
from torch import Tensor, nn
from torch.nn import functional

from ttc.decoder_layers import large_linears
from ttc.memory.link import Link, Transfer
from ttc.model.packed_linear import is_plain
from ttc.placement.weight_stream import HostWeights, Leaves, WeightStream

ROWS = 8
"""The device's rows are a multiple of this, as its matrix units take them."""


def divide(
    layers: Sequence[nn.Module], share: float, link: Link, device: torch.device, whole: Collection[int] = ()
) -> int:
    """Let `device` compute a share of the rows of the layers' large linear layers. The weights of these rows stay on
    the host and come to it in every pass. Returns the bytes of the buffers there.

    layers: on the host, in the order in which they run. whole: weights that are not divided, by id.
    """
    divided = [(layer, linears) for layer in layers if (linears := _divisible(layer, share, whole))]
    if not divided:
        return 0
    weights = [
        HostWeights([linear.weight.data[_kept(linear, share) :] for linear in linears.values()], device)
        for _, linears in divided
    ]
    stream = WeightStream(weights, link, device)
    for index, (layer, linears) in enumerate(divided):
        help = Help(stream, index, link, device)
        for number, (name, linear) in enumerate(linears.items()):
            parent, _, own = name.rpartition(".")
            setattr(layer.get_submodule(parent), own, DividedLinear(linear, _kept(linear, share), help, number))
        add_hook_to_module(layer, help)
    return sum(buffer.numel() for buffer in stream.buffers)


class Help(Leaves):
    """The device's part in a layer of the host."""

    def __init__(self, stream: WeightStream, index: int, link: Link, device: torch.device):
        super().__init__(stream, index)
        self.link, self.device = link, device
        self.sent: tuple[Tensor, Tensor] | None = None  # what was multiplied last, and its copy on the device

    def product(self, x: Tensor, number: int, bias: Tensor | None) -> tuple[Tensor, Transfer]:
        """Start to multiply `x` by the device's rows of the linear layer of this number. Returns the host's memory for
        the product, and what is on its way there."""
        if self.sent is None or self.sent[0] is not x:
            copy = torch.empty_like(x, device=self.device)
            self.link.wait(self.link.fetch([(copy, x)], "activations"))
            self.sent = x, copy
        found = functional.linear(self.sent[1], self.stream.arrive(self.index)[number], bias)
        back = torch.empty(found.shape, dtype=found.dtype, pin_memory=self.device.type == "cuda")
        return back, self.link.store([(back, found)], "activations")

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        self.sent = None
        return super().post_forward(module, output)


class DividedLinear(nn.Module):
    """A linear layer whose first `kept` rows the host computes, and the device the others meanwhile."""

    def __init__(self, linear: nn.Linear, kept: int, help: Help, number: int):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.help, self.number = help, number
        bias = None if linear.bias is None else linear.bias.data
        self.near = nn.Linear(linear.in_features, kept, bias is not None, device="meta")
        self.near.weight = nn.Parameter(linear.weight.data[:kept].clone(), requires_grad=False)
        if bias is not None:
            self.near.bias = nn.Parameter(bias[:kept].clone(), requires_grad=False)
        self.far_bias = None if bias is None else bias[kept:].to(help.device)

    def forward(self, x: Tensor) -> Tensor:
        far, arriving = self.help.product(x, self.number, self.far_bias)
        near = self.near(x)
        self.help.link.wait_on_host(arriving)
        return torch.cat([near, far], -1)


def _divisible(layer: nn.Module, share: float, whole: Collection[int]) -> dict[str, nn.Linear]:
    """The linear layers of which the device gets some rows, by name."""
    large = {name: part for name, part in large_linears(layer).items() if is_plain(part)}
    some = {name: part for name, part in large.items() if _kept(part, share) < part.out_features}
    return {name: part for name, part in some.items() if id(part.weight) not in whole}


def _kept(linear: nn.Linear, share: float) -> int:
    """How many rows of a linear layer the host computes."""
    return linear.out_features - int(linear.out_features * share) // ROWS * ROWS
