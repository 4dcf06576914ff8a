"""A layer's attention as one call on a GPU: what the Triton kernels need to know. Not run on a GPU
yet."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ttc.attention.entry import Entry
from ttc.attention.kernels import Layer, Partial
from ttc.attention.plan_arrays import PlanArrays, addresses_of
from ttc.memory.kv import KV
from ttc.memory.upload import upload

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

FAR = 2**30
"""The window and the chunk, in tokens, of a layer that has none."""

SMALL_TILE = 16
"""Queries that a program of a small task takes: the least that a matrix product takes. The tail of
one row, and what few rows share, are such tasks."""

WARPS = 4

MAX_REGISTERS = 255
"""For a thread. Two programs then share a multiprocessor's 65,536 registers. Without this limit the
compiler prefers fewer registers, and spills some."""


@dataclass(frozen=True)
class Tiles:
    """What a program holds at a time.

    queries: of a large task. keys: of a block. stages: blocks at a time; while one is computed, the
    next is on its way.
    """

    queries: int
    keys: int
    stages: int


TILES = {
    2: {64: Tiles(64, 32, 2), 128: Tiles(32, 64, 2), 256: Tiles(32, 16, 2)},
    4: {64: Tiles(16, 32, 1), 128: Tiles(16, 16, 1), 256: Tiles(16, 16, 1)},
}
"""By the bytes of a number, and by how many numbers a head has at most. With them nothing spills
and two programs share a multiprocessor of any GPU from compute capability 8.0 on (`python -m
experiments.bench gpu_resources`). Larger heads take the last, and fit as they can."""


def tiles(dim: int, value_dim: int, dtype: torch.dtype) -> Tiles:
    """The tiles for heads of `dim` numbers, and `value_dim` numbers in their values."""
    by_size = TILES[dtype.itemsize]
    width = max(_width(dim), _width(value_dim))
    return next((chosen for size, chosen in by_size.items() if width <= size), by_size[256])


@cache
def kernels(device: torch.device) -> Any | None:
    """The module of the kernels, None where they cannot run. They are compiled at first use, which
    takes seconds, and kept on disk."""
    try:
        gpu_kernel = import_module("ttc.attention.gpu_kernel")
        if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
            raise RuntimeError("the kernels need compute capability 8.0 or above")
        if device.type == "cuda":  # a first, empty call: Triton needs a C compiler to make any
            nothing = torch.zeros(2, dtype=torch.int64, device=device)
            out = torch.zeros(16, device=device)
            with torch.cuda.device(device):
                gpu_kernel.merge_rows[1, 1](
                    out, out, nothing, nothing, out, out, 16, VALUE_WIDTH=16
                )
    except Exception as error:
        reason = " ".join(str(error).split())
        warnings.warn(
            f"Triton cannot be used on {device} ({reason}), so attention takes many small "
            "operations for each layer; where the GPU is new enough, pip install triton, and have "
            "a C compiler",
            stacklevel=2,
        )
        return None
    return gpu_kernel


class TritonAttention:
    """The kernels, ready for one plan (see `FusedAttention`). new: where the KV of new tokens
    stays."""

    def __init__(
        self,
        arrays: PlanArrays,
        dtype: torch.dtype,
        kernels: Any,
        new: Sequence[tuple[int, int, KV, int]] = (),
    ):
        self.arrays = arrays
        self.dtype = dtype
        self.kernels = kernels
        self.stores = np.array(
            [(row, count, token) for row, count, _, token in new], np.int64
        ).reshape(-1, 3)
        self.store_places, self.written = addresses_of([kv for _, _, kv, _ in new])
        step = 16 // torch.empty(0, dtype=dtype).element_size()
        aligned = not (arrays.addresses % np.array([16, 16, step, step, step, step])).any()
        self.align = step if aligned else 1
        sizes = (arrays.tasks[:, 1] - arrays.tasks[:, 0]) * arrays.groups
        self.small = int((sizes <= SMALL_TILE).sum())
        self.tasks = arrays.tasks[np.argsort(sizes > SMALL_TILE, kind="stable")]
        self.on_device: list[Tensor] = []
        self.parts: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

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
        arrays = self.arrays
        kv_heads, groups, rows, dim = q.shape
        value_dim = own_values.shape[-1]
        heads, device = kv_heads * groups, q.device
        if not self.on_device:
            self._upload(device)
        tasks, pieces, starts, addresses, positions, *tails, part_first, parts, _, _ = (
            self.on_device
        )
        q = q if q.stride(-1) == 1 else q.contiguous()
        new_key, new_value = new or (own_keys[0], own_values[0])
        new_key, new_value = (
            x if x.stride(-1) == 1 else x.contiguous() for x in (new_key, new_value)
        )
        out = torch.empty(rows, kv_heads, groups, value_dim, device=device)
        lse = torch.empty(rows, kv_heads, groups, device=device)
        part_out, part_sum = self._parts(heads, value_dim, device)
        places = _of(addresses, layer.index, 6 * len(arrays.entries))
        sizes = tiles(dim, value_dim, self.dtype)
        large = len(arrays.tasks) - self.small
        tiles_of_large = -(-arrays.max_rows * groups // sizes.queries)
        with torch.cuda.device_of(q):
            for first, count, tile, tiles_of_task in (
                (0, self.small, SMALL_TILE, 1),
                (self.small, large, sizes.queries, tiles_of_large),
            ):
                if not count:
                    continue
                self.kernels.attend_tasks[count, kv_heads, tiles_of_task](
                    q, *q.stride()[:3], out, lse, part_out, part_sum,
                    own_keys, *own_keys.stride()[:3], own_values, *own_values.stride()[:3],
                    new_key, *new_key.stride()[:2], new_value, *new_value.stride()[:2],
                    tasks[6 * first :], pieces, starts, places, positions, *tails,
                    layer.window or FAR, layer.chunk or FAR, layer.scale, layer.softcap or 0.0, dim,
                    value_dim, GROUPS=groups, TILE=tile, NEW=new is not None,
                    CAPPED=layer.softcap is not None, WIDEN=device.type == "cpu", ALIGN=self.align,
                    BLOCK=sizes.keys, WIDTH=_width(dim), VALUE_WIDTH=_width(value_dim),
                    num_warps=WARPS, num_stages=sizes.stages, maxnreg=MAX_REGISTERS,
                )  # fmt: skip
            if arrays.slots:
                self.kernels.merge_rows[rows, heads](
                    part_out,
                    part_sum,
                    part_first,
                    parts,
                    out,
                    lse,
                    value_dim,
                    VALUE_WIDTH=_width(value_dim),
                )
        return out.permute(1, 2, 0, 3), lse.permute(1, 2, 0)

    def store(self, layer: int, key: Tensor, value: Tensor) -> bool:
        if not len(self.stores):
            return False
        if not self.on_device:
            self._upload(key.device)
        *_, stores, addresses = self.on_device
        key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (key, value))
        dim, value_dim = key.shape[-1], value.shape[-1]
        with torch.cuda.device_of(key):
            self.kernels.store_new[len(self.stores), key.shape[0]](
                key, *key.stride()[:2], value, *value.stride()[:2], stores,
                _of(addresses, layer, 6 * len(self.stores)), dim, value_dim, ROWS=16,
                WIDTH=_width(dim), VALUE_WIDTH=_width(value_dim),
            )  # fmt: skip
        return True

    @property
    def positions(self) -> Tensor | None:
        """The position of each row's token on the device, where `advance` moves it on; None before
        the first layer."""
        return self.on_device[4] if self.on_device else None

    def advance(self) -> None:
        self.arrays.positions += 1
        if self.on_device:
            self.on_device[4] += 1

    def _upload(self, device: torch.device) -> None:
        arrays = self.arrays
        self.on_device = upload(
            (
                self.tasks, arrays.pieces, arrays.starts, arrays.addresses, arrays.positions,
                arrays.own_places, arrays.own_starts, arrays.part_first, arrays.parts, self.stores,
                self.store_places,
            ),
            device,
        )  # fmt: skip

    def _parts(self, heads: int, value_dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
        if (heads, value_dim) not in self.parts:
            slots = self.arrays.slots
            self.parts[heads, value_dim] = (
                torch.empty(slots, heads, value_dim, device=device),
                torch.empty(slots, heads, 2, device=device),
            )
        return self.parts[heads, value_dim]


def fused_attention(
    entries: Sequence[Entry],
    runs: Sequence[tuple[int, int]],
    positions: Sequence[int],
    q: Tensor,
    tails: tuple[Sequence[int], Sequence[int]] | None = None,
    new: Sequence[tuple[int, int, KV, int]] = (),
) -> TritonAttention | None:
    """See `ttc.attention.fused.fused_attention`."""
    module = kernels(q.device) if q.dtype in DTYPES else None
    if module is None:
        return None
    return TritonAttention(
        PlanArrays(entries, runs, positions, q.shape[1], tails), q.dtype, module, new
    )


def _power(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _width(dim: int) -> int:
    return max(16, _power(dim))


def _of(addresses: Tensor, layer: int, size: int) -> Tensor:
    """A layer's addresses; of a layer that no entry has, there are none."""
    return addresses[layer * size : (layer + 1) * size]
