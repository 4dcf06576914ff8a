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

from ttc.attention.kernels import Layer, Partial
from ttc.attention.pieces import Piece
from ttc.attention.plan_arrays import PlanArrays, addresses_of
from ttc.cuda.gpu_arrays import SMALL_TILE, GpuArrays, KVLayout, Room
from ttc.cuda.gpu_cuts import cut_for
from ttc.memory.small_copies import upload
from ttc.memory.storage import Storage

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

FAR = 2**30
"""The window and the chunk, in tokens, of a layer that has none."""

WARPS = 4

PARTS = 8
"""Parts of a row that are merged at a time: they are read together, and as many as that wait for
memory together."""

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
    by_size = TILES[dtype.itemsize]
    width = max(_width(dim), _width(value_dim))
    return next((chosen for size, chosen in by_size.items() if width <= size), by_size[256])


@cache
def kernels(device: torch.device) -> Any | None:
    """The module of the kernels, None where they cannot run. Compiling them takes seconds, once."""
    try:
        gpu_kernel = import_module("ttc.cuda.gpu_kernel")
        if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
            raise RuntimeError("the kernels need compute capability 8.0 or above")
        if device.type == "cuda":  # a first, empty call: Triton needs a C compiler to make any
            nothing = torch.zeros(2, dtype=torch.int64, device=device)
            out = torch.zeros(16, device=device)
            with torch.cuda.device(device):
                gpu_kernel.merge_rows[1, 1](
                    out, out, nothing, nothing, out, out, 16, PARTS=PARTS, VALUE_WIDTH=16
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
        new: Sequence[tuple[int, int, Storage, int]] = (),
    ):
        self.arrays = arrays
        self.dtype = dtype
        self.kernels = kernels
        self.stores = np.array(
            [(row, count, token) for row, count, _, token in new], np.int64
        ).reshape(-1, 3)
        self.store_places, self.written = addresses_of([kv for _, _, kv, _ in new])
        self.on_device: GpuArrays | None = None
        self.stores_on_device: list[Tensor] = []

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
        if self.on_device is None:
            self.on_device = self._upload(q.device)
        own = self.arrays.own_addresses is None
        key, value = (own_keys[0], own_values[0]) if own or new is None else new
        return attend(self.kernels, self.on_device, layer, q, key, value, not own)

    def store(self, layer: int, key: Tensor, value: Tensor) -> bool:
        if not len(self.stores):
            return False
        if not self.stores_on_device:
            self.stores_on_device = upload((self.stores, self.store_places), key.device)
        stores, addresses = self.stores_on_device
        size = 6 * len(self.stores)
        key, value = (_with_dense_rows(x) for x in (key, value))
        dim, value_dim = key.shape[-1], value.shape[-1]
        with torch.cuda.device_of(key):
            self.kernels.store_new[len(self.stores), key.shape[0]](
                key, *key.stride()[:2], value, *value.stride()[:2], stores,
                addresses[layer * size : (layer + 1) * size], dim, value_dim, ROWS=16,
                WIDTH=_width(dim), VALUE_WIDTH=_width(value_dim),
            )  # fmt: skip
        return True

    def advance(self) -> None:
        self.arrays.positions += 1
        if self.on_device is not None:
            self.on_device.positions += 1

    def _upload(self, device: torch.device) -> GpuArrays:
        arrays = self.arrays
        layout = KVLayout.of(arrays, self.dtype)
        made = GpuArrays(Room.of(arrays), arrays.groups, arrays.layers, layout, device)
        made.large_rows = arrays.max_rows
        made.fill(arrays, arrays.tasks)
        return made


def attend(
    kernels: Any,
    arrays: GpuArrays,
    layer: Layer,
    q: Tensor,
    key: Tensor,
    value: Tensor,
    in_storages: bool,
    out_dtype: torch.dtype = torch.float32,
) -> Partial:
    """A layer's attention by the plan that `arrays` holds. See `FusedAttention.attend`.

    key, value: the new ones, (kv_heads, rows, dim). in_storages: they are written where `arrays`
        says, behind what each row attends there. out_dtype: of what it returns; the model's own
        where nothing is merged with it any more.
    """
    kv_heads, groups, rows, dim = q.shape
    q, key, value = map(_with_dense_rows, (q, key, value))
    value_dim = value.shape[-1]
    heads, device = kv_heads * groups, q.device
    out = torch.empty(rows, kv_heads, groups, value_dim, dtype=out_dtype, device=device)
    lse = torch.empty(rows, kv_heads, groups, device=device)
    part_out, part_sum = arrays.sums(heads, value_dim)
    places, owners = arrays.of_layer(layer.index)
    room, layout, sizes = arrays.room, arrays.layout, tiles(dim, value_dim, q.dtype)
    most = groups * arrays.large_rows
    # a layer may have more heads in a group than that by which tasks were called small
    most_of_small = groups * max(1, SMALL_TILE // arrays.groups)
    with torch.cuda.device_of(q):
        for first, count, tile, queries in (
            (0, room.small, SMALL_TILE, most_of_small),
            (room.small, room.large, sizes.queries, most),
        ):
            if not count:
                continue
            kernels.attend_tasks[count, kv_heads, -(-queries // tile)](
                q, *q.stride()[:3], out, lse, part_out, part_sum,
                key, *key.stride()[:2], value, *value.stride()[:2],
                arrays.tasks[6 * first :], arrays.pieces, arrays.starts, places, arrays.positions,
                arrays.own_starts, owners, arrays.own_firsts,
                layer.window or FAR, layer.chunk or FAR, layer.scale, layer.softcap or 0.0, dim,
                value_dim, GROUPS=groups, TILE=tile, OWNERS=in_storages,
                CAPPED=layer.softcap is not None, WIDEN=device.type == "cpu",
                PACKED=layout.packed, ALIGN=layout.alignment,
                BYTES=layout.alignment * layout.number_bytes, OWN_ALIGN=layout.own_alignment,
                BLOCK=sizes.keys, WIDTH=_width(dim), VALUE_WIDTH=_width(value_dim),
                num_warps=WARPS, num_stages=sizes.stages, maxnreg=MAX_REGISTERS,
            )  # fmt: skip
        if room.slots:
            kernels.merge_rows[rows, heads](
                part_out,
                part_sum,
                arrays.part_first,
                arrays.parts,
                out,
                lse,
                value_dim,
                PARTS=PARTS,
                VALUE_WIDTH=_width(value_dim),
            )
    return out.permute(1, 2, 0, 3), lse.permute(1, 2, 0)


def fused_attention(
    entries: Sequence[Piece],
    runs: Sequence[tuple[int, int]],
    positions: Sequence[int],
    q: Tensor,
    filled: Sequence[int] | None = None,
    new: Sequence[tuple[int, int, Storage, int]] = (),
    owners: tuple[Sequence[Any], Sequence[int]] | None = None,
) -> TritonAttention | None:
    module = kernels(q.device) if q.dtype in DTYPES else None
    if module is None:
        return None
    cut = cut_for(entries, runs, q.shape[1], q.shape[0], q.device)
    arrays = PlanArrays(entries, runs, positions, q.shape[1], filled, cut, owners)
    return TritonAttention(arrays, q.dtype, module, new)


def _width(dim: int) -> int:
    return max(16, 1 << (dim - 1).bit_length())


def _with_dense_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
