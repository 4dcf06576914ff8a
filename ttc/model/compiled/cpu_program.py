"""A decoder of Llama's kind as a list of operations, run by compiled code (`cpu_layers.cpp`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ttc.model.compiled import layers_kernel
from ttc.model.compiled.llama_structure import Decoder, DecoderLayer, Linear
from ttc.model.stored import StoredMatrix
from ttc.threads import COUNTERS_APART, run, threads_for

GRAIN = 100_000
"""Multiplications worth another thread."""
PANEL = 16
"""Columns of a unit of a linear layer, twice as many where rows are many."""
LINE = 64
"""Bytes of a cache line."""


class Program:
    """The operations of `decoder` for at most `capacity` rows, with the memory that they work in.

    The first layers of a model end with their states, a whole one with logits.
    It runs as a whole, or in parts: part 0 is what comes before the first layer's attention, part n
    what comes after that of layer n - 1, up to the next. x: (rows, hidden), the states between
    layers. cos, sin: (rows, head_dim). q, key, value, attended, lse: what attention takes and
    gives where the program runs as a whole.
    """

    def __init__(self, decoder: Decoder, capacity: int):
        self.at = layers_kernel.names()
        self.capacity = capacity
        self.dtype = cast(Tensor, decoder.embedding.weight).dtype
        self.input_dtype = layers_kernel.input_dtype(self.dtype)
        self.function = layers_kernel.address(self.dtype)
        self.rows = 0
        self.attending: np.ndarray | None = None  # what attention is told, if it is in the list
        layer = decoder.layers[0]
        self.x = self._apart(layer.q.in_features, self.dtype)
        self.normed = self._apart(layer.q.in_features, self.input_dtype)
        self.inner = self._apart(layer.down.in_features, self.input_dtype)
        self.attended = self._apart(layer.o.in_features, self.input_dtype)
        self.q = self._memory(layer.q.out_features)
        self.key = self._memory(layer.k.out_features)
        self.value = self._memory(layer.v.out_features)
        self.lse = torch.empty(capacity, layer.q.out_features // layer.head_dim)
        self.cos = self._memory(layer.head_dim)
        self.sin = self._memory(layer.head_dim)
        self._rows: list[dict[int, int]] = []
        self._rounded: dict[int, Tensor] = {}  # by the address of the rows that are rounded
        self._turned: dict[int, Tensor] = {}  # by the address of the rows that are turned
        attends: list[int] = []
        for layer in decoder.layers:
            self._before_attention(layer)
            attends.append(len(self._rows))
            self._rows.append({self.at.KIND: self.at.ATTEND})
            self._after_attention(layer)
        ending = len(self._rows)
        if decoder.head is not None:
            self.normalise(decoder.norm)
            self._prepare(self.normed, decoder.head)
            self._project(decoder.head, self.normed, self.normed)
        self.ending = slice(ending, None)  # the operations that end in logits
        self.attends = np.array(attends)  # the places of attention in the list
        fields = range(self.at.FIELDS)
        self.table = np.array([[row.get(field, 0) for field in fields] for row in self._rows])
        starts = [0, *(place + 1 for place in attends)]
        self.parts = list(zip(starts, [*attends, len(self._rows)], strict=True))
        sizes = self.table[:, self.at.WIDTH] * self.table[:, self.at.COLUMNS]
        self.products = [int(sizes[a:b].sum()) // self.dtype.itemsize for a, b in self.parts]
        self._make_head()

    def _make_head(self) -> None:
        at = self.at
        widest = max(2 * PANEL, int(self.table[:, at.PANEL].max()))
        stride = layers_kernel.scratch_bytes(widest)
        self.threads = max(1, torch.get_num_threads())
        self.scratch = np.zeros(self.threads * stride + LINE, np.uint8)
        address = self.scratch.ctypes.data
        apart = len(self.table) + COUNTERS_APART
        self.counters = np.zeros((self.threads, apart), np.int64)
        self.ended = np.zeros(len(self.table), np.int64)
        self.head = np.zeros(at.HEAD, np.int64)
        self.head[at.OPERATIONS] = self.table.ctypes.data
        self.head[at.SCRATCH] = address + -address % LINE
        self.head[at.SCRATCH_STRIDE] = stride
        self.head[at.COUNTERS] = self.counters.ctypes.data
        self.head[at.COUNTERS_APART] = apart
        self.head[at.ENDED] = self.ended.ctypes.data

    # ---------------------------------------------------------------- running

    def begin(self, rows: int) -> None:
        at = self.at
        table = self.table
        self.counters[:] = 0
        if rows == self.rows:
            return
        self.rows = rows
        self.attending = None
        table[:, at.ROWS] = rows
        panel = 2 * PANEL if rows >= at.MANY_ROWS else PANEL
        table[table[:, at.KIND] == at.PROJECT, at.PANEL] = panel

    def write_logits(self, index: Tensor | None, logits: Tensor) -> None:
        """Let the rows in `index` (None for all) of the pass that begins get logits (kept,
        vocab)."""
        at = self.at
        table = self.table[self.ending]
        table[:, at.ROWS] = len(logits)
        table[0, at.INDEX] = 0 if index is None else index.data_ptr()
        table[-1, at.OUTPUT] = logits.data_ptr()
        table[-1, at.OUTPUT_ROW] = self._row_bytes(logits)

    def keep_new(self, layer: int, key: Tensor, value: Tensor) -> None:
        self.attending = None
        place = self.attends[layer]
        self.table[place - 2, self.at.OUTPUT] = key.data_ptr()
        self.table[place - 1, self.at.OUTPUT] = value.data_ptr()

    def take(self, layer: int, attended: Tensor) -> None:
        """Give a layer the result of its attention: (rows, heads x dim), float32, contiguous."""
        narrow = self.table[self.attends[layer] + 1]
        narrow[self.at.ROWS] = self.rows
        narrow[self.at.INPUT] = attended.data_ptr()

    def attend_by(self, kernel: int, parameters: np.ndarray) -> None:
        """Let the kernel attend at its place in each layer, told by a row of `parameters`. It
        writes to `attended` itself."""
        if self.attending is parameters:
            return
        self.attending = parameters
        at = self.at
        places = self.attends
        offsets = parameters.strides[0] * np.arange(len(parameters))
        self.table[places, at.WEIGHT] = kernel
        self.table[places, at.INPUT] = parameters.ctypes.data + offsets
        self.table[places - 2, at.OUTPUT] = self.key.data_ptr()
        self.table[places - 1, at.OUTPUT] = self.value.data_ptr()
        self.table[places + 1, at.ROWS] = 0  # there is nothing left to narrow

    def run(self, part: int | None = None) -> None:
        at = self.at
        head = self.head
        head[at.FIRST], head[at.END] = self._span(part)
        products = sum(self.products) if part is None else self.products[part]
        useful = 1 + products * self.rows // GRAIN
        threads = min(threads_for(useful), self.threads)
        head[at.THREAD], head[at.DONE], head[at.THREADS] = 0, 0, threads
        run(self.function, head.ctypes.data, threads)

    def share(self, kinds: Sequence[int], part: int | None = None) -> float:
        span = slice(*self._span(part))
        operations = self.table[span]
        started = self.head[self.at.STARTED]
        spans = np.diff(self.ended[span], prepend=started)
        counted = np.isin(operations[:, self.at.KIND], kinds)
        return float(spans[counted].sum() / max(1, spans.sum()))

    def _span(self, part: int | None) -> tuple[int, int]:
        return (0, len(self.table)) if part is None else self.parts[part]

    # ---------------------------------------------------------------- the list

    def _memory(self, columns: int) -> Tensor:
        return torch.empty(self.capacity, columns, dtype=self.dtype)

    def _apart(self, columns: int, dtype: torch.dtype) -> Tensor:
        """Memory with rows a cache line further apart: rows whose distance is a power of two
        would take each other's places in the nearest cache."""
        apart = columns + LINE // dtype.itemsize
        return torch.empty(self.capacity, apart, dtype=dtype)[:, :columns]

    def _row_bytes(self, tensor: Tensor) -> int:
        return tensor.stride(0) * tensor.itemsize

    def _add(
        self, kind: int, source: Tensor | None, target: Tensor, fields: dict[int, int]
    ) -> None:
        at = self.at
        row = {at.KIND: kind, at.OUTPUT: target.data_ptr(), at.OUTPUT_ROW: self._row_bytes(target)}
        if source is not None:
            row |= {at.INPUT: source.data_ptr(), at.INPUT_ROW: self._row_bytes(source)}
        self._rows.append(row | fields)

    def normalise(self, norm: Any) -> None:
        at = self.at
        fields = {
            at.WEIGHT: norm.weight.data_ptr(),
            at.WIDTH: self.x.shape[1] * self.dtype.itemsize,
            at.EPSILON: _epsilon(norm),
        }
        self._add(at.NORMALISE, self.x, self.normed, fields)

    def _prepare(self, source: Tensor, *linears: Linear) -> None:
        """Let `source` be rounded and turned for tiles, where some of its products take it so."""
        at = self.at
        roundings = [x for linear in linears if (x := getattr(linear, "rounding", None))]
        if roundings:
            rounding, width = roundings[0], source.shape[1]
            if source.data_ptr() not in self._rounded:
                row = self._apart(rounding.row_bytes(width), torch.uint8)
                self._rounded[source.data_ptr()] = row
            target = self._rounded[source.data_ptr()]
            fields = {
                at.WIDTH: width * self.dtype.itemsize,
                at.PRODUCTS: rounding.rounds(self.input_dtype),
            }
            self._add(at.ROUND, source, target, fields)
        exact = len(roundings) < len(linears)
        if exact and at.TILE_ROWS and self.dtype == torch.bfloat16:
            width = source.shape[1]
            turned = self._turned.setdefault(source.data_ptr(), self._memory(width))
            fields = {at.WIDTH: width * self.dtype.itemsize, at.TURNED: turned.data_ptr()}
            self._add(at.TURN, source, turned, fields)

    def _source(self, linear: Linear, source: Tensor) -> Tensor:
        rounds = getattr(linear, "rounding", None) is not None
        return self._rounded[source.data_ptr()] if rounds else source

    def _linear(self, linear: Linear, source: Tensor) -> dict[int, int]:
        at = self.at
        fields = {
            at.BIAS: 0 if linear.bias is None else linear.bias.data_ptr(),
            at.COLUMNS: linear.out_features,
            at.PANEL: PANEL,
        }
        if source.data_ptr() in self._turned:
            fields[at.TURNED] = self._turned[source.data_ptr()].data_ptr()
        fields[at.WIDTH] = linear.in_features * self.dtype.itemsize
        if isinstance(linear, StoredMatrix):
            return fields | linear.operand(at, self.input_dtype)
        return fields | {at.WEIGHT: linear.weight.data_ptr()}

    def _project(self, linear: Linear, source: Tensor, target: Tensor, add: bool = False) -> None:
        fields = self._linear(linear, source) | {self.at.RESIDUAL: int(add)}
        self._add(self.at.PROJECT, self._source(linear, source), target, fields)

    def _heads(
        self, linear: Linear, target: Tensor, dim: int, norm: Any, more: dict[int, int]
    ) -> None:
        at = self.at
        fields = self._linear(linear, self.normed) | {at.PANEL: dim} | more
        if norm is not None:
            fields |= {at.NORM: norm.weight.data_ptr(), at.EPSILON: _epsilon(norm)}
        self._add(at.PROJECT_HEADS, self._source(linear, self.normed), target, fields)

    def _before_attention(self, layer: DecoderLayer) -> None:
        at = self.at
        dim = layer.head_dim
        turned = {at.COS: self.cos.data_ptr(), at.SIN: self.sin.data_ptr(), at.NO_WAIT: 1}
        key, value = (x[:0] for x in (self.key, self.value))  # a pass says where they go
        self.normalise(layer.input_norm)
        self._prepare(self.normed, layer.q, layer.k, layer.v)
        self._heads(layer.q, self.q, dim, layer.q_norm, turned)
        self._heads(layer.k, key, dim, layer.k_norm, turned)
        self._heads(layer.v, value, dim, None, {})

    def _after_attention(self, layer: DecoderLayer) -> None:
        at = self.at
        columns = self.attended.shape[1]
        float32_row = columns * torch.float32.itemsize
        narrow = {at.INPUT_ROW: float32_row, at.WIDTH: columns * self.dtype.itemsize}
        self._add(at.NARROW, None, self.attended, narrow)
        self._prepare(self.attended, layer.o)
        self._project(layer.o, self.attended, self.x, add=True)
        self.normalise(layer.mlp_norm)
        self._prepare(self.normed, layer.gate, layer.up)
        up = self._linear(layer.up, self.normed)
        gate = self._linear(layer.gate, self.normed)
        gate |= {at.WEIGHT_2: up[at.WEIGHT], at.BIAS_2: up[at.BIAS]}
        if isinstance(layer.up, StoredMatrix):
            gate |= {at.STORED_2: up[at.STORED], at.STORED_ROW_2: up[at.STORED_ROW]}
        self._add(at.GATE, self._source(layer.gate, self.normed), self.inner, gate)
        self._prepare(self.inner, layer.down)
        self._project(layer.down, self.inner, self.x, add=True)


def _epsilon(norm: Any) -> int:
    return int(np.float32(norm.variance_epsilon).view(np.int32))
