"""The line that says why the first use on a machine waits."""

from __future__ import annotations

import logging
from collections import defaultdict

import pytest
from numba import njit

from ttc import sampling_kernel
from ttc.compiling import LINE, announce_compiling


@pytest.fixture(autouse=True)
def nobody_listens_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.core.event._registered", defaultdict(list))
    announce_compiling.cache_clear()


def test_the_first_of_our_functions_that_is_compiled_is_announced_and_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    announce_compiling()
    announce_compiling()
    with caplog.at_level(logging.WARNING):
        njit(lambda x: x + 1)(1)  # one of the user's
        assert not caplog.records
        njit(sampling_kernel.is_kept.py_func)(1.0, 2, 1.0, 3)
        njit(sampling_kernel.mixed.py_func)(1, 2)
    assert [record.getMessage() for record in caplog.records] == [LINE]


def test_what_was_compiled_before_is_not_announced(caplog: pytest.LogCaptureFixture) -> None:
    compiled = njit(sampling_kernel.is_kept.py_func)
    compiled(1.0, 2, 1.0, 3)
    announce_compiling()
    assert compiled(1.0, 2, 1.0, 3)
    assert not caplog.records
