"""Weights of the host that come to the device in every pass, through two buffers."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import torch
from accelerate.hooks import ModelHook
from torch import Tensor, nn

from ttc.cost_model.device_profile import BUFFERS
from ttc.errors import on_failure
from ttc.memory.link import Link, Transfer

PIECES = 32
"""What a buffer takes crosses in so many pieces: KV that is needed earlier waits for one at
most."""
LEAST_PIECE_BYTES = 1 << 18
"""Pieces are not smaller, as each of them costs time."""
ALIGNED_BYTES = 64
"""Each weight begins at a multiple of this."""


class HostWeights:
    """Copies of some weights, side by side in one piece of the host's memory."""

    def __init__(self, weights: Sequence[Tensor], device: torch.device):
        self.shapes = [(weight.dtype, weight.shape) for weight in weights]
        pinned = device.type == "cuda"
        self.memory = torch.empty(side_by_side(weights), dtype=torch.uint8, pin_memory=pinned)
        self.on_host = self.views(self.memory)
        for place, weight in zip(self.on_host, weights, strict=True):
            place.copy_(weight)

    def views(self, buffer: Tensor) -> list[nn.Parameter]:
        """Each weight in its place in a buffer."""
        views: list[nn.Parameter] = []
        start = 0
        for dtype, shape in self.shapes:
            nbytes = shape.numel() * dtype.itemsize
            place = buffer[start : start + nbytes].view(dtype).view(shape)
            views.append(nn.Parameter(place, requires_grad=False))
            start += _aligned(nbytes)
        return views


class WeightStream:
    """Weights on their way through two buffers, those of one layer at a time.

    They are there from `arrive` to `leave`, which lets the buffer take the next ones, after the
    last the first; what is computed meanwhile and needs something else, such as KV, has that first.
    """

    def __init__(self, layers: Sequence[HostWeights], link: Link, device: torch.device):
        self.layers = layers
        self.link = link
        size = max(layer.memory.numel() for layer in layers)
        self.buffers = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(BUFFERS)]
        self.views = [[layer.views(buffer) for buffer in self.buffers] for layer in layers]
        self.buffered: list[int | None] = [None] * BUFFERS  # the layer in each buffer
        self.transfers: list[Transfer | None] = [None] * BUFFERS

    def arrive(self, index: int) -> list[nn.Parameter]:
        """A layer's weights on the device. Raises what went wrong on their way."""
        if index not in self.buffered:  # the first pass, or one after a pass that broke off
            self._fetch(index, self._needed_last(index), later=False)
        slot = self.buffered.index(index)
        with on_failure(self.forget):
            self.link.wait(self.transfers[slot])
        return self.views[index][slot]

    def leave(self, index: int) -> None:
        """A layer is computed."""
        count = len(self.layers)
        for free in (None, index):  # an empty buffer first
            following = ((index + n) % count for n in range(1, count))
            missing = next((layer for layer in following if layer not in self.buffered), None)
            if free in self.buffered and missing is not None:
                self._fetch(missing, self.buffered.index(free), later=True)

    def forget(self) -> None:
        """Take the buffers for empty, so that all is fetched again."""
        for slot, transfer in enumerate(self.transfers):
            self.link.wait_and_ignore(transfer)
            self.buffered[slot] = None
            self.transfers[slot] = None

    def _needed_last(self, index: int) -> int:
        count = len(self.layers)
        waits = [count if layer is None else (layer - index) % count for layer in self.buffered]
        return waits.index(max(waits))

    def _fetch(self, index: int, slot: int, later: bool) -> None:
        self.link.wait_and_ignore(self.transfers[slot])  # or both would write to the buffer
        self.buffered[slot] = index
        source = self.layers[index].memory
        size = source.numel()
        piece = max(LEAST_PIECE_BYTES, ceil(size / PIECES))
        targets = self.buffers[slot][:size].split(piece)
        pieces = list(zip(targets, source.split(piece), strict=True))
        self.transfers[slot] = self.link.fetch(pieces, "weights", later=later)


class Leaves(ModelHook):
    """Tells a stream that a layer is computed."""

    def __init__(self, stream: WeightStream, index: int):
        self.stream = stream
        self.index = index

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        self.stream.leave(self.index)
        return output


def side_by_side(weights: Sequence[Tensor]) -> int:
    """Bytes that weights take in one piece."""
    return sum(_aligned(weight.nbytes) for weight in weights)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNED_BYTES) * ALIGNED_BYTES
