"""Intervals for paired figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

RESAMPLES = 10_000
"""As many as RKSC draws."""


def speedup(base: Sequence[float], other: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """Median of `base` over median of `other`, and its 95% interval by bootstrap over pairs (one pair per problem).

    Medians, as a problem is timed once: what else the machine did meanwhile would move a mean.
    """
    pairs = np.array([base, other], dtype=float)
    drawn = np.median(pairs[:, _draws(pairs.shape[1], seed)], axis=-1)
    low, high = np.quantile(drawn[0] / drawn[1], [0.025, 0.975])
    return float(np.median(pairs[0]) / np.median(pairs[1])), float(low), float(high)


def speedups(arms: Sequence[dict[str, Any]], base: str) -> list[tuple[float, float, float]]:
    """`speedup` of each arm over the one that is called `base`, from the seconds of their problems."""
    (seconds,) = [arm["seconds"] for arm in arms if arm["arm"] == base]
    return [speedup(seconds, arm["seconds"]) for arm in arms]


def share(hits: Sequence[float], trials: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """All hits over all trials, and its 95% interval by bootstrap over problems, which have one number of each.

    NaN where there are no trials; samples without any are left out.
    """
    counts = np.array([hits, trials], dtype=float)
    if not counts[1].sum():
        return math.nan, math.nan, math.nan
    drawn = counts[:, _draws(counts.shape[1], seed)].sum(-1)
    some = drawn[:, drawn[1] > 0]
    low, high = np.quantile(some[0] / some[1], [0.025, 0.975])
    return float(counts[0].sum() / counts[1].sum()), float(low), float(high)


def difference(base: Sequence[float], other: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """The mean of `other` minus the mean of `base`, and its 95% interval by bootstrap over pairs (one per problem)."""
    gaps = np.array(other, dtype=float) - np.array(base, dtype=float)
    low, high = np.quantile(gaps[_draws(len(gaps), seed)].mean(-1), [0.025, 0.975])
    return float(gaps.mean()), float(low), float(high)


def _draws(n: int, seed: int) -> Any:
    """Which of n problems each resample holds: (RESAMPLES, n)."""
    return np.random.default_rng(seed).integers(0, n, (RESAMPLES, n))
