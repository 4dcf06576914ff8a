"""Weights on the host: layer by layer they come to the device through two buffers, in every
pass."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from accelerate.hooks import add_hook_to_module
from torch import nn

from ttc.cost_model.device_profile import BUFFERS
from ttc.decoder_layers import decoder_layers, layer_stacks
from ttc.errors import OutOfMemory, UnsupportedModel
from ttc.memory.link import Link
from ttc.memory.tiers import as_budget
from ttc.placement.base import (
    Device,
    PlacedRunner,
    Placement,
    common_weights,
    move_own,
    outside,
    weight_bytes,
)
from ttc.placement.sides import weights_of
from ttc.placement.weight_stream import HostWeights, Leaves, WeightStream, side_by_side


@dataclass
class Streamed(Placement):
    """The layers' weights lie on the host and come to the device one layer after the other
    (FlexGen).

    What is not a layer stays on the device: embeddings, the final norm and the output projection;
    and weights that layers have in common. With a budget_gib, as many of the first layers as it has
    room for stay there, too.
    """

    def decide(self, model: Any, device: torch.device) -> int:
        """How many of the first layers stay on the device."""
        layers = _layers(model)
        budget = self.device_budget(model, device)
        sizes = self._sizes(model, layers, 0)
        if budget is not None and sizes[0] > budget:
            raise OutOfMemory(
                f"a placement.budget_gib of {budget:,} bytes is too small: embeddings, the output "
                f"projection and {BUFFERS} buffers of one layer need {sizes[0]:,}; a budget of "
                f"{as_budget(sizes[0])} would do, or choose a smaller model"
            )
        kept = 0
        if self.budget_gib is not None and budget is not None:
            fitting = range(len(layers) + 1)
            kept = max(n for n in fitting if self._sizes(model, layers, n)[0] <= budget)
            sizes = self._sizes(model, layers, kept)
        self.require_host(sizes[1], f"the {len(layers) - kept} layers that are streamed")
        return kept

    def device_map(self, model: Any, device: torch.device, decided: int) -> dict[str, str]:
        layers = _layers(model)
        names = {module: name for name, module in model.named_modules()}
        places = dict.fromkeys(outside(model, layers), str(device))
        for n, layer in enumerate(layers):
            places[names[layer]] = str(device) if n < decided else "cpu"
        return places

    def place(self, model: Any, device: Device, decided: int | None = None) -> PlacedRunner:
        device = torch.device(device)
        kept = self.decide(model, device) if decided is None else decided
        layers = _layers(model)
        stay = _move(model, common_weights(model, layers), device)
        for module in outside(model, layers).values():
            move_own(module, device)
        for layer in layers[:kept]:
            layer.to(device)
        link = Link(device)
        stream: WeightStream | None = None
        weights = [_LayerWeights(layer, device, stay) for layer in layers[kept:]]
        if weights:
            stream = WeightStream([layer.host for layer in weights], link, device)
            for index, (layer, its) in enumerate(zip(layers[kept:], weights, strict=True)):
                add_hook_to_module(layer, _Arrives(stream, index, its))
        on_device, on_host = self._sizes(model, layers, kept)
        runner = PlacedRunner(model, device, link, self.link_gbps, on_device, on_host)
        runner.streamed_layer_bytes = on_host // len(layers)
        if stream is not None:
            runner.watch.on_change.append(partial(_follow, stream, weights))
        return runner

    @staticmethod
    def _sizes(model: Any, layers: Sequence[nn.Module], kept: int) -> tuple[int, int]:
        """Bytes of weights on the device, the buffers included, and on the host when `kept` layers
        stay."""
        around = outside(model, layers).values()
        common = common_weights(model, layers)
        sizes = [side_by_side(_streamed(layer, common)) for layer in layers]
        outer = weights_of(around)
        shared = sum(weight.nbytes for key, weight in common.items() if key not in outer)
        buffers = BUFFERS * max(sizes[kept:], default=0)
        return weight_bytes(around) + shared + sum(sizes[:kept]) + buffers, sum(sizes[kept:])


class _LayerWeights:
    """The weights of one layer: those on the host, or in a buffer of the device while the layer
    computes. Its buffers, which are few numbers, stay on the device, and so do the weights `stay`,
    by id."""

    def __init__(self, layer: nn.Module, device: torch.device, stay: Collection[int]):
        weights = _streamed(layer, stay)
        numbers = {id(weight): number for number, weight in enumerate(weights)}
        self.owners = [
            (module, name, numbers[id(weight)])
            for module in layer.modules()
            for name, weight in _named_weights(module)
            if id(weight) in numbers
        ]
        self.host = HostWeights([weight.data for weight in weights], device)
        self.use(self.host.on_host)  # what they were in before is freed
        for module in layer.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(device))

    def use(self, weights: Sequence[nn.Parameter]) -> None:
        for module, name, number in self.owners:
            module._parameters[name] = weights[number]

    def take_over(self, buffers: Collection[nn.Parameter]) -> None:
        """Take what was put in the place of a weight, other than what a pass that broke off left.

        Raises UnsupportedModel for a weight of another kind: its place on the host holds no other.
        """
        passing = {id(weight) for weight in buffers}
        for module, name, number in self.owners:
            new = module._parameters.get(name)
            on_host = self.host.on_host[number]
            if new is on_host or id(new) in passing:
                continue
            if new is None or (new.shape, new.dtype) != (on_host.shape, on_host.dtype):
                kind = "nothing"
                if new is not None:
                    kind = f"a weight {tuple(new.shape)} of {new.dtype}"
                raise UnsupportedModel(
                    f"{kind} was put in the place of a streamed weight, {name} of a "
                    f"{type(module).__name__}, which is {tuple(on_host.shape)} of {on_host.dtype}; "
                    "put back one of that kind, or leave placement out"
                )
            on_host.data.copy_(new.data)
        self.use(self.host.on_host)


def _follow(stream: WeightStream, layers: Sequence[_LayerWeights]) -> None:
    """The model has changed: what lies in the buffers may be the weights of before."""
    stream.forget()
    for views, layer in zip(stream.views, layers, strict=True):
        layer.take_over([weight for buffer in views for weight in buffer])


class _Arrives(Leaves):
    def __init__(self, stream: WeightStream, index: int, weights: _LayerWeights):
        super().__init__(stream, index)
        self.weights = weights

    def pre_forward(
        self, module: nn.Module, *args: Any, **kwargs: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self.weights.use(self.stream.arrive(self.index))
        return args, kwargs

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        self.weights.use(self.weights.host.on_host)
        return super().post_forward(module, output)


def _layers(model: Any) -> list[nn.Module]:
    try:
        return decoder_layers(model)
    except UnsupportedModel as error:
        stacks = layer_stacks(model)
        if not stacks:
            raise UnsupportedModel(
                f"{error} that could come one by one; leave placement out"
            ) from error
        return [layer for layers in stacks for layer in layers]


def _move(model: nn.Module, weights: Mapping[int, nn.Parameter], device: torch.device) -> set[int]:
    """Have some weights, by id, on the device, for all modules. Returns their new ids."""
    moved = {
        key: nn.Parameter(weight.data.to(device), requires_grad=False)
        for key, weight in weights.items()
    }
    for module in model.modules():
        for name, weight in _named_weights(module):
            if id(weight) in moved:
                module._parameters[name] = moved[id(weight)]
    return {id(weight) for weight in moved.values()}


def _named_weights(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return list(module.named_parameters(recurse=False, remove_duplicate=False))


def _streamed(layer: nn.Module, stay: Collection[int]) -> list[nn.Parameter]:
    return [weight for weight in layer.parameters() if id(weight) not in stay]
