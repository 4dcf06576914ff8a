"""Linear layers of the host that the device helps with, over the link that a split leaves idle: it
computes some of their rows, with weights that cross meanwhile."""

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
    layers: Sequence[nn.Module],
    share: float,
    link: Link,
    device: torch.device,
    whole: Collection[int] = (),
) -> int:
    """Let `device` compute a share of the rows of the layers' large linear layers. The weights of
    these rows come to it in every pass. Returns the bytes of the buffers there.

    layers: on the host, in the order in which they run. whole: weights that are not divided, by id.
    """
    divisible = [(layer, _divisible(layer, share, whole)) for layer in layers]
    divided = [(layer, linears) for layer, linears in divisible if linears]
    if not divided:
        return 0
    weights = [
        HostWeights([linear.weight.data[_kept(linear, share) :] for linear in its.values()], device)
        for _, its in divided
    ]
    stream = WeightStream(weights, link, device)
    for index, (layer, linears) in enumerate(divided):
        help = Help(stream, index, link, device)
        for number, (name, linear) in enumerate(linears.items()):
            parent, _, last = name.rpartition(".")
            replacement = DividedLinear(linear, _kept(linear, share), help, number)
            setattr(layer.get_submodule(parent), last, replacement)
        add_hook_to_module(layer, help)
    return sum(buffer.numel() for buffer in stream.buffers)


class Help(Leaves):
    """The device's part in a layer of the host."""

    def __init__(self, stream: WeightStream, index: int, link: Link, device: torch.device):
        super().__init__(stream, index)
        self.link = link
        self.device = device
        self.sent: tuple[Tensor, Tensor] | None = None  # what was multiplied last, and its copy

    def product(self, x: Tensor, number: int, bias: Tensor | None) -> tuple[Tensor, Transfer]:
        """Start to multiply `x` by the device's rows of the linear layer of this number. Returns
        the host's memory for the product, and what is on its way there."""
        if self.sent is None or self.sent[0] is not x:
            copy = torch.empty_like(x, device=self.device)
            self.link.wait(self.link.fetch([(copy, x)], "activations"))
            self.sent = x, copy
        weight = self.stream.arrive(self.index)[number]
        product = functional.linear(self.sent[1], weight, bias)
        pinned = self.device.type == "cuda"
        back = torch.empty(product.shape, dtype=product.dtype, pin_memory=pinned)
        return back, self.link.store([(back, product)], "activations")

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        self.sent = None
        return super().post_forward(module, output)


class DividedLinear(nn.Module):
    """A linear layer whose first `kept` rows the host computes, and the device the others."""

    def __init__(self, linear: nn.Linear, kept: int, help: Help, number: int):
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.help = help
        self.number = number
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
    return {
        name: linear
        for name, linear in large_linears(layer).items()
        if is_plain(linear)
        and _kept(linear, share) < linear.out_features
        and id(linear.weight) not in whole
    }


def _kept(linear: nn.Linear, share: float) -> int:
    return linear.out_features - int(linear.out_features * share) // ROWS * ROWS
