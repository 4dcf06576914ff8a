"""The product's own kernel in the trial's harness."""

from __future__ import annotations

import time
from typing import Any

import numba
import torch
from numba import carray, njit

from experiments.lab.trials.kernel_form.call import (
    BLOCK,
    COLUMNS,
    GROUP,
    NEXT,
    OUT,
    PANEL,
    PARAMETERS,
    ROWS,
    WIDTH,
    Candidate,
    W,
    X,
)
from ttc.attention.cpu_kernel import FLAGS
from ttc.attention.cpu_vectors import address_of, fetch_add, integers
from ttc.model.cpu_layers import products

COUNT = len(PARAMETERS)


@njit(**FLAGS)
def columns_of(like, p, first, last, block, end):  # type: ignore[no-untyped-def]
    """Some columns for the rows of a block."""
    width = p[WIDTH]
    for c in range(first, last, GROUP):
        products(
            like,
            p[X] + block * width,
            width,
            p[W] + c * width,
            width,
            end - block,
            min(GROUP, last - c),
            width,
            p[OUT] + 4 * (block * p[COLUMNS] + c),
            4 * p[COLUMNS],
            GROUP * width,
        )


def run(like):  # type: ignore[no-untyped-def]
    """One thread's part. like: points to the parameters; its type says how numbers are kept."""
    address = address_of(like)
    p = carray(integers(address), (COUNT,))
    first = fetch_add(address + 8 * NEXT, PANEL)
    while first < p[COLUMNS]:
        last = min(first + PANEL, p[COLUMNS])
        for block in range(0, p[ROWS], BLOCK):
            columns_of(like, p, first, last, block, min(block + BLOCK, p[ROWS]))
        first = fetch_add(address + 8 * NEXT, PANEL)


_compiled: list[Any] = []


def candidate(dtype: torch.dtype) -> Candidate:
    """The candidate for a type of numbers, compiled now."""
    number = numba.types.uint16 if dtype == torch.bfloat16 else numba.types.float32
    start = time.perf_counter()
    compiled: Any = numba.cfunc(numba.types.void(numba.types.CPointer(number)), **FLAGS)(run)
    _compiled.append(compiled)
    return Candidate("numba as it is", compiled.address, time.perf_counter() - start)
