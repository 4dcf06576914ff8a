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
from typing import Any

import torch

_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@cache
def openmp_function(name: str) -> int:
    """The address of a function of PyTorch's OpenMP library; 0 for none.

    PyTorch for x86-64 shows this library to the whole process, PyTorch for ARM to its own libraries
    alone.
    """
    for library in (None, torch._C.__file__):
        try:
            function = getattr(ctypes.CDLL(library), name)
        except (TypeError, AttributeError, OSError):
            continue
        return ctypes.cast(function, ctypes.c_void_p).value or 0
    return 0


@cache
def team() -> Callable[[int, int, int], None]:
    """What runs a C function of one pointer on several threads: (its address, the pointer, how many
    threads)."""
    address = openmp_function("GOMP_parallel")
    if not address:
        return by_pool
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    parallel = kind(address)
    return lambda function, parameters, threads: parallel(function, parameters, threads, 0)


def by_pool(function: int, parameters: int, threads: int) -> None:
    run = _FUNCTION(function)
    others = [_pool().submit(run, parameters) for _ in range(threads - 1)]
    run(parameters)
    for other in others:
        other.result()


def run_parts(work: Callable[[int], None], parts: int) -> None:
    """Call `work` with each number below `parts`, each in a thread of the team. Raises what a call
    has raised.

    It pays where the calls let go of Python's lock.
    """
    if parts == 1:
        work(0)
        return
    left = iter(range(parts))
    errors = list[BaseException]()

    def take(_: int | None) -> None:
        try:
            for part in left:  # the team may have fewer threads than were asked for
                work(part)
        except BaseException as error:  # ctypes would print it and go on
            errors.append(error)

    function = _FUNCTION(take)
    team()(_address(function), 0, parts)
    if errors:
        raise errors[0]


def _address(function: Any) -> int:
    """Of the code that a ctypes function points to. `ctypes.cast` would leave a cycle of references
    behind, which keeps what the function uses until the garbage collector runs."""
    return ctypes.c_void_p.from_address(ctypes.addressof(function)).value or 0


@cache
def _pool() -> ThreadPoolExecutor:
    os.register_at_fork(after_in_child=_pool.cache_clear)
    return ThreadPoolExecutor(thread_name_prefix="ttc")
