"""The compiled layers: what this machine's C++ compiler makes of `cpu_layers.cpp`.

Built at first use and kept on disk. Without a compiler there are none (`why_not`).
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from ttc.compiling import WITHOUT_COMPILER, library
from ttc.errors import InvalidInput
from ttc.threads import function_address

SOURCE = Path(__file__).with_name("cpu_layers.cpp")


def kernel() -> ctypes.CDLL | None:
    return library(SOURCE)


def why_not() -> str:
    try:
        return WITHOUT_COMPILER if kernel() is None else ""
    except InvalidInput as error:
        return str(error)


def address(dtype: torch.dtype) -> int:
    return function_address(kernel(), f"run_{str(dtype).removeprefix('torch.')}")


def processor() -> str:
    return _text("processor")


def input_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type of the rows that are given to products, of a model of this type: bfloat16 where the
    processor multiplies such numbers, else float32 that holds them."""
    size = ctypes.c_int64.in_dll(_loaded(), "bfloat16_given_bytes").value
    return dtype if dtype.itemsize >= size else torch.float32


@cache
def names() -> Any:
    """The numbers of the kinds of operations, and of the fields of an operation and of a list's
    head, as the library itself tells them: by name, in capitals. There is one list of them, so the
    two sides cannot differ."""
    lists = [
        _text(name).upper().split(", ") for name in ("kinds", "operation_fields", "head_fields")
    ]
    numbers = {name: number for listed in lists for number, name in enumerate(listed)}
    return SimpleNamespace(
        **numbers,
        LINEAR=[numbers[name] for name in ("PROJECT", "PROJECT_HEADS", "GATE")],
        FIELDS=len(lists[1]),
        HEAD=len(lists[2]),
        MANY_ROWS=ctypes.c_int64.in_dll(_loaded(), "many_rows").value,
        TILE_ROWS=ctypes.c_int64.in_dll(_loaded(), "tile_rows").value,
    )


def scratch_bytes(columns: int) -> int:
    size = _loaded().scratch_bytes
    size.restype = ctypes.c_int64
    nbytes: int = size(ctypes.c_int64(columns))
    return nbytes


def _text(name: str) -> str:
    return (ctypes.c_char_p.in_dll(_loaded(), name).value or b"").decode()


def _loaded() -> ctypes.CDLL:
    loaded = kernel()
    if loaded is None:
        raise InvalidInput(f"there are no compiled layers: {WITHOUT_COMPILER}")
    return loaded
