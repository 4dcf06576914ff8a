"""How the CPU kernels share work: each unit once, and no round before the last one is done, however
many threads come."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ttc.compiling import cxx, library
from ttc.threads import by_pool, function_address, team

SOURCE = Path(__file__).parents[1] / "helpers" / "take_shares.cpp"
ROUNDS = 50


@pytest.mark.skipif(cxx() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("units", [0, 1, 2, 7, 100])
@pytest.mark.parametrize(("threads", "come"), [(1, 1), (2, 2), (2, 1), (3, 2), (5, 5), (7, 3)])
@pytest.mark.parametrize("run", [team(), by_pool], ids=["team", "pool"])
def test_each_unit_is_taken_once(
    run: Callable[[int, int, int], None], threads: int, come: int, units: int
) -> None:
    """threads: who have a part. come: how many of them take units; they do the others' parts."""
    loaded = library(SOURCE)
    assert loaded is not None
    apart = ROUNDS + 16
    counters = np.zeros((threads, apart), np.int64)
    taken = np.zeros((ROUNDS, units), np.int64)
    early = np.zeros(1, np.int64)
    arrays = [array.ctypes.data for array in (counters, taken, early)]
    work = np.array([0, 0, threads, units, ROUNDS, apart, *arrays], np.int64)
    run(function_address(loaded, "take_shares"), work.ctypes.data, come)
    assert (taken == 1).all()
    assert early[0] == 0
    assert work[1] == ROUNDS * units


@pytest.mark.skipif(cxx() is None, reason="needs a C++ compiler")
def test_the_address_of_a_function_leaves_nothing_behind() -> None:
    """Where a cycle of references were left at each token, memory would grow until Python's garbage
    collector runs."""
    loaded = library(SOURCE)
    assert function_address(loaded, "take_shares")
    assert function_address(loaded, "no_such_function") == function_address(None, "any") == 0
    gc.collect()
    gc.disable()
    try:
        function_address(loaded, "take_shares")
        assert gc.collect() == 0
    finally:
        gc.enable()
