"""Weights on the host: layer by layer they come to the device through two buffers, in every pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from accelerate.hooks import ModelHook, add_hook_to_module
from torch import Tensor, nn

from ttc.errors import OutOfMemory
from ttc.memory.link import Link, Transfer
from ttc.memory.manager import as_budget
from ttc.placement.base import Device, PlacedRunner, Placement, move_own, outside, placed_layers, weight_bytes

BUFFERS = 2
"""One holds the layer that is computed, the other takes the next one meanwhile."""
PIECES = 32
"""A layer crosses in so many pieces, so that KV which is needed earlier waits for a piece at most."""
ALIGNED_BYTES = 64
"""Each weight begins at a multiple of this in its layer's memory."""


@dataclass
class Streamed(Placement):
    """The layers' weights lie on the host and come to the device one layer after the other (FlexGen, and what
    Accelerate's `cpu_offload` does without the second buffer). What is not a layer stays on the device: embeddings, the
    final norm and the output projection.

    With a budget_gib, as many of the first layers as it has room for stay there, too.
    """

    def decide(self, model: Any, device: torch.device) -> int:
        """How many of the first layers stay on the device."""
        layers, budget = placed_layers(model), self.device_budget(model, device)
        needed, on_host = self._sizes(model, layers, 0)
        if budget is not None and needed > budget:
            raise OutOfMemory(
                f"a placement.budget_gib of {budget:,} bytes is too small: embeddings, the output projection and "
                f"{BUFFERS} buffers of one layer need {needed:,}; a budget of {as_budget(needed)} would do, or choose "
                "a smaller model"
            )
        kept = 0
        if self.budget_gib is not None and budget is not None:
            kept = max(n for n in range(len(layers) + 1) if self._sizes(model, layers, n)[0] <= budget)
            on_host = self._sizes(model, layers, kept)[1]
        self.require_host(on_host, f"the {len(layers) - kept} layers that are streamed")
        return kept

    def device_map(self, model: Any, device: torch.device, decided: int) -> dict[str, str]:
        layers = placed_layers(model)
        names = {id(layer): name for name, layer in model.named_modules()}
        found = dict.fromkeys(outside(model, layers), str(device))
        return found | {names[id(layer)]: str(device) if n < decided else "cpu" for n, layer in enumerate(layers)}

    def place(self, model: Any, device: Device, decided: int | None = None) -> PlacedRunner:
        device = torch.device(device)
        kept = self.decide(model, device) if decided is None else decided
        layers = placed_layers(model)
        for module in outside(model, layers).values():
            move_own(module, device)
        for layer in layers[:kept]:
            layer.to(device)
        link = Link(device)
        if streamed := layers[kept:]:
            stream = WeightStream(streamed, link, device)
            for index, layer in enumerate(streamed):
                add_hook_to_module(layer, _Arrives(stream, index))
        on_device, on_host = self._sizes(model, layers, kept)
        runner = PlacedRunner(model, device, link, self.link_gbps, on_device, on_host)
        runner.streamed_layer_bytes = on_host // len(layers)
        return runner

    @staticmethod
    def _sizes(model: Any, layers: Sequence[nn.Module], kept: int) -> tuple[int, int]:
        """Bytes of weights on the device, the buffers included, and on the host when `kept` layers stay."""
        sizes = [_layer_bytes(layer) for layer in layers]
        rest = weight_bytes(outside(model, layers).values())
        return rest + sum(sizes[:kept]) + BUFFERS * max(sizes[kept:], default=0), sum(sizes[kept:])


class WeightStream:
    """The weights of some layers on their way through two buffers.

    A layer's weights are those in a buffer from its `arrive` until another layer takes the buffer, and those on the
    host otherwise. While a layer computes, the next one is fetched, after the last the first; what the layer that
    computes needs besides, such as KV, crosses first.
    """

    def __init__(self, layers: Sequence[nn.Module], link: Link, device: torch.device):
        self.link = link
        self.layers = [_LayerWeights(layer, device) for layer in layers]
        size = max(layer.host.numel() for layer in self.layers)
        self.buffers = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(BUFFERS)]
        self.views = [[layer.views(buffer) for buffer in self.buffers] for layer in self.layers]
        self.held: list[int | None] = [None] * BUFFERS  # the layer in each buffer
        self.transfers: list[Transfer | None] = [None] * BUFFERS
        self.last = BUFFERS - 1  # the buffer of the layer that came last

    def arrive(self, index: int) -> None:
        """Let a layer compute with its weights on the device. Raises what went wrong on their way."""
        if index not in self.held:
            self._fetch(index, 1 - self.last, later=False)
        self.last = slot = self.held.index(index)
        try:
            self.link.wait(self.transfers[slot])
        except BaseException:
            self.held[slot] = None  # so that it is fetched again
            raise
        self.layers[index].use(self.views[index][slot])
        following = (index + 1) % len(self.layers)
        if following not in self.held:
            self._fetch(following, 1 - slot, later=True)

    def _fetch(self, index: int, slot: int, later: bool) -> None:
        before, layer = self.held[slot], self.layers[index]
        if before is not None:
            self.layers[before].use(self.layers[before].on_host)
        self.held[slot] = index
        size = layer.host.numel()
        pieces = [whole.split(ceil(size / PIECES)) for whole in (self.buffers[slot][:size], layer.host)]
        self.transfers[slot] = self.link.fetch(list(zip(*pieces, strict=True)), "weights", later=later)


class _LayerWeights:
    """The weights of one layer, side by side in one piece of the host's memory. Its buffers, which are few numbers,
    stay on the device."""

    def __init__(self, layer: nn.Module, device: torch.device):
        self.weights = list(layer.parameters())
        self.host = torch.empty(_layer_bytes(layer), dtype=torch.uint8, pin_memory=device.type == "cuda")
        self.on_host = self.views(self.host)
        for weight, place in zip(self.weights, self.on_host, strict=True):
            place.copy_(weight.data)
        self.use(self.on_host)  # what they were in before is freed
        for module in layer.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(device))

    def views(self, buffer: Tensor) -> list[Tensor]:
        """Each weight's place in a buffer."""
        found, start = [], 0
        for weight in self.weights:
            nbytes = weight.numel() * weight.element_size()
            found.append(buffer[start : start + nbytes].view(weight.dtype).view(weight.shape))
            start += _aligned(nbytes)
        return found

    def use(self, places: Sequence[Tensor]) -> None:
        for weight, place in zip(self.weights, places, strict=True):
            weight.data = place


class _Arrives(ModelHook):
    """Has a layer's weights on the device before it computes."""

    def __init__(self, stream: WeightStream, index: int):
        self.stream, self.index = stream, index

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self.stream.arrive(self.index)
        return args, kwargs


def _layer_bytes(layer: nn.Module) -> int:
    """What a layer's weights take in one piece."""
    return sum(_aligned(weight.numel() * weight.element_size()) for weight in layer.parameters())


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNED_BYTES) * ALIGNED_BYTES
