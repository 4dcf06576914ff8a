"""Intervals by resampling problems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

RESAMPLES = 10_000
"""As many as RKSC draws."""


def difference(
    base: Sequence[float], other: Sequence[float], seed: int = 0
) -> tuple[float, float, float]:
    """The mean of `other` minus that of `base`, with its 95% bootstrap interval over problems."""
    gaps = np.array(other, dtype=float) - np.array(base, dtype=float)
    low, high = np.quantile(gaps[draws(len(gaps), seed)].mean(-1), [0.025, 0.975])
    return float(gaps.mean()), float(low), float(high)


def draws(n: int, seed: int) -> Any:
    """Which of n problems each resample holds: (RESAMPLES, n)."""
    return np.random.default_rng(seed).integers(0, n, (RESAMPLES, n))
