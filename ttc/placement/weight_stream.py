"""Weights of the host that come to the device in every pass, through two buffers."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import torch
from accelerate.hooks import ModelHook
from torch import Tensor, nn

from ttc.cost_model.device_profile import BUFFERS
from ttc.memory.link import Link, Transfer

PIECES = 32
"""What a buffer takes crosses in so many pieces, so that KV which is needed earlier waits for a piece at most."""
LEAST_PIECE_BYTES = 1 << 18
"""Pieces are not smaller, as each of them costs time."""
ALIGNED_BYTES = 64
"""Each weight begins at a multiple of this."""


class HostWeights:
    """Copies of some weights, side by side in one piece of the host's memory."""

    def __init__(self, weights: Sequence[Tensor], device: torch.device):
        self.shapes = [(weight.dtype, weight.shape) for weight in weights]
        self.memory = torch.empty(side_by_side(weights), dtype=torch.uint8, pin_memory=device.type == "cuda")
        self.on_host = self.views(self.memory)
        for place, weight in zip(self.on_host, weights, strict=True):
            place.copy_(weight)

    def views(self, buffer: Tensor) -> list[nn.Parameter]:
        """Each weight in its place in a buffer."""
        found, start = list[nn.Parameter](), 0
        for dtype, shape in self.shapes:
            nbytes = shape.numel() * dtype.itemsize
            place = buffer[start : start + nbytes].view(dtype).view(shape)
            found.append(nn.Parameter(place, requires_grad=False))
            start += _aligned(nbytes)
        return found


class WeightStream:
    """Weights on their way through two buffers, those of one layer at a time.

    They are there from `arrive` to `leave`, which lets the buffer take the next ones that are in none, after the last
    the first; what is computed meanwhile and needs something else, such as KV, has that first.
    """

    def __init__(self, layers: Sequence[HostWeights], link: Link, device: torch.device):
        self.layers, self.link = layers, link
        size = max(layer.memory.numel() for layer in layers)
        self.buffers = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(BUFFERS)]
        self.views = [[layer.views(buffer) for buffer in self.buffers] for layer in layers]
        self.held: list[int | None] = [None] * BUFFERS  # the layer in each buffer
        self.transfers: list[Transfer | None] = [None] * BUFFERS

    def arrive(self, index: int) -> list[nn.Parameter]:
        """A layer's weights on the device. Raises what went wrong on their way."""
        if index not in self.held:  # the first pass, or one after a pass that broke off
            self._fetch(index, self._needed_last(index), later=False)
        slot = self.held.index(index)
        try:
            self.link.wait(self.transfers[slot])
        except BaseException:
            self.forget()
            raise
        return self.views[index][slot]

    def leave(self, index: int) -> None:
        """A layer is computed."""
        count = len(self.layers)
        for free in (None, index):  # an empty buffer first
            following = ((index + n) % count for n in range(1, count))
            missing = next((layer for layer in following if layer not in self.held), None)
            if free in self.held and missing is not None:
                self._fetch(missing, self.held.index(free), later=True)

    def _needed_last(self, index: int) -> int:
        """The buffer whose layer is the last that is needed again."""
        waits = [len(self.layers) if held is None else (held - index) % len(self.layers) for held in self.held]
        return waits.index(max(waits))

    def _fetch(self, index: int, slot: int, later: bool) -> None:
        self.link.wait_and_ignore(self.transfers[slot])  # or it would go on beside this one
        self.held[slot], source = index, self.layers[index].memory
        piece = max(LEAST_PIECE_BYTES, ceil(source.numel() / PIECES))
        pieces = [whole.split(piece) for whole in (self.buffers[slot][: source.numel()], source)]
        self.transfers[slot] = self.link.fetch(list(zip(*pieces, strict=True)), "weights", later=later)

    def forget(self) -> None:
        """Take the buffers for empty, so that all is fetched again."""
        for slot, transfer in enumerate(self.transfers):
            self.link.wait_and_ignore(transfer)
            self.held[slot] = self.transfers[slot] = None


class Leaves(ModelHook):
    """Tells a stream that a layer is computed."""

    def __init__(self, stream: WeightStream, index: int):
        self.stream, self.index = stream, index

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        self.stream.leave(self.index)
        return output


def side_by_side(weights: Sequence[Tensor]) -> int:
    """Bytes that weights take in one piece."""
    return sum(_aligned(weight.numel() * weight.element_size()) for weight in weights)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNED_BYTES) * ALIGNED_BYTES
