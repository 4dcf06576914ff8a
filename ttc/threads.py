"""The threads that share work on a CPU: PyTorch's own OpenMP threads, where they can be had.

These wait for their next work without sleeping for some milliseconds. Threads of another pool would
compete with them for the same cores meanwhile.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch

COUNTERS_APART = 16
"""How many int64 numbers lie between the counters of two threads, which are then in different cache
lines."""

_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def threads_for(useful: int) -> int:
    """How many threads share work of which `useful` would each get enough: one, or all that PyTorch
    uses. OpenMP ends the threads that a smaller team has no use for and starts others for the next
    large one, which takes longer than much of this work."""
    return torch.get_num_threads() if useful > 1 else 1


def function_address(library: ctypes.CDLL | None, name: str) -> int:
    """Of a function of a library; 0 where there is none of this name."""
    function = getattr(library, name, None)
    if function is None:
        return 0
    # `ctypes.cast` would leave a cycle of references behind at each call
    return ctypes.c_void_p.from_address(ctypes.addressof(function)).value or 0


def run(function: int, parameters: int, threads: int) -> None:
    """Call a C function of one pointer, by its address, on so many threads."""
    if threads == 1:
        _FUNCTION(function)(parameters)
    else:
        team()(function, parameters, threads)


@cache
def openmp_function(name: str) -> int:
    """The address of a function of PyTorch's OpenMP library; 0 for none.

    PyTorch for x86-64 shows this library to the whole process, PyTorch for ARM to its own libraries
    alone.
    """
    for library in (None, torch._C.__file__):
        try:
            address = function_address(ctypes.CDLL(library), name)
        except (TypeError, OSError):
            continue
        if address:
            return address
    return 0


@cache
def team() -> Callable[[int, int, int], None]:
    """What runs a C function of one pointer on several threads: (its address, the pointer, how many
    threads). There may be fewer of them."""
    address = openmp_function("GOMP_parallel")
    if not address:
        return by_pool
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    parallel = kind(address)
    return lambda function, parameters, threads: parallel(function, parameters, threads, 0)


def by_pool(function: int, parameters: int, threads: int) -> None:
    call = _FUNCTION(function)
    others = [_pool().submit(call, parameters) for _ in range(threads - 1)]
    call(parameters)
    for other in others:
        other.result()


@cache
def _pool() -> ThreadPoolExecutor:
    os.register_at_fork(after_in_child=_pool.cache_clear)
    return ThreadPoolExecutor(thread_name_prefix="ttc")
