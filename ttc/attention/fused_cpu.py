"""A layer's attention as one call on the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ttc.attention.kernels import Layer, Partial
from ttc.attention.pieces import Piece
from ttc.attention.plan_arrays import PlanArrays
from ttc.compiling import library_or_warning
from ttc.threads import COUNTERS_APART, function_address, run, threads_for

SOURCE = Path(__file__).with_name("cpu_kernel.cpp")

GRAIN = 100_000
"""Multiplications worth another thread: about 10 us, a few times what it takes to wake one."""

TILES_TOKENS = 128
"""Runs of so many new tokens go by PyTorch's operations where these have tiles: a prompt of 4,096
tokens then took 0.8 of the kernel's time, and one of 1,024 as long."""


class Kernel(NamedTuple):
    """The compiled kernel for one type of KV."""

    function: int
    """Its address."""
    numbers: int
    """How many int64 numbers it takes."""
    scratch_bytes: Callable[[int, int, int], int]
    """A thread's memory for so many queries, their width, and that of values."""


@cache
def kernel(dtype: torch.dtype, packed: str | None = None) -> Kernel | None:
    """Compiled at first use; None for other types, and, with a warning, without a C++ compiler that
    takes its source. packed: the kind of a codec that entries are packed by."""
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return None
    options = ["-DPACKED"] if packed else []
    loaded = library_or_warning("attention is several times slower", SOURCE, *options)
    if loaded is None:
        return None
    kinds = [str(dtype).removeprefix("torch."), *filter(None, [packed])]
    loaded.scratch_bytes.argtypes = [ctypes.c_int64] * 3
    loaded.scratch_bytes.restype = ctypes.c_int64
    return Kernel(
        function_address(loaded, "_".join(["attend", *kinds])),
        loaded.call_numbers(),
        loaded.scratch_bytes,
    )


class CompiledAttention:
    """The kernel for dtype, ready for one plan (see `FusedAttention`). pairs: rows times the keys
    that each attends. own_rows: rows with own keys."""

    def __init__(self, arrays: PlanArrays, dtype: torch.dtype, kernel: Kernel):
        self.arrays = arrays
        self.dtype = dtype
        self.kernel = kernel
        self.own_firsts = arrays.own_firsts
        self.parameters = np.zeros(kernel.numbers, np.int64)
        self.address = self.parameters.ctypes.data
        self.counters = self.counters_for(torch.get_num_threads())
        self.layer_addresses = [layer.ctypes.data for layer in arrays.addresses]
        self.buffers: dict[tuple[int, ...], tuple[Any, ...]] = {}
        tasks = arrays.tasks
        rows = tasks[:, 1] - tasks[:, 0]
        keys = np.concatenate([[0], arrays.pieces[:, 2].cumsum()])
        has_own = tasks[:, 5] >= 0
        own_row = tasks[has_own, 5]
        own_keys = tasks[has_own, 1] - own_row + (arrays.positions - arrays.own_starts)[own_row]
        self.own_rows = int(rows[has_own].sum())
        self.pairs = int(
            (rows * (keys[tasks[:, 3]] - keys[tasks[:, 2]])).sum()
            + (rows[has_own] * own_keys).sum()
        )

    def counters_for(self, threads: int) -> np.ndarray:
        """What a call counts in, which is to be 0 before it."""
        return np.zeros((1 + threads, COUNTERS_APART), np.int64)

    def advance(self) -> None:
        self.arrays.positions += 1
        self.pairs += self.own_rows

    def takes(self, layer: Layer, q: Tensor) -> bool:
        return q.dtype == self.dtype and layer.recent is None

    def attend(
        self,
        layer: Layer,
        q: Tensor,
        own_keys: Tensor,
        own_values: Tensor,
        new: tuple[Tensor, Tensor] | None,
    ) -> Partial:
        kv_heads, groups, rows, dim = q.shape
        value_dim = own_values.shape[-1]
        q = q if q.stride(-1) == 1 else q.contiguous()
        out = torch.empty(rows, kv_heads * groups * value_dim)
        lse = torch.empty(rows, kv_heads, groups)
        useful = 1 + self.pairs * kv_heads * groups * (dim + value_dim) // GRAIN
        threads = threads_for(min(useful, len(self.arrays.tasks) * kv_heads))
        if len(self.counters) <= threads:
            self.counters = self.counters_for(threads)
        self.counters[:] = 0
        self.describe(
            self.parameters, self.counters, layer, q, own_keys, own_values, new, out, lse, threads
        )
        run(self.kernel.function, self.address, threads)
        out = out.view(rows, kv_heads, groups, value_dim)
        return out.permute(1, 2, 0, 3), lse.permute(1, 2, 0)

    def describe(  # noqa: PLR0913 - a kernel's arrays
        self,
        P: np.ndarray,
        counters: np.ndarray,
        layer: Layer,
        q: Tensor,
        own_keys: Tensor,
        own_values: Tensor,
        new: tuple[Tensor, Tensor] | None,
        out: Tensor,
        lse: Tensor,
        threads: int,
    ) -> None:
        """Write the parameters of a call by at most so many threads to P. out: (rows, heads x
        value_dim), float32 or bfloat16."""
        kv_heads, groups, _, dim = q.shape
        value_dim = own_values.shape[-1]
        buffers = self.buffers.get((threads, kv_heads, groups, dim, value_dim))
        if buffers is None:
            buffers = self._allocate(threads, kv_heads, groups, dim, value_dim)
        new_at = (0,) * 6 if new is None else (*_strided(new[0]), *_strided(new[1]))
        index = layer.index
        stored = index < len(self.layer_addresses)
        P[:-2] = (
            counters.ctypes.data, COUNTERS_APART, *buffers[0],
            self.layer_addresses[index] if stored else 0,
            q.data_ptr(), *q.stride()[:3],
            out.data_ptr(), out.stride(0) * out.itemsize, out.dtype == torch.bfloat16,
            lse.data_ptr(),
            own_keys.data_ptr(), *own_keys.stride()[:3],
            own_values.data_ptr(), *own_values.stride()[:3],
            *self.owners_of(index), *new_at, layer.window or 0, layer.chunk or 0,
        )  # fmt: skip
        floats = P.view(np.float32)
        floats[-4] = layer.scale
        floats[-2] = layer.softcap or 0.0

    def owners_of(self, layer: int) -> tuple[int, int]:
        """Where the storages of rows with own keys are in a layer, and the first own key in each;
        zeros where all are in one buffer."""
        own = self.arrays.own_addresses
        return (0, 0) if own is None else (own[layer].ctypes.data, self.own_firsts.ctypes.data)

    def store(self, layer: int, key: Tensor, value: Tensor) -> bool:
        return False  # a copy for each run costs little here

    def _allocate(
        self, threads: int, kv_heads: int, groups: int, dim: int, value_dim: int
    ) -> tuple[Any, ...]:
        """The parameters that a layer's shape decides, with memory for results."""
        arrays, heads = self.arrays, kv_heads * groups
        queries = arrays.max_rows * groups
        stride = self.kernel.scratch_bytes(queries, dim, value_dim)
        scratch = np.zeros(threads * stride + 64, np.uint8)
        sums = np.empty((arrays.slots, heads, value_dim + 2), np.float32)
        part_out = sums.ctypes.data
        fixed = (
            scratch.ctypes.data + -scratch.ctypes.data % 64, stride, threads,
            arrays.tasks.ctypes.data, len(arrays.tasks), arrays.pieces.ctypes.data,
            arrays.starts.ctypes.data, arrays.positions.ctypes.data,
            arrays.own_starts.ctypes.data, arrays.rows,
            arrays.part_first.ctypes.data, arrays.parts.ctypes.data if arrays.slots else 0,
            part_out, part_out + 4 * arrays.slots * heads * value_dim,
            kv_heads, groups, dim, value_dim, queries,
        )  # fmt: skip
        self.buffers[threads, kv_heads, groups, dim, value_dim] = fixed, scratch, sums
        return fixed, scratch, sums


def fused_attention(
    entries: Sequence[Piece],
    runs: Sequence[tuple[int, int]],
    positions: Sequence[int],
    q: Tensor,
    filled: Sequence[int] | None = None,
    owners: tuple[Sequence[Any], Sequence[int]] | None = None,
) -> CompiledAttention | None:
    codec = next((entry.kv.codec for entry in entries), None)
    compiled = kernel(q.dtype, None if codec is None else codec.kind)
    long_runs = len(positions) >= TILES_TOKENS * len(runs)
    if compiled is None or (long_runs and q.dtype == torch.bfloat16 and has_tiles()):
        return None
    return CompiledAttention(
        PlanArrays(entries, runs, positions, q.shape[1], filled, owners=owners), q.dtype, compiled
    )


def has_tiles() -> bool:
    """Whether the processor has Intel's AMX for bfloat16."""
    return bool(getattr(torch.cpu, "_is_amx_tile_supported", bool)())


def _strided(tensor: Tensor) -> tuple[int, int, int]:
    return tensor.data_ptr(), tensor.stride(0), tensor.stride(1)
