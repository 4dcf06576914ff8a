"""What every candidate is called with, and how."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ttc.threads import by_pool

PARAMETERS = (NEXT, THREADS, ROWS, COLUMNS, WIDTH, X, W, OUT, SCRATCH) = range(9)
"""Places in the array of int64 numbers that a candidate gets. Addresses and WIDTH, a row of
numbers, are in bytes."""
BLOCK = 32
"""Rows that meet some columns before the next columns."""
PANEL = 64
"""Columns of a unit of work."""
GROUP = 16
"""Columns that all rows of a block meet before the next ones."""


@dataclass
class Candidate:
    """A compiled kernel: name, the address of its C function, and seconds that compiling took."""

    name: str
    address: int
    compile_s: float

    def __call__(self, x: Tensor, weight: Tensor, threads: int = 1) -> Tensor:
        """x @ weight.T in float32. x: (rows, width), weight: (columns, width); rows are whole
        vectors of 64 bytes, and columns a multiple of `GROUP`."""
        out = torch.empty(len(x), len(weight))
        width = x.shape[1] * x.element_size()
        scratch = np.empty(threads * len(x) * width * 2, np.uint8)
        p = np.zeros(len(PARAMETERS), np.int64)
        p[ROWS:] = (
            len(x),
            len(weight),
            width,
            x.data_ptr(),
            weight.data_ptr(),
            out.data_ptr(),
            scratch.ctypes.data,
        )
        if threads == 1:
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.address)(p.ctypes.data)
        else:
            # whoever waits sleeps, and takes no processor time
            by_pool(self.address, p.ctypes.data, threads)
        return out
