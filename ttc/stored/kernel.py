"""Products with weights as .gguf files store them: compiled by this machine's C++ compiler, called
here.

Built at first use and kept on disk. Without a compiler there are none (`why_not`).
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ttc.compiling import library
from ttc.errors import UnsupportedModel
from ttc.threads import function_address, run, threads_for

SOURCE = Path(__file__).with_name("stored_products.cpp")
KINDS = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    20: "IQ4_NL",
    30: "BF16",
    39: "MXFP4",
}
"""What the kernel reads of .gguf files, by ggml's numbers of types."""
GRAIN = 100_000
"""Multiplications worth another thread."""
TILE = 16
"""Rows of a tile."""


@cache
def kernel() -> ctypes.CDLL | None:
    return library(SOURCE)


@cache
def products(dtype: torch.dtype, shared: bool = False) -> int:
    """The address of what multiplies rows of this type; 0 where nothing does. shared: the one that
    threads call together."""
    name = f"{'share' if shared else 'products'}_{str(dtype).removeprefix('torch.')}"
    return function_address(kernel(), name)


def linear(x: Tensor, packed: Tensor, stored: int) -> Tensor:
    """x @ weight.T for rows x (rows, width), in x's type. packed: the weight's rows as bytes. Sums
    are float32. Rows of bfloat16 meet weights rounded to bfloat16 where the processor multiplies
    such numbers (AVX512_BF16), else all is float32."""
    dtype = x.dtype
    if not products(dtype):
        x = x.float()
    x = x.contiguous()
    tiles = tile_rows() if x.dtype == torch.bfloat16 else 0
    rows = turned(x) if 0 < tiles <= len(x) else None
    return shared(products(x.dtype, shared=True), x, x.shape[1], packed, stored, rows).to(dtype)


@cache
def tile_rows() -> int:
    """From how many rows of bfloat16 on tiles multiply them (`tiles.h`); 0 where there are none."""
    loaded = kernel()
    return 0 if loaded is None else ctypes.c_int64.in_dll(loaded, "tile_rows").value


def turned(x: Tensor) -> Tensor:
    """Rows of bfloat16 as tiles take them: (rows / 16, words, 16), words of two numbers."""
    rows, width = x.shape
    filled = torch.nn.functional.pad(x, (0, 0, 0, -rows % TILE))
    words = filled.view(torch.int32).view(-1, TILE, width // 2)
    return words.transpose(1, 2).contiguous()


def shared(
    function: int,
    x: Tensor,
    width: int,
    packed: Tensor,
    stored: int,
    turned: Tensor | None = None,
) -> Tensor:
    """What threads make together of rows x: (rows, columns), float32.

    function: the address of what they call. width: the numbers of a row. turned: the rows as tiles
    take them, if tiles are to multiply them.
    """
    rows, columns = len(x), len(packed)
    out = torch.empty(rows, columns)
    part = (
        x.data_ptr(),
        x.stride(0) * x.element_size(),
        packed.data_ptr(),
        packed.stride(0),
        rows,
        columns,
        width,
        out.data_ptr(),
        4 * columns,
        0,
        0 if turned is None else turned.data_ptr(),
    )
    call = np.array([0, stored, *part], np.int64)
    run(function, call.ctypes.data, threads_for(1 + rows * columns * width // GRAIN))
    return out


def unpacked(packed: Tensor, stored: int, width: int) -> Tensor:
    """Rows of a weight (rows, bytes) as float32 numbers (rows, width)."""
    loaded = kernel()
    if loaded is None:
        raise UnsupportedModel("there is no C++ compiler to read stored weights with")
    packed = packed.contiguous()
    out = torch.empty(*packed.shape[:-1], width)
    numbers = ctypes.c_int64(out.numel())  # rows without gaps are one long row
    loaded.unpack_float32(
        ctypes.c_int64(stored),
        ctypes.c_void_p(packed.data_ptr()),
        numbers,
        ctypes.c_void_p(out.data_ptr()),
    )
    return out
