"""The confidence gate's thresholds for one model and data set, found on held-out problems and kept in a file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from ttc.approximate.branch_confidence import clear_leader
from ttc.calibration.file import CalibrationFile
from ttc.calibration.statistics import check_counts, clopper_pearson, quantile, quantiles
from ttc.errors import InvalidInput

NEVER = 2.0
"""A tau_conf that no probability reaches."""


@dataclass(frozen=True)
class Observation:
    """One held-out problem: what the gate sees of it, and whether both ways of rating choose the same solution."""

    max_p: float
    gap: float
    agrees: bool


@dataclass(frozen=True)
class GateCalibration(CalibrationFile):
    """Thresholds, what they were found on, and how often the gate changed the chosen solution there.

    model, dataset: the names that a run must have to use it. problems: held-out problems it was made from.
    quantiles: the minimum, quartiles and maximum of "max_p" and "gap" over them. max_disagreement: the bound that the
    thresholds were chosen under; None for RKSC's percentiles.
    checked: problems on which the gate was then compared with full verification; skipped: of these, those that it
    skips; disagreements: of those, the ones where another solution is chosen. disagreement_bound: with 95% confidence,
    at most this share of problems (the verified ones counted) ends with another solution.
    settings: the search, verifier, data set, seed and so on that it was made with; the counts hold for them, and
    `check_use` compares a run with them.
    """

    model: str
    dataset: str
    tau_conf: float
    r_gap: float
    problems: int
    quantiles: dict[str, list[float]]
    max_disagreement: float | None
    checked: int
    skipped: int
    disagreements: int
    disagreement_bound: float
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("tau_conf", "r_gap"):
            check_threshold(name, getattr(self, name))
        check_counts(
            disagreements=self.disagreements, skipped=self.skipped, checked=self.checked, problems=self.problems
        )


def calibrate(
    observations: Sequence[Observation],
    *,
    model: str,
    dataset: str,
    max_disagreement: float | None = None,
    settings: dict[str, Any] | None = None,
) -> GateCalibration:
    """Thresholds from held-out problems, and how often they disagree with full verification.

    max_disagreement: None for RKSC's percentiles of all problems; these do not look at agreement, and the count is of
    the same problems. Otherwise the thresholds are `risk_controlled` on every other problem, and the count is of those
    in between: a choice that was made for having few disagreements must be counted where it was not made.
    """
    if max_disagreement is not None and not 0 <= max_disagreement <= 1:
        raise InvalidInput(f"max_disagreement={max_disagreement} must lie in [0, 1]")
    least = 1 if max_disagreement is None else 2
    if len(observations) < least:
        raise InvalidInput(f"{len(observations)} held-out problems gave an observation; at least {least} are needed")
    if max_disagreement is None:
        checked = observations
        tau_conf, r_gap = percentiles(observations)
    else:
        checked = observations[1::2]
        tau_conf, r_gap = risk_controlled(observations[::2], max_disagreement)
    skipped = [o for o in checked if clear_leader(o.max_p, o.gap, tau_conf, r_gap)]
    disagreements = sum(not o.agrees for o in skipped)
    return GateCalibration(
        model,
        dataset,
        tau_conf,
        r_gap,
        len(observations),
        {
            "max_p": quantiles([o.max_p for o in observations]),
            "gap": quantiles([o.gap for o in observations]),
        },
        max_disagreement,
        len(checked),
        len(skipped),
        disagreements,
        clopper_pearson(disagreements, len(checked)),
        settings or {},
    )


def percentiles(observations: Sequence[Observation]) -> tuple[float, float]:
    """RKSC's thresholds (section 2.3): tau_conf the 75th percentile of max p, r_gap the 25th of the gap.

    Between two observations they are interpolated. At most a quarter of the calibration problems lie above the 75th
    percentile, so the gate skips no more of them (ties aside); the paper reports 42% to 92% on its evaluation sets.
    """
    return quantile([o.max_p for o in observations], 0.75), quantile([o.gap for o in observations], 0.25)


def risk_controlled(observations: Sequence[Observation], max_disagreement: float) -> tuple[float, float]:
    """The (tau_conf, r_gap) that skips most problems while at most `max_disagreement` of all problems are skipped and
    disagree.

    Candidates are the observed values. Of equals: fewer disagreements, then higher thresholds. (NEVER, 0) if even the
    clearest problem disagrees.
    """
    best = (0, 0, NEVER, 0.0)  # skipped, -disagreements, tau_conf, r_gap
    for tau_conf in {o.max_p for o in observations}:
        eligible = sorted((o for o in observations if o.max_p >= tau_conf), key=lambda o: -o.gap)
        skipped = disagreements = 0
        for r_gap, tied in groupby(eligible, key=lambda o: o.gap):
            for observation in tied:
                skipped += 1
                disagreements += not observation.agrees
            if disagreements / len(observations) > max_disagreement:
                break
            best = max(best, (skipped, -disagreements, tau_conf, r_gap))
    return best[2], best[3]


def check_threshold(name: str, value: float) -> None:
    """Refuse what is no threshold: it must be a number of at least 0; above 1 it is never reached."""
    if not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InvalidInput(f"{name}={value!r} must be a number of at least 0 (above 1: never skip)")
