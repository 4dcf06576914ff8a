"""How well scores tell right from wrong, with intervals over problems."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

RESAMPLES = 2_000

Interval = tuple[float, float, float]
"""A figure, and the ends of its 95% interval."""


def auc(scores: Sequence[Sequence[float]], right: Sequence[Sequence[bool]]) -> Interval:
    """The chance that a right one is scored above a wrong one, equal scores counting half.

    One list for each problem. The interval is a bootstrap over problems: what belongs to one
    problem stays together. NaN where there is nothing right, or nothing wrong.
    """
    flat = np.array(list(chain(*scores)), dtype=float)
    labels = np.array(list(chain(*right)), dtype=bool)
    problem = np.repeat(np.arange(len(scores)), [len(one) for one in scores])
    whole = weighted_auc(flat, labels, np.ones(len(flat)))
    if np.isnan(whole):
        return whole, whole, whole
    share = np.full(len(scores), 1 / len(scores))
    drawn = np.random.default_rng(0).multinomial(len(scores), share, RESAMPLES)
    low, high = np.nanquantile(
        [weighted_auc(flat, labels, times[problem]) for times in drawn], [0.025, 0.975]
    )
    return whole, float(low), float(high)


def auc_within(scores: Sequence[Sequence[float]], right: Sequence[Sequence[bool]]) -> Interval:
    """As `auc`, over pairs of a right and a wrong one of the same problem: what a choice among its
    candidates needs."""
    wins, pairs = [], []
    for one, labels in zip(scores, right, strict=True):
        count = sum(labels) * (len(labels) - sum(labels))
        if count:
            share = weighted_auc(np.array(one, dtype=float), np.array(labels), np.ones(len(one)))
            wins.append(count * share)
            pairs.append(count)
    if not pairs:
        return float("nan"), float("nan"), float("nan")
    drawn = np.random.default_rng(0).integers(0, len(pairs), (RESAMPLES, len(pairs)))
    low, high = np.quantile(
        np.array(wins)[drawn].sum(1) / np.array(pairs)[drawn].sum(1), [0.025, 0.975]
    )
    return float(sum(wins) / sum(pairs)), float(low), float(high)


def weighted_auc(scores: Any, right: Any, weights: Any) -> float:
    """AUC of arrays in which each row counts `weights` times; NaN without both kinds."""
    order = np.argsort(scores)
    good, bad = (weights * right)[order], (weights * ~right)[order]
    pairs = good.sum() * bad.sum()
    if not pairs:
        return float("nan")
    # where each distinct score begins
    firsts = np.flatnonzero(np.diff(scores[order], prepend=-np.inf))
    good, bad = np.add.reduceat(good, firsts), np.add.reduceat(bad, firsts)
    return float((good * (np.cumsum(bad) - bad / 2)).sum() / pairs)
