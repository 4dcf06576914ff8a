"""The confidence gate's thresholds for one model and data set, from held-out problems."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any

from annotated_types import Interval

from ttc.approximate.branch_confidence import clear_leader
from ttc.calibration.calibration_file import CalibrationFile, chosen_and_checked
from ttc.calibration.error_bounds import check_counts, clopper_pearson, quantile, quantiles
from ttc.checks import check_option

NEVER = 2.0
"""A tau_conf that no probability reaches."""


Threshold = Annotated[float, Interval(ge=0, lt=math.inf)]
"""Of a confidence or a gap; one above 1 is never reached."""


@dataclass(frozen=True)
class Observation:
    """One held-out problem: what the gate sees of it, and whether both ways of rating choose the
    same solution."""

    max_p: float
    gap: float
    agrees: bool


@dataclass(frozen=True, kw_only=True)
class GateCalibration(CalibrationFile):
    """Thresholds of a `ConfidenceGatedVerifier`; quantiles are those of "max_p" and "gap".

    skipped: of the checked problems, those that the gate skips.
    """

    tau_conf: float
    r_gap: float
    skipped: int

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("tau_conf", "r_gap"):
            check_option(name, getattr(self, name), Threshold)
        check_counts(disagreements=self.disagreements, skipped=self.skipped, checked=self.checked)


def calibrate(
    observations: Sequence[Observation],
    *,
    model: str,
    dataset: str,
    max_disagreement: float | None = None,
    settings: dict[str, Any] | None = None,
) -> GateCalibration:
    """Thresholds from held-out problems, and how often they disagree with full verification.

    max_disagreement: None for RKSC's `percentiles`, else the thresholds are `risk_controlled` (see
    `chosen_and_checked`).
    """
    chosen_on, checked = chosen_and_checked(observations, max_disagreement)
    if max_disagreement is None:
        tau_conf, r_gap = percentiles(chosen_on)
    else:
        tau_conf, r_gap = risk_controlled(chosen_on, max_disagreement)
    skipped = [o for o in checked if clear_leader(o.max_p, o.gap, tau_conf, r_gap)]
    disagreements = sum(not o.agrees for o in skipped)
    return GateCalibration(
        model=model,
        dataset=dataset,
        tau_conf=tau_conf,
        r_gap=r_gap,
        problems=len(observations),
        quantiles={
            "max_p": quantiles([o.max_p for o in observations]),
            "gap": quantiles([o.gap for o in observations]),
        },
        max_disagreement=max_disagreement,
        checked=len(checked),
        skipped=len(skipped),
        disagreements=disagreements,
        disagreement_bound=clopper_pearson(disagreements, len(checked)),
        settings=settings or {},
    )


def percentiles(observations: Sequence[Observation]) -> tuple[float, float]:
    """RKSC's thresholds (section 2.3): the 75th percentile of max p, the 25th of the gap.

    At most a quarter of the calibration problems lie above the 75th percentile, so the gate skips
    no more of them (ties aside); the paper reports 42% to 92% on its evaluation sets.
    """
    tau_conf = quantile([o.max_p for o in observations], 0.75)
    return tau_conf, quantile([o.gap for o in observations], 0.25)


def risk_controlled(
    observations: Sequence[Observation], max_disagreement: float
) -> tuple[float, float]:
    """The (tau_conf, r_gap) that skips most problems while at most `max_disagreement` of all
    problems are skipped and disagree.

    Candidates are the observed values. Of equals: fewer disagreements, then higher thresholds.
    (NEVER, 0) if even the clearest problem disagrees.
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
