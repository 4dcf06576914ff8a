"""What a layer takes on this machine, measured, for CAPTURE's Algorithm 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from time import perf_counter
from typing import Any, cast

import torch
from torch import nn

from ttc.attention.pieces import Piece
from ttc.attention.plan import Plan, Run
from ttc.attention.reader import Fetch
from ttc.cost_model.capture import CaptureTimes, Line, fit_line
from ttc.decoder_layers import decoder_layers
from ttc.errors import UnsupportedModel
from ttc.memory.kv import LayerKV
from ttc.memory.link import Link
from ttc.memory.manager import Memory
from ttc.memory.storage import Places, Storage
from ttc.model.running.regeneration import MANY, Regeneration
from ttc.model.running.runner import ModelRunner
from ttc.residency.capture_reader import stored

TIMED_TOKENS = (64, 128, 256, 512)
"""Numbers of tokens whose copies over the link are timed."""
TURNS = 5
"""The median of so many times counts: the least is what a pass takes at best."""
MEASURING_S = 2.0
"""After so many seconds `FEWEST_TURNS` will do, as large models are slow."""
FEWEST_TURNS = 3


class MeasuredTimes:
    """The times of a layer, per token: lines through what this machine takes, measured when needed
    for as many rows and tokens as a pass has, in mini-batches that take turns in two buffers.

    block_tokens: tokens of a block, which is attended by itself. mini_batch_tokens: the most of a
    mini-batch.
    """

    def __init__(
        self,
        runner: ModelRunner,
        regeneration: Regeneration,
        memory: Memory,
        block_tokens: int,
        mini_batch_tokens: int,
    ):
        self.runner = runner
        self.regeneration = regeneration
        self.memory = memory
        self.block_tokens = block_tokens
        self.mini_batch_tokens = mini_batch_tokens
        # also while contexts are made without running the model (`uncomputed`)
        self.run_pass = runner.forward
        self._copying: CaptureTimes | None = None
        self._forward = dict[tuple[int, int], Line]()
        self._kv_gen = dict[int, Line]()

    def __call__(self, layer: int, rows: int, tokens: int) -> CaptureTimes:
        """The times of this layer in a pass of so many rows that attend `tokens` tokens.

        They are measured again where rows pass a power of two, or tokens up to two mini-batches.
        `forward_s` is 0 where it cannot be measured: with recurrent layers, and where decoder
        layers lie in no list.
        """
        if self._copying is None:
            self._copying = self._measure_copying(layer)
        blocks = self._timed_blocks(layer, tokens)
        if blocks not in self._kv_gen:
            self._kv_gen[blocks] = self.measure_generating(layer, blocks)
        like = max(0, rows - 1).bit_length(), blocks
        if like not in self._forward:
            self._forward[like] = self.measure_forward(layer, max(1, rows), blocks)
        return replace(
            self._copying, kv_gen=self._kv_gen[blocks], forward_s=self._forward[like](tokens)
        )

    def _measure_copying(self, layer: int) -> CaptureTimes:
        memory = self.memory
        shape = memory.shapes[layer]
        load_kv = timed_line(_load(memory, shape.elements), TIMED_TOKENS)
        load_act = timed_line(_load(memory, shape.as_inputs.elements), TIMED_TOKENS)
        weight_bytes = getattr(self.runner, "streamed_layer_bytes", 0)
        load_w = weight_bytes * load_kv.slope / memory.layer_bytes[layer]
        return CaptureTimes(kv_gen=Line(0.0), load_kv=load_kv, load_act=load_act, load_w=load_w)

    def _batch_blocks(self, layer: int) -> int:
        tokens = self.mini_batch_tokens
        if (budget := self.memory.device.budget_bytes) is not None:
            tokens = min(tokens, budget // 2 // (3 * self.memory.layer_bytes[layer]))
        return max(1, tokens // self.block_tokens)

    def _timed_blocks(self, layer: int, tokens: int) -> int:
        """The most blocks that are timed: two mini-batches, else the next power of two."""
        blocks = -(-tokens // self.block_tokens)
        power = 1 << max(2, (max(1, blocks) - 1).bit_length())
        return min(power, 2 * self._batch_blocks(layer))

    def measure_generating(self, layer: int, blocks: int) -> Line:
        """Generating KV of up to so many ACT blocks, with the copy to where attention reads it."""
        memory, shape = self.memory, self.memory.shapes[layer]
        batch = self._batch_blocks(layer) * self.block_tokens
        size = min(batch, blocks * self.block_tokens)
        device = memory.link.device
        inputs = torch.full(
            (2, size, shape.input_dim or 0), 0.02, dtype=memory.dtype, device=device
        )
        room = torch.empty(size * shape.elements, dtype=memory.dtype, device=device)
        positions = torch.arange(size, device=device) % MANY

        def generate(tokens: int) -> None:
            for turn, first in enumerate(range(0, tokens, batch)):
                count = min(batch, tokens - first)
                new = self.regeneration(layer, inputs[turn % 2, :count], positions[:count])
                stored(shape, room, new)
            _finish(device)

        lines = list[Line]()
        counts = [n * self.block_tokens for n in _counts(blocks)]
        with memory.link.uncounted():
            self.regeneration.while_there(layer, lambda: lines.append(timed_line(generate, counts)))
        return lines[0]

    def measure_forward(self, layer: int, rows: int, blocks: int) -> Line:
        """What else the layer computes in a pass, by the tokens attended, without waits for
        weights."""
        module = self._decoder_layer(layer)
        if module is None:
            return Line(0.0)
        batch = self._batch_blocks(layer)
        plans = {
            n * self.block_tokens: attending_blocks(
                self.memory, layer, rows, n, batch, self.block_tokens
            )
            for n in _counts(blocks)
        }
        with self.memory.link.uncounted():
            return median_line(
                lambda tokens: self._layer_s(module, plans[tokens], rows), list(plans)
            )

    def _decoder_layer(self, layer: int) -> nn.Module | None:
        if self.runner.recurrent is not None:
            return None
        attention = self.regeneration.modules[layer]
        try:
            layers = decoder_layers(self.runner.model)
        except UnsupportedModel:
            return None
        for whole in layers:
            parts = set(whole.modules())
            if attention in parts:  # one that attends twice needs the blocks of both
                alone = sum(module in parts for module in self.regeneration.modules) == 1
                return whole if alone else None
        return None

    @torch.inference_mode()
    def _layer_s(self, module: nn.Module, plan: Plan, rows: int) -> float:
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
        _finish(link.device)
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
    """In place of a reader: mini-batches that have come over the link, each block a piece of its
    own.

    copies: for each layer its blocks, of which `batch` are read at once.
    """

    views: Mapping[int, Any] = {}
    sparse = False

    def __init__(self, copies: Sequence[Sequence[LayerKV]], batch: int):
        self.copies = copies
        self.batch = batch

    def read(self, layer: int) -> Iterator[tuple[Fetch, dict[int, LayerKV]]]:
        copies = dict(enumerate(self.copies[layer]))
        for first in range(0, len(copies), self.batch):
            indices = tuple(range(first, min(first + self.batch, len(copies))))
            yield (
                Fetch(layer, slice(None), indices),
                {index: copies[index] for index in indices},
            )

    def close(self) -> None:
        return


def attending_blocks(
    memory: Memory, layer: int, rows: int, blocks: int, batch: int, block_tokens: int
) -> Plan:
    """A pass of `rows` rows up to this layer that attends so many KV blocks, each by one row;
    `batch` of them make a mini-batch. Rows are at position 0, where no window hides anything."""
    layers = range(layer + 1)
    own = [
        Storage.uncounted(memory.shapes, 1, memory.dtype, memory.link.device) for _ in range(rows)
    ]
    kv = Storage(len(memory.shapes), 0, block_tokens)
    # before the timed layer one block will do
    copies = [[memory.buffer(kv, each)] * blocks for each in layers[:-1]]
    buffers = [memory.buffer(kv, layer) for _ in range(min(blocks, 2 * batch))]
    copies.append([buffers[n % len(buffers)] for n in range(blocks)])
    for copy in (copy for each in copies for copy in {id(copy): copy for copy in each}.values()):
        for part in copy.both:
            part.fill_(0.02)
    attending = sorted(n % rows for n in range(blocks))
    pieces = [Piece(kv, 0, block_tokens, slice(row, row + 1)) for row in attending]
    runs = [Run(slice(n, n + 1), [Places(storage, 0, 1)]) for n, storage in enumerate(own)]
    plan = Plan(pieces, [0] * rows, runs)
    plan.stream = cast(Any, _Arrived(copies, batch))
    return plan


def _counts(blocks: int) -> list[int]:
    return sorted({max(1, blocks // 4), blocks // 2, blocks})


def median_line(measure: Callable[[int], float], counts: Sequence[int]) -> Line:
    """The line through the medians of `measure` at `counts`, taken in turns after one to warm
    up."""
    times: dict[int, list[float]] = {count: [] for count in counts}
    for count in counts:
        measure(count)
    start = perf_counter()
    for turn in range(TURNS):
        if turn >= FEWEST_TURNS and perf_counter() - start > MEASURING_S:
            break
        for count in counts:
            times[count].append(measure(count))
    return fit_line([(count, median(seconds)) for count, seconds in times.items()])


def timed_line(work: Callable[[int], None], counts: Sequence[int]) -> Line:
    def seconds(count: int) -> float:
        start = perf_counter()
        work(count)
        return perf_counter() - start

    return median_line(seconds, counts)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _load(memory: Memory, elements: int) -> Callable[[int], None]:
    device = memory.link.device
    link = Link(device, memory.link.gbps)  # another one, so that nothing of it is counted
    size = max(TIMED_TOKENS) * elements
    host = torch.zeros(size, dtype=memory.dtype, pin_memory=device.type == "cuda")
    there = torch.empty_like(host, device=device)

    def copy(tokens: int) -> None:
        size = tokens * elements
        link.wait_on_host(link.fetch([(there[:size], host[:size])], "measured"))

    return copy
