"""Work that threads share: each part once, errors told, with the team of OpenMP threads and
without."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import ttc.threads
from ttc.threads import by_pool, openmp_function, run_parts, team


@pytest.fixture(params=["team", "pool"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "pool":
        monkeypatch.setattr(ttc.threads, "team", lambda: by_pool)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("parts", [1, 2, 7])
def test_each_part_is_done_once(parts: int) -> None:
    done: list[int] = []
    run_parts(done.append, parts)
    assert sorted(done) == list(range(parts))


@pytest.mark.usefixtures("way")
def test_parts_run_at_the_same_time() -> None:
    meeting = threading.Barrier(2)
    run_parts(lambda part: meeting.wait(timeout=30) and None, 2)
    assert not meeting.broken


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("parts", [1, 3])
def test_an_error_of_a_part_is_raised(parts: int) -> None:
    def work(part: int) -> None:
        if part == parts - 1:
            raise ValueError(f"part {part} fails")

    with pytest.raises(ValueError, match=f"part {parts - 1} fails"):
        run_parts(work, parts)


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
    names = ("GOMP_parallel", "GOMP_barrier")
    before = [openmp_function(name) for name in names]
    if not all(before):
        pytest.skip("PyTorch has no such OpenMP library here")
    openmp_function.cache_clear()
    load: Any = ctypes.CDLL
    monkeypatch.setattr(
        ctypes, "CDLL", lambda file: SimpleNamespace() if file is None else load(file)
    )
    assert [openmp_function(name) for name in names] == before
    assert team() is not by_pool
    done: list[int] = []
    run_parts(done.append, 3)
    assert sorted(done) == [0, 1, 2]


@pytest.mark.usefixtures("way")
def test_nothing_that_was_used_is_held_afterwards() -> None:
    class Used:
        pass

    used = Used()
    held = weakref.ref(used)
    gc.disable()
    try:
        run_parts(lambda part, used=used: None, 2)
        del used
        assert held() is None
    finally:
        gc.enable()
