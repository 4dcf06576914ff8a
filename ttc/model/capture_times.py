"""What a layer takes on this machine, measured, for CAPTURE's Algorithm 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any, cast

import torch
from torch import nn

from ttc.attention.entry import Entry
from ttc.attention.plan import DecodePlan
from ttc.attention.stream import KVReader, Unit
from ttc.cost_model.capture import CaptureTimes, Line, fit_line
from ttc.decoder_layers import decoder_layers
from ttc.errors import UnsupportedModel
from ttc.memory.kv import KV, LayerKV
from ttc.memory.link import Link
from ttc.memory.manager import KVMemory
from ttc.model.regeneration import TIMED_TOKENS, TRIES, Regeneration, timed_line
from ttc.model.runner import ModelRunner

TIMED_BLOCKS = (1, 2, 4, 8)
"""Numbers of KV blocks that are attended while the rest of a layer is timed."""


class MeasuredTimes:
    """The times of a layer, per token: lines through what this machine takes, measured when needed.

    block_tokens: tokens of a block, as each block is attended by itself.
    """

    def __init__(self, runner: ModelRunner, regeneration: Regeneration, memory: KVMemory, block_tokens: int):
        self.runner, self.regeneration, self.memory = runner, regeneration, memory
        self.block_tokens = block_tokens
        self.run_pass = runner.forward  # also while contexts are made without running the model (`uncomputed`)
        self._copying: CaptureTimes | None = None
        self._forward = dict[int, Line]()

    def __call__(self, layer: int, rows: int, tokens: int) -> CaptureTimes:
        """The times of this layer in a pass of so many rows that attend `tokens` tokens.

        Rows count as the next power of two. `forward_s` is 0 where it cannot be measured: with
        recurrent layers, and where decoder layers lie in no list.
        """
        if self._copying is None:
            self._copying = self._measure_copying(layer)
        rows = 1 << max(0, rows - 1).bit_length()
        if rows not in self._forward:
            self._forward[rows] = self.measure_forward(layer, rows)
        return replace(self._copying, forward_s=self._forward[rows](tokens))

    def _measure_copying(self, layer: int) -> CaptureTimes:
        memory = self.memory
        shape = memory.shapes[layer]
        kv_gen = self.regeneration.kv_gen
        assert kv_gen is not None
        load_kv = timed_line(_load(memory, shape.elements))
        load_act = timed_line(_load(memory, shape.as_inputs.elements))
        weight_bytes = getattr(self.runner, "streamed_layer_bytes", 0)
        load_w = weight_bytes * load_kv.slope / memory.layer_bytes_per_token[layer]
        return CaptureTimes(kv_gen=kv_gen, load_kv=load_kv, load_act=load_act, load_w=load_w)

    def measure_forward(self, layer: int, rows: int) -> Line:
        """What else the layer computes in a pass, by the tokens attended, without waits for weights."""
        module = self._decoder_layer(layer)
        if module is None:
            return Line(0.0)
        points = []
        with self.memory.link.uncounted():
            for blocks in TIMED_BLOCKS:
                plan = attending_blocks(self.memory, layer, rows, blocks, self.block_tokens)
                seconds = [self._layer_s(module, plan, rows) for _ in range(1 + TRIES)]
                points.append((blocks * self.block_tokens, min(seconds[1:])))
        return fit_line(points)

    def _decoder_layer(self, layer: int) -> nn.Module | None:
        if self.runner.recurrent is not None:
            return None
        attention = self.regeneration.modules[layer]
        try:
            layers = decoder_layers(self.runner.model)
        except UnsupportedModel:
            return None
        return next((each for each in layers if any(part is attention for part in each.modules())), None)

    @torch.inference_mode()
    def _layer_s(self, module: nn.Module, plan: DecodePlan, rows: int) -> float:
        with _timing(module, self.memory.link) as seconds:
            try:
                self.run_pass([0] * rows, plan)
            except _Timed:
                return seconds[0]
        raise RuntimeError("a pass ended without having run the layer that is timed")


class _Timed(Exception):
    """The layer that is timed has run."""


@contextmanager
def _timing(module: nn.Module, link: Link) -> Iterator[list[float]]:
    """Ends a pass behind a module; the list gets the time that it computed, without waits."""
    begun: list[float] = []
    seconds: list[float] = []

    def now() -> float:
        if link.device.type == "cuda":
            torch.cuda.synchronize(link.device)
        return perf_counter() - link.exposed_s

    def before(*_: Any) -> None:
        begun.append(now())

    def after(*_: Any) -> None:
        seconds.append(now() - begun[-1])
        raise _Timed

    handles = [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
    try:
        yield seconds
    finally:
        for handle in handles:
            handle.remove()


class _Arrived:
    """In place of a reader: blocks that have come over the link, each a piece of its own."""

    views: Mapping[int, Any] = {}
    sparse = False

    def __init__(self, copies: Sequence[Sequence[LayerKV]]):
        self.copies = copies

    def read(self, layer: int) -> Iterator[tuple[Unit, dict[int, LayerKV]]]:
        copies = self.copies[layer]
        yield Unit(layer, slice(None), tuple(range(len(copies)))), dict(enumerate(copies))

    def close(self) -> None:
        return


def attending_blocks(memory: KVMemory, layer: int, rows: int, blocks: int, block_tokens: int) -> DecodePlan:
    """A pass of `rows` rows up to this layer, in which so many KV blocks are attended, each by one.

    Rows are at position 0, where no window hides anything.
    """
    layers = range(layer + 1)
    tails = KV(len(memory.shapes), 1, rows)
    for each in layers:
        tails.device[each] = memory.buffer(tails, each)
    kv = KV(len(memory.shapes), block_tokens)
    # before the timed layer one block will do
    copies = [[memory.buffer(kv, each)] * blocks for each in layers[:-1]]
    copies.append([memory.buffer(kv, layer) for _ in range(blocks)])
    for copy in (copy for each in copies for copy in each):
        for part in copy.both:
            part.fill_(0.02)
    attending = sorted(n % rows for n in range(blocks))
    entries = [Entry(kv, 0, block_tokens, slice(row, row + 1)) for row in attending]
    return DecodePlan(entries, [0] * rows, tails, 0, cast(KVReader, _Arrived(copies)))


def _load(memory: KVMemory, elements: int) -> Callable[[int], None]:
    """Copies tokens of so many numbers to the device, and waits for them."""
    device = memory.link.device
    link = Link(device, memory.link.gbps)  # another one, so that nothing of it is counted
    size = max(TIMED_TOKENS) * elements
    host = torch.zeros(size, dtype=memory.dtype, pin_memory=device.type == "cuda")
    there = torch.empty_like(host, device=device)

    def copy(tokens: int) -> None:
        size = tokens * elements
        link.wait_on_host(link.fetch([(there[:size], host[:size])], "measured"))

    return copy
