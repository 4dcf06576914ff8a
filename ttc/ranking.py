"""When two scores are equal."""

from __future__ import annotations


def comparable(score: float | None) -> float:
    """A score as it is compared: those that agree in six digits are equal, and none is the lowest.

    Two branches with the same text must not change places by what was computed beside them.
    """
    return float("-inf") if score is None else float(f"{score:.6g}")
