"""The threads that share work on a CPU: the team of OpenMP threads, and what stands for it."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ttc.threads import by_pool, openmp_function, run, team, threads_for

FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def call_with(work: Callable[[], None], way: Callable[[int, int, int], None], threads: int) -> None:
    errors: list[BaseException] = []

    def call(_: int | None) -> None:
        try:
            work()
        except BaseException as error:  # ctypes would print it and go on
            errors.append(error)

    function = FUNCTION(call)
    way(ctypes.cast(function, ctypes.c_void_p).value or 0, 0, threads)
    assert errors == []


@pytest.mark.parametrize("way", [team(), by_pool], ids=["team", "pool"])
def test_threads_run_at_the_same_time(way: Callable[[int, int, int], None]) -> None:
    meeting = threading.Barrier(2)
    call_with(lambda: meeting.wait(timeout=30) and None, way, 2)
    assert not meeting.broken


@pytest.mark.parametrize("threads", [1, 3])
def test_each_thread_calls_the_function_once(threads: int) -> None:
    calls: list[int] = []
    call_with(lambda: calls.append(threading.get_ident()), run, threads)
    assert len(calls) == len(set(calls)) == threads
    assert threading.get_ident() in calls


@pytest.fixture
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("four_threads")
def test_a_team_is_never_smaller_than_pytorchs() -> None:
    """OpenMP would end the threads that are left over, and start others for the next team."""
    assert [threads_for(useful) for useful in (0, 1, 2, 3, 4, 100)] == [1, 1, 4, 4, 4, 4]


@pytest.mark.usefixtures("four_threads")
@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="needs Linux's list of threads")
@pytest.mark.skipif(team() is by_pool, reason="PyTorch has no such OpenMP library here")
def test_threads_stay_from_call_to_call() -> None:
    def threads_after(useful: int) -> set[str]:
        call_with(lambda: None, run, threads_for(useful))
        return set(os.listdir("/proc/self/task"))

    first = threads_after(4)
    for useful in (2, 4, 1, 3):
        assert first <= threads_after(useful)


@pytest.fixture
def looked_for_anew() -> Iterator[None]:
    """The functions of OpenMP are looked for again, and again afterwards."""
    for function in (openmp_function, team):
        function.cache_clear()
    yield
    for function in (openmp_function, team):
        function.cache_clear()


def test_the_team_is_found_where_pytorch_keeps_its_library_to_itself(
    looked_for_anew: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on ARM, where the process as a whole does not see it."""
    before = openmp_function("GOMP_parallel")
    if not before:
        pytest.skip("PyTorch has no such OpenMP library here")
    openmp_function.cache_clear()
    load: Any = ctypes.CDLL
    monkeypatch.setattr(
        ctypes, "CDLL", lambda file: SimpleNamespace() if file is None else load(file)
    )
    assert openmp_function("GOMP_parallel") == before
    assert team() is not by_pool
