"""How fast memory is read, and where the last cache ends."""

from __future__ import annotations

import pytest

from ttc.cost_model import bandwidth
from ttc.cost_model.bandwidth import measure_cache, read_bandwidth


def test_the_cache_ends_where_reading_slows_down(monkeypatch: pytest.MonkeyPatch) -> None:
    def reading(device: object = None, nbytes: int = 1 << 29) -> float:
        return 400.0 if nbytes <= 32 << 20 else 100.0

    monkeypatch.setattr(bandwidth, "read_bandwidth", reading)
    assert measure_cache() == (32 << 20, 400.0)
    monkeypatch.setattr(bandwidth, "read_bandwidth", lambda device=None, nbytes=0: 100.0)
    assert measure_cache() == (0, 0.0)


def test_reading_is_a_finite_number_of_bytes_a_second() -> None:
    assert 1e7 < read_bandwidth(nbytes=1 << 22) < 1e13
