"""How a failure is shrunk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from experiments.lab.bench.combinations.combination import Combination


def fewest(c: Combination, fails: Callable[[Combination], bool]) -> Combination:
    """A combination of as few settings as possible that still fails."""
    before = None
    while c != before:
        before = c
        for name in c.settings():
            simpler = (replace(c, **{name: value}) for value in _simpler(c, name))
            c = next(filter(fails, simpler), c)
    return c


def _simpler(c: Combination, name: str) -> list[Any]:
    """Values to try in the place of a setting: the plain one, or fewer problems."""
    if name == "problems":
        return [n for n in (1, c.problems // 2, c.problems - 1) if 0 < n < c.problems]
    if name == "verifier" and any(search.needs_verifier for search in c.searches):
        return []
    return [getattr(Combination(), name)]
