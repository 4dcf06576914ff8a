"""Intervals for paired figures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RESAMPLES = 10_000
"""As many as RKSC draws."""


def speedup(base: Sequence[float], other: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """Mean of `base` over mean of `other`, and its 95% interval by bootstrap over pairs (one pair per problem)."""
    pairs = np.array([base, other], dtype=float)
    n = pairs.shape[1]
    drawn = pairs[:, np.random.default_rng(seed).integers(0, n, (RESAMPLES, n))].mean(-1)
    low, high = np.quantile(drawn[0] / drawn[1], [0.025, 0.975])
    return float(pairs[0].mean() / pairs[1].mean()), float(low), float(high)


def fit(lengths: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """c1 and c2 of c1 n + c2 n^2, by least squares on relative errors. RKSC's own model has no linear term."""
    n, t = np.array(lengths, dtype=float), np.array(seconds, dtype=float)
    columns = np.stack([n, n * n], axis=1) / t[:, None]
    (c1, c2), *_ = np.linalg.lstsq(columns, np.ones_like(t), rcond=None)
    return float(c1), float(c2)
