"""Work that threads share: each part once, errors told, with the team of OpenMP threads and
without."""

from __future__ import annotations

import threading

import pytest

import ttc.threads
from ttc.threads import by_pool, run_parts


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
