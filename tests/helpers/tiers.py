"""Which tests `make test` runs: those that are not marked slow."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest

IS_FAST = False
"""Whether this is `make test`; `tests/conftest.py` says so."""

ALL_SLOW: set[Path] = set()
"""The collected files in which every test is slow; `tests/conftest.py` finds them."""


def examples(most: int) -> int:
    """The examples of a property test: `most` of them in the whole suite, a quarter in the fast
    tier."""
    return max(3, most // 4) if IS_FAST else most


def leave_few(items: Iterable[pytest.Item]) -> None:
    """Of the cases of each test that is marked `few`, leave the first and the last in the fast
    tier; with `few(n)`, n that lie as far apart as can be."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("few") and not item.get_closest_marker("slow"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for alike in cases.values():
        mark = alike[0].get_closest_marker("few")
        count = mark.args[0] if mark and mark.args else 2
        quick = {n * (len(alike) - 1) // max(1, count - 1) for n in range(count)}
        for place, item in enumerate(alike):
            if place not in quick:
                item.add_marker("slow")


def some_quick(cases: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """The cases of a parametrised test. Those of `quick` are in the fast tier; the others are
    alike, and slow.

    A case that is a tuple has a value for each argument.
    """
    cases = list(cases)
    assert all(case in cases for case in quick), f"no such cases: {quick}"
    return [case if case in quick else slow(case) for case in cases]


def slow(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
