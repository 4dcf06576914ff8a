"""How sure the model was of a branch, and by how much the best branch leads (RKSC, Eqs. 3 and
4)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ttc.branch import Branch


def confidence(branch: Branch) -> float:
    """p of RKSC's Eq. 3, in [0, 1]: the mean top-1 probability over the branch's own tokens."""
    return mean_of_own(branch.top1)


def mean_of_own(values: Sequence[float]) -> float:
    """The mean over generated tokens; given ones are NaN. 0 if there are none."""
    generated = [value for value in values if not math.isnan(value)]
    return sum(generated) / len(generated) if generated else 0.0


def gap_ratio(p: Sequence[float]) -> float:
    """(max - second) / max of RKSC's Eq. 4, in [0, 1]; 1 for one branch, 0 for a maximum of 0."""
    first, second = sorted([*p, 0.0], reverse=True)[:2]
    return (first - second) / first if first > 0 else 0.0


def clear_leader(max_p: float, gap: float, least_p: float, r_gap: float) -> bool:
    """RKSC's Eq. 4: whether a problem's best branch is confident, and well ahead of the second.
    least_p, r_gap: the thresholds of max_p and gap."""
    return max_p >= least_p and gap >= r_gap
