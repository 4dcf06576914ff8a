"""What takes too long is cut off, and nothing of that arrives later."""

from __future__ import annotations

import sys
import time
from collections import Counter
from contextlib import suppress

import pytest

from ttc import InvalidInput
from ttc.time_limit import limited


def forever() -> None:
    while True:
        with suppress(Exception):  # what is cut off does not handle it
            sum(range(100))


def test_what_ends_in_time_returns_or_raises_as_it_does() -> None:
    assert limited(lambda: 3, 10, "it", "wait") == 3
    with pytest.raises(ZeroDivisionError):
        limited(lambda: 1 // 0, 10, "it", "wait")


def test_what_does_not_end_is_cut_off() -> None:
    with pytest.raises(InvalidInput, match=r"the sum takes more than 0\.2 s; take fewer"):
        limited(forever, 0.2, "the sum", "take fewer")


def test_nothing_arrives_after_the_end() -> None:
    """Calls that end at about the time of their limit."""
    outcomes = set()
    # most end at about their limit, one long before it and one long after
    for seconds, limit_s in [
        (0.0, 10.0),
        (10.0, 0.02),
        *((turn / 1e3, 0.02) for turn in range(0, 50, 2)),
    ]:
        end = time.monotonic() + seconds

        def busy(end: float = end) -> None:
            while time.monotonic() < end:
                pass

        try:
            limited(busy, limit_s, "it", "wait")
            outcomes.add("returned")
        except InvalidInput:
            outcomes.add("cut off")
        sum(range(1000))
    assert outcomes == {"returned", "cut off"}


def test_nothing_arrives_where_threads_take_turns_at_every_moment() -> None:
    """A cut can then fall into each line of what ends the watch."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    outcomes = Counter[str]()
    try:
        for turn in range(400):
            end = time.monotonic() + 1e-3 + turn % 10 * 2e-5

            def busy(end: float = end) -> None:
                while time.monotonic() < end:
                    pass

            try:
                limited(busy, 1e-3, "it", "wait")
                outcomes["returned"] += 1
            except InvalidInput:
                outcomes["cut off"] += 1
    finally:
        sys.setswitchinterval(interval)
    assert set(outcomes) == {"returned", "cut off"}


def test_it_is_cut_off_again_where_the_first_time_was_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ttc.time_limit.AGAIN_S", 0.1)

    def stubborn() -> None:
        with suppress(BaseException):
            forever()
        forever()

    with pytest.raises(InvalidInput, match="it takes more than"):
        limited(stubborn, 0.1, "it", "wait")


def test_profilers_work_afterwards() -> None:
    """A mark left with the interpreter that something is to come would have them wait for ever."""
    assert limited(lambda: 3, 10, "it", "wait") == 3
    calls = 0

    def note(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(note)
    try:
        suppress(Exception)
    finally:
        sys.setprofile(None)
    assert calls
