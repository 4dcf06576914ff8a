"""Speedups and shares, with intervals by bootstrap over problems."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.runs.bootstrap import draws


def speedup(
    base: Sequence[float], other: Sequence[float], seed: int = 0
) -> tuple[float, float, float]:
    """Median of `base` over median of `other`, and its 95% interval by bootstrap over pairs (one
    pair per problem)."""
    pairs = np.array([base, other], dtype=float)
    drawn = np.median(pairs[:, draws(pairs.shape[1], seed)], axis=-1)
    low, high = np.quantile(drawn[0] / drawn[1], [0.025, 0.975])
    return float(np.median(pairs[0]) / np.median(pairs[1])), float(low), float(high)


def speedups(arms: Sequence[dict[str, Any]], base: str) -> list[tuple[float, float, float]]:
    """`speedup` of each arm over the one that is called `base`, from the seconds of their
    problems."""
    (seconds,) = [arm["seconds"] for arm in arms if arm["arm"] == base]
    return [speedup(seconds, arm["seconds"]) for arm in arms]


def share(
    hits: Sequence[float], trials: Sequence[float], seed: int = 0
) -> tuple[float, float, float]:
    """All hits over all trials, and its 95% interval by bootstrap over problems. NaN where there
    are no trials."""
    counts = np.array([hits, trials], dtype=float)
    if not counts[1].sum():
        return math.nan, math.nan, math.nan
    drawn = counts[:, draws(counts.shape[1], seed)].sum(-1)
    some = drawn[:, drawn[1] > 0]
    low, high = np.quantile(some[0] / some[1], [0.025, 0.975])
    return float(counts[0].sum() / counts[1].sum()), float(low), float(high)
