"""The statistics of evaluations: intervals, tests of paired answers, and estimates over subsets of
samples.

After Miller, "Adding Error Bars to Evals" (2024, arXiv 2411.00640) where nothing else is said. A
value belongs to one question: 0 or 1 for a single run, else the mean over its runs. Questions that
share a source, as a passage, are a cluster, and the error is that of the clusters.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

Z95 = 1.959963984540054
Z80 = NormalDist().inv_cdf(0.8)
"""With 80% probability a difference as large as the minimal detectable effect is seen."""

NEGLIGIBLE = 1e-18
"""A chance that changes no figure."""

Clusters = Sequence[Hashable] | None
"""The source of each question; None where every question is its own."""


@dataclass(frozen=True)
class Estimate:
    """A mean, its standard error (NaN where it is not known) and its 95% interval. interval: by
    which method."""

    mean: float
    error: float
    low: float
    high: float
    interval: str = "standard error"


@dataclass(frozen=True)
class Paired:
    """What two rows differ by on the same questions: the mean of A - B.

    correlation: of A's and B's values; None where one of them is constant. p: two-sided, below 0.05
    exactly where the interval leaves out 0. test: "McNemar", "z", or "z, not paired". detectable:
    see `detectable_effect`; None where the values say nothing about their spread.
    """

    difference: Estimate
    correlation: float | None
    p: float
    test: str
    detectable: float | None


def wilson(correct: float, total: int) -> tuple[float, float]:
    """Wilson's 95% score interval for a proportion (Wilson, 1927); (0, 1) for no trials."""
    z = Z95
    if total == 0:
        return 0.0, 1.0
    p = correct / total
    centre = p + z * z / (2 * total)
    spread = z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def standard_error(values: Sequence[float], clusters: Clusters = None) -> float:
    """Of the mean of `values`, one per question: the clustered one (Miller, Section 2.2), times
    sqrt(G / (G - 1)) for G clusters, so that clusters of one question give the plain error. NaN for
    a single cluster.
    """
    gaps = np.asarray(values, dtype=float) - np.mean(values)
    groups = range(len(values)) if clusters is None else clusters
    sums: dict[Hashable, float] = {}
    for group, gap in zip(groups, gaps, strict=True):
        sums[group] = sums.get(group, 0.0) + float(gap)
    if len(sums) < 2:
        return math.nan
    return math.sqrt(sum(s * s for s in sums.values()) * len(sums) / (len(sums) - 1)) / len(values)


def accuracy(values: Sequence[float], clusters: Clusters = None) -> Estimate:
    """The mean of values in [0, 1] with the interval that fits them.

    Wilson's, if all are 0 or 1 and no questions share a source. Otherwise the mean +- 1.96 standard
    errors, cut at 0 and 1. Where that error is 0 or unknown (all questions alike), Wilson's over
    the questions, or over the clusters: an interval without width would claim too much.
    """
    mean = float(np.mean(values))
    n = len(values)
    apart = clusters is None or len(set(clusters)) == n
    if apart and all(value in (0, 1) for value in values):
        return Estimate(mean, math.sqrt(mean * (1 - mean) / n), *wilson(sum(values), n), "Wilson")
    error = standard_error(values, clusters)
    if error > 0:
        how = "standard error" if apart else "clustered standard error"
        return Estimate(
            mean, error, max(0.0, mean - Z95 * error), min(1.0, mean + Z95 * error), how
        )
    trials = n if clusters is None else len(set(clusters))
    return Estimate(mean, error, *wilson(mean * trials, trials), "Wilson")


def paired(a: Sequence[float], b: Sequence[float], clusters: Clusters = None) -> Paired:
    """A minus B over the same questions, by a score test; the 95% interval holds what it does not
    reject.

    McNemar's test with Tango's interval where both are single runs of questions with different
    sources. Otherwise the same test of the questions', or sources', differences (`_sums_test`).
    """
    gaps = np.asarray(a, dtype=float) - np.asarray(b, dtype=float)
    error = standard_error(gaps.tolist(), clusters)
    apart = clusters is None or len(set(clusters)) == len(a)
    if apart and all(value in (0, 1) for value in (*a, *b)):
        only_a, only_b = int((gaps > 0).sum()), int((gaps < 0).sum())
        p = mcnemar(only_a, only_b)
        low, high = tango(only_a, only_b, len(gaps))
        test, interval = "McNemar", "Tango"
    else:
        p, low, high = _sums_test(gaps, clusters)
        test, interval = "z", "score"
    difference = Estimate(float(gaps.mean()), error, low, high, interval)
    detectable = detectable_effect(error * error * len(a), len(a)) if error > 0 else None
    return Paired(difference, correlation(a, b), p, test, detectable)


def mcnemar(only_a: float, only_b: float) -> float:
    """Two-sided p of McNemar's test (1947) without a correction: the score test, which Tango's
    interval inverts.

    only_a, only_b: the questions that one of two runs alone got right.
    """
    differing = only_a + only_b
    return 1.0 if differing == 0 else _two_sided((only_a - only_b) / math.sqrt(differing))


def tango(only_a: float, only_b: float, total: int) -> tuple[float, float]:
    """The 95% score interval of the difference of two paired proportions (Tango, 1998). Arguments:
    as of `mcnemar`. It leaves out 0 exactly where that gives p < 0.05."""
    return -_tango_end(only_b, only_a, total), _tango_end(only_a, only_b, total)


def _tango_end(only_a: float, only_b: float, total: int) -> float:
    """The largest difference that is not rejected."""

    def rejected(delta: float) -> bool:
        # the likeliest share of only_b where the difference is delta (Tango, Equation 12)
        b = (2 * total - only_a + only_b) * delta - only_a - only_b
        c = -only_b * delta * (1 - delta)
        share = (math.sqrt(max(0.0, b * b - 8 * total * c)) - b) / (4 * total)
        variance = total * (2 * share + delta * (1 - delta))
        return (only_a - only_b - total * delta) ** 2 > Z95 * Z95 * variance

    kept = (only_a - only_b) / total
    beyond = 1.0
    if not rejected(beyond):
        return beyond
    while (middle := (kept + beyond) / 2) not in (kept, beyond):
        kept, beyond = (kept, middle) if rejected(middle) else (middle, beyond)
    return kept


def _sums_test(gaps: np.ndarray, clusters: Clusters) -> tuple[float, float, float]:
    """p of no difference, and the ends of the 95% interval, for differences of questions' means.

    Sources are independent, each with a sum S of its questions' differences d - delta. Under the
    difference delta, sum S / sqrt(sum S^2) is about normal, which for single runs is McNemar's
    test. Where all sources differ alike, they show no spread: each question then counts as a single
    run.
    """
    groups = range(len(gaps)) if clusters is None else clusters
    place = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    sums = np.zeros(len(place))
    sizes = np.zeros(len(place))
    for group, gap in zip(groups, gaps, strict=True):
        sums[place[group]] += gap
        sizes[place[group]] += 1
    total = float(sizes.sum())
    mean = float(gaps.mean())
    if np.allclose(sums, mean * sizes, atol=1e-12):
        trials = len(place)
        counts = max(0.0, mean) * trials, max(0.0, -mean) * trials
        return mcnemar(*counts), *tango(*counts, trials)
    p = _two_sided(float(sums.sum()) / math.sqrt(float(sums @ sums)))
    # kept are the deltas with (sum S)^2 <= z^2 sum S^2, that is u delta^2 - 2 v delta + w <= 0
    z2 = Z95 * Z95
    u = total * total - z2 * float(sizes @ sizes)
    v = total * float(sums.sum()) - z2 * float(sums @ sizes)
    w = float(sums.sum()) ** 2 - z2 * float(sums @ sums)
    q = v + math.copysign(math.sqrt(max(0.0, v * v - u * w)), v)
    ends = sorted((q / u, w / q if q else 0.0))
    if u > 0:
        low, high = ends
    elif w > 0:  # a few sources weigh so much that the end away from 0 cannot be told
        low, high = (ends[1], 1.0) if mean > 0 else (-1.0, ends[0])
    else:
        low, high = -1.0, 1.0
    return p, max(-1.0, low), min(1.0, high)


def _two_sided(z: float) -> float:
    return math.erfc(abs(z) / math.sqrt(2))  # NormalDist's cdf is 0 beyond 8.3


def unpaired(a: Estimate, b: Estimate) -> Paired:
    """A minus B of rows on different questions. The interval is made of both rows' (Newcombe, 1998,
    method 10); p is of a z test with the error on its side towards 0, so that both agree on whether
    there is a difference."""
    gap = a.mean - b.mean
    low = gap - math.hypot(a.mean - a.low, b.high - b.mean)
    high = gap + math.hypot(a.high - a.mean, b.mean - b.low)
    towards = (gap - low if gap > 0 else high - gap) / Z95
    p = 1.0 if gap == 0 else _two_sided(gap / towards)
    error = math.hypot(a.error, b.error)
    detectable = detectable_effect(error * error, 1) if error > 0 else None
    return Paired(
        Estimate(gap, error, low, high, "both rows' intervals"),
        None,
        p,
        "z, not paired",
        detectable,
    )


def correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Pearson's; None where one side is constant."""
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values (Holm, 1979), in the order given."""
    adjusted = [0.0] * len(ps)
    highest = 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        highest = max(highest, min(1.0, (len(ps) - rank) * ps[place]))
        adjusted[place] = highest
    return adjusted


def detectable_effect(variance: float, n: int) -> float:
    """The smallest true difference that n questions show with a probability of 80% at the level 5%
    (Miller, Section 5).

    variance: of a question's difference, between questions and within them over its runs.
    """
    return (Z95 + Z80) * math.sqrt(variance / n)


# ---------------------------------------------------------------- samples of one question


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Unbiased estimate of the chance that one of k samples is right, from n (Chen et al., 2021,
    Eq. 1)."""
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def maj_at_k(votes: Sequence[tuple[int, bool]], invalid: int, k: int) -> float:
    """The chance that the most frequent answer of k samples is right, over all subsets of k; a tie
    counts in part.

    votes: for each answer, how many of the n samples gave it, and whether it is right. invalid:
    samples without an answer. For each number of votes that the right answer may have, subsets are
    weighed by polynomials, one for each rival: an answer that can have as many. The weight of i
    votes of n is their chance where each sample is drawn with the chance k/n by itself: all
    subsets of k are equally likely then, and no number is too large. What is less likely than
    `NEGLIGIBLE` is left out. The time grows with n k^2 at most.
    """
    n = sum(count for count, _ in votes) + invalid
    weights = {count: _binomial(count, k / n) for count, _ in votes}
    total = _binomial(n, k / n)[k]
    share = 0.0
    for count, alike in Counter(count for count, right in votes if right).items():
        others = [other for other, _ in votes]
        others.remove(count)
        own = weights[count][: k + 1] / total
        for ahead in np.flatnonzero(own > NEGLIGIBLE).tolist():
            if ahead:
                rivals = [weights[other] for other in others if other >= ahead]
                free = n - count - sum(other for other in others if other >= ahead)
                ways = _subsets(rivals, _binomial(free, k / n), ahead, k - ahead)
                right_share = (ways / np.arange(1, len(ways) + 1)).sum()
                share += float(alike * own[ahead] * right_share)
    return round(share, 10)  # the chances are as exact as that


def _binomial(count: int, chance: float) -> np.ndarray:
    """The chance of 0 to `count` of `count` draws: (count + 1,)."""
    if chance == 1:
        return np.array([0.0] * count + [1.0])
    drawn = np.arange(count + 1)
    factorials = np.array([math.lgamma(i + 1) for i in drawn])
    choices = factorials[count] - factorials - factorials[::-1]
    return np.exp(choices + drawn * math.log(chance) + drawn[::-1] * math.log1p(-chance))


def _subsets(rivals: Sequence[np.ndarray], free: np.ndarray, votes: int, size: int) -> np.ndarray:
    """The weight of the subsets of `size` other samples that give no rival more than `votes`, by
    the number of rivals that have as many: (ties + 1,).

    rivals: of each other answer with that many samples, the weights of each number of votes. free:
    those of all other samples together.
    """
    ties = min(len(rivals), size // votes)
    most = min(size, len(rivals) * (votes - 1))
    ways = np.zeros((most + 1, ties + 1))  # by the votes of rivals that have fewer, and by ties
    ways[0, 0] = 1.0
    for weights in rivals:
        longer = weights[0] * ways
        for i in range(1, min(votes, most + 1)):
            longer[i:] += weights[i] * ways[:-i]
        longer[:, 1:] += weights[votes] * ways[:, :-1]
        ways = longer
    left = size - votes * np.arange(ties + 1) - np.arange(most + 1)[:, None]
    possible = (left >= 0) & (left < len(free))
    return np.where(possible, ways * free[np.where(possible, left, 0)], 0.0).sum(axis=0)
