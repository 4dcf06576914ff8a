"""Whether tokens go in circles, against a search through all periods."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.tiers import examples
from ttc.scheduler.repeats import repeats


def by_all_periods(tokens: list[int], first: int = 0) -> bool:
    """The rule, period by period."""
    own = tokens[first:]

    def is_last(period: int, count: int) -> bool:
        last = own[-count:]
        return len(own) >= count and all(a == b for a, b in zip(last, last[period:], strict=False))

    circles = [period for period in range(4, 201) if is_last(period, 3 * period)]
    return any(
        3 * period >= 33 or not any(is_last(short, 3 * period) for short in (1, 2, 3))
        for period in circles
    )


@st.composite
def endings(draw: Any) -> list[int]:
    """Tokens that end in a pattern, some times over, at times with one token wrong."""
    letters = st.integers(0, draw(st.integers(0, 3)))
    pattern = draw(st.lists(letters, min_size=1, max_size=draw(st.sampled_from([3, 6, 14, 230]))))
    before = draw(st.lists(letters, max_size=20))
    tokens = before + pattern * draw(st.integers(1, 14)) + pattern[: draw(st.integers(0, 5))]
    if draw(st.booleans()):
        place = draw(st.integers(1, min(len(tokens), 40)))
        tokens[-place] = draw(st.integers(0, 4))
    return tokens


@given(endings(), st.integers(0, 30))
@settings(max_examples=examples(400), deadline=None)
def test_it_is_what_all_periods_say(tokens: list[int], first: int) -> None:
    assert repeats(tokens, first) == by_all_periods(tokens, first)


@pytest.mark.parametrize("period", [4, 5, 11, 37, 199, 200])
def test_a_pattern_counts_when_it_has_come_three_times(period: int) -> None:
    pattern = list(range(period))
    tokens = [7, 7, *pattern, *pattern, *pattern]
    assert repeats(tokens)
    assert not repeats(tokens[:-1])
    assert not repeats(tokens, 3)  # the first of it was given
    assert not repeats([*tokens[: -period - 1], -1, *tokens[-period:]])


def test_longer_patterns_and_short_rows_are_no_circles() -> None:
    assert not repeats(list(range(201)) * 3)
    for pattern in ([1], [1, 2], [1, 2, 3]):
        assert not repeats((pattern * 40)[:32])
        assert repeats((pattern * 40)[:36])
    assert not repeats([])
