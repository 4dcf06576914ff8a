"""A decoder of Llama's kind as a list of operations that compiled code runs (see `cpu_layers`)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ttc.attention.fused_cpu import compiled
from ttc.model.llama_structure import Decoder, DecoderLayer
from ttc.threads import team

GRAIN = 100_000
"""Multiplications worth another thread."""
PANEL = 16
"""Columns of a unit of a linear layer, twice as many where rows are many."""
LINE = 64
"""Bytes of a cache line."""


@cache
def layers_kernel(dtype: torch.dtype) -> int | None:
    """The address of what runs a program of such numbers; None without numba."""
    return compiled("ttc.model.cpu_layers", dtype)


@cache
def _barrier() -> int:
    """The address of the function in which a team's threads wait for each other, 0 where there is none."""
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_barrier, ctypes.c_void_p).value or 0
    except (TypeError, AttributeError):
        return 0


class Program:
    """The operations of `decoder` for passes of at most `capacity` rows, with the memory that they work in.

    The first layers of a model end with their states, a whole one with logits.
    The list is run as a whole, or in parts: part 0 is what comes before the first layer's attention, part n what comes
    after that of layer n - 1, up to the next. x: (rows, hidden), the states between layers. cos, sin: (rows, head_dim).
    q, key, value, found, lse: what attention takes and gives where the list is run as a whole.
    """

    def __init__(self, decoder: Decoder, capacity: int, function: int):
        from ttc.model import cpu_layers

        self.at: ModuleType = cpu_layers
        self.capacity, self.function = capacity, function
        self.dtype = decoder.embedding.weight.dtype
        self.single = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)
        layer = decoder.layers[0]
        self.x, self.normed = self._apart(layer.q.in_features), self._apart(layer.q.in_features)
        self.inner, self.attended = self._apart(layer.down.in_features), self._apart(layer.o.in_features)
        self.q = self._memory(layer.q.out_features)
        self.key, self.value = self._memory(layer.k.out_features), self._memory(layer.v.out_features)
        self.found = torch.empty(capacity, layer.o.in_features)
        self.lse = torch.empty(capacity, layer.q.out_features // layer.head_dim)
        self.cos, self.sin = self._memory(layer.head_dim), self._memory(layer.head_dim)
        self._rows: list[dict[int, int]] = []
        self.attends = list[int]()  # the places of attention in the list
        for layer in decoder.layers:
            self._before_attention(layer)
            self.attends.append(len(self._rows))
            self._rows.append({cpu_layers.KIND: cpu_layers.ATTEND})
            self._after_attention(layer)
        if decoder.head is not None:
            self.normalise(decoder.norm)
            self._project(decoder.head, self.normed, self.normed)
        self.parts = [*zip([0, *(a + 1 for a in self.attends)], [*self.attends, len(self._rows)], strict=True)]
        self.table = np.array([[row.get(field, 0) for field in range(cpu_layers.FIELDS)] for row in self._rows])
        columns, panels = self.table[:, cpu_layers.COLUMNS], self.table[:, cpu_layers.PANEL]
        self.products = [
            int((self.table[a:b, cpu_layers.WIDTH] * columns[a:b]).sum()) // self.dtype.itemsize for a, b in self.parts
        ]
        stride = cpu_layers.scratch_bytes(max(2 * PANEL, int(panels.max())))
        self.scratch = np.zeros(max(1, torch.get_num_threads()) * stride + 64, np.uint8)
        self.threads = len(self.scratch) // stride
        self.head = np.zeros(cpu_layers.HEAD, np.int64)
        self.head[cpu_layers.OPERATIONS] = self.table.ctypes.data
        self.head[cpu_layers.SCRATCH] = self.scratch.ctypes.data + -self.scratch.ctypes.data % 64
        self.head[cpu_layers.SCRATCH_STRIDE], self.head[cpu_layers.ITEMSIZE] = stride, self.dtype.itemsize
        self.rows = 0

    # ---------------------------------------------------------------- running

    def begin(self, rows: int) -> None:
        """Begin a pass over so many rows."""
        at, table = self.at, self.table
        self.rows = rows
        table[:, at.NEXT] = 0
        table[:, at.ROWS] = rows
        table[table[:, at.KIND] == at.PROJECT, at.PANEL] = 2 * PANEL if rows >= at.MANY_ROWS else PANEL

    def write_logits(self, index: Tensor | None, logits: Tensor) -> None:
        """Let the rows in `index` (None for all) of the pass that begins get logits (kept rows, vocab)."""
        at, table = self.at, self.table
        table[-2:, at.ROWS] = len(logits)
        table[-2, at.INDEX] = 0 if index is None else index.data_ptr()
        table[-1, at.OUTPUT], table[-1, at.OUTPUT_ROW] = logits.data_ptr(), logits.stride(0) * self.dtype.itemsize

    def keep_new(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Let a layer write its keys and values (rows, kv_heads x dim) to these tensors."""
        last = self.attends[layer] - 1
        self.table[last - 1, self.at.OUTPUT], self.table[last, self.at.OUTPUT] = key.data_ptr(), value.data_ptr()

    def take(self, layer: int, attended: Tensor) -> None:
        """Give a layer what its attention found: (rows, heads x dim), float32, contiguous."""
        self.table[self.attends[layer] + 1, self.at.INPUT] = attended.data_ptr()

    def attend_by(self, kernel: int, parameters: np.ndarray) -> None:
        """Let the list as a whole attend by this kernel, with these parameters for each layer."""
        at, attends = self.at, np.array(self.attends)
        self.table[attends, at.WEIGHT] = kernel
        self.table[attends, at.INPUT] = parameters.ctypes.data + parameters.strides[0] * np.arange(len(parameters))
        self.table[attends - 2, at.OUTPUT], self.table[attends - 1, at.OUTPUT] = (
            self.key.data_ptr(),
            self.value.data_ptr(),
        )
        self.table[attends + 1, at.INPUT] = self.found.data_ptr()

    def run(self, part: int | None = None) -> None:
        """Run a part, or all, attention included."""
        at, head = self.at, self.head
        head[at.FIRST], head[at.END] = self._span(part)
        products = sum(self.products) if part is None else self.products[part]
        threads = min(1 + products * self.rows // GRAIN, torch.get_num_threads(), self.threads)
        head[at.THREAD], head[at.BARRIER] = 0, _barrier() if threads > 1 else 0
        if head[at.BARRIER]:
            team()(self.function, head.ctypes.data, threads)
        else:
            self.single(head.ctypes.data)

    def share(self, kinds: Sequence[int], part: int | None = None) -> float:
        """The share of the last run of a part, or of all, that operations of some kinds took."""
        at, operations = self.at, self.table[slice(*self._span(part))]
        spans = np.diff(operations[:, at.ENDED], prepend=self.head[at.STARTED])
        return float(spans[np.isin(operations[:, at.KIND], kinds)].sum() / max(1, spans.sum()))

    def _span(self, part: int | None) -> tuple[int, int]:
        return (0, len(self.table)) if part is None else self.parts[part]

    # ---------------------------------------------------------------- the list

    def _memory(self, columns: int) -> Tensor:
        return torch.empty(self.capacity, columns, dtype=self.dtype)

    def _apart(self, columns: int) -> Tensor:
        """The same with rows a cache line further apart: rows whose distance is a power of two would take each other's
        places in the nearest cache."""
        return self._memory(columns + LINE // self.dtype.itemsize)[:, :columns]

    def _row_bytes(self, tensor: Tensor) -> int:
        return tensor.stride(0) * self.dtype.itemsize

    def _add(self, kind: int, source: Tensor | None, target: Tensor, fields: dict[int, int]) -> None:
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

    def _linear(self, linear: nn.Linear) -> dict[int, int]:
        at, weight, bias = self.at, linear.weight, linear.bias
        return {
            at.WEIGHT: weight.data_ptr(),
            at.BIAS: 0 if bias is None else bias.data_ptr(),
            at.WIDTH: self._row_bytes(weight),
            at.COLUMNS: linear.out_features,
            at.PANEL: PANEL,
        }

    def _project(self, linear: nn.Linear, source: Tensor, target: Tensor, add: bool = False) -> None:
        self._add(self.at.PROJECT, source, target, self._linear(linear) | {self.at.RESIDUAL: int(add)})

    def _heads(self, linear: nn.Linear, target: Tensor, dim: int, norm: Any, turned: bool, wait: bool) -> None:
        at = self.at
        fields = self._linear(linear) | {at.PANEL: dim, at.NO_WAIT: int(not wait)}
        if norm is not None:
            fields |= {at.NORM: norm.weight.data_ptr(), at.EPSILON: _epsilon(norm)}
        if turned:
            fields |= {at.COS: self.cos.data_ptr(), at.SIN: self.sin.data_ptr()}
        self._add(at.PROJECT_HEADS, self.normed, target, fields)

    def _before_attention(self, layer: DecoderLayer) -> None:
        self.normalise(layer.input_norm)
        key, value = (torch.empty(0, linear.out_features, dtype=self.dtype) for linear in (layer.k, layer.v))
        self._heads(layer.q, self.q, layer.head_dim, layer.q_norm, turned=True, wait=False)
        self._heads(layer.k, key, layer.head_dim, layer.k_norm, turned=True, wait=False)
        self._heads(layer.v, value, layer.head_dim, None, turned=False, wait=True)

    def _after_attention(self, layer: DecoderLayer) -> None:
        at = self.at
        width = self.attended.shape[1] * self.dtype.itemsize
        found = {at.INPUT_ROW: width * 4 // self.dtype.itemsize, at.WIDTH: width}
        self._add(at.NARROW, None, self.attended, found)
        self._project(layer.o, self.attended, self.x, add=True)
        self.normalise(layer.mlp_norm)
        up = self._linear(layer.up)
        both = {at.WEIGHT_2: up[at.WEIGHT], at.BIAS_2: up[at.BIAS], at.PANEL: PANEL}
        self._add(at.GATE, self.normed, self.inner, self._linear(layer.gate) | both)
        self._project(layer.down, self.inner, self.x, add=True)


def _epsilon(norm: Any) -> int:
    """The bits of a norm's epsilon."""
    return int(np.float32(norm.variance_epsilon).view(np.int32))
