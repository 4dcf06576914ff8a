"""Quantiles, counts, and what a count of errors says about their rate."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ttc.errors import InvalidInput

LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
CONFIDENCE = 0.95


def quantiles(values: Sequence[float]) -> list[float]:
    """Minimum, quartiles and maximum; [] for no values."""
    return [quantile(values, level) for level in LEVELS] if values else []


def quantile(values: Sequence[float], q: float) -> float:
    """The q-quantile, interpolated between two values."""
    return float(np.quantile(values, q))


def clopper_pearson(hits: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """The one-sided upper bound of a proportion (Clopper and Pearson, 1934); 1 for no trials.

    It is the largest proportion under which `hits` or fewer of `trials` still have a probability of
    1 - confidence.
    """
    if hits >= trials:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _binomial_cdf(hits, trials, middle) >= 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def _binomial_cdf(hits: int, trials: int, p: float) -> float:
    """P(X <= hits) for X ~ Binomial(trials, p), 0 < p < 1."""
    logs = (
        math.lgamma(trials + 1)
        - math.lgamma(k + 1)
        - math.lgamma(trials - k + 1)
        + k * math.log(p)
        + (trials - k) * math.log1p(-p)
        for k in range(hits + 1)
    )
    return math.fsum(map(math.exp, logs))


def check_counts(**counts: int) -> None:
    """Refuse counts that are not whole, or of which one is a part of the next and yet larger."""
    values = list(counts.values())
    whole = all(isinstance(value, int) for value in values)
    if not whole or values != sorted(values) or values[0] < 0:
        raise InvalidInput(
            f"the counts {', '.join(counts)} = {tuple(values)} must be whole and must not decrease"
        )
