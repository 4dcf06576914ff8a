"""Tests of times that no slow or busy machine can break."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest


class Clock:
    """Stands still, but for sleeping and for work that is said to take time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._lock = threading.Lock()

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self.now_s += seconds


def link_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that a link with a speed, and the times measured for CAPTURE, go by from here on.

    Copies take the time that their bytes take at the link's speed, and all else takes none.
    """
    clock = Clock()
    monkeypatch.setattr("ttc.memory.link.time", clock)
    monkeypatch.setattr("ttc.model.running.capture_times.perf_counter", clock.perf_counter)
    return clock


def assert_linear(work: Callable[[int], object], size: int) -> None:
    """Sixteen times the size takes some 16 times the processor time, where quadratic work would
    take 256 times as much."""

    def seconds(size: int) -> float:
        began = time.process_time()
        work(size)
        return time.process_time() - began

    assert seconds(size) < 64 * max(0.05, seconds(size // 16))
