"""Which tests `make test` runs: those that are not marked slow."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


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
