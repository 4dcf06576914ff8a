"""RKSC's decode-level gate (appendix I.1): branches that have fallen behind stop decoding.
Approximate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ttc.approximate.branch_confidence import clear_leader, confidence, gap_ratio
from ttc.branch import Branch
from ttc.checks import NonNegativeFloat, Options, PositiveInt


@dataclass(frozen=True)
class DecodeGate(Options):
    """While a problem's branches decode, stop those that trail a clear leader.

    After each token: once max p >= theta and (max - second) / max >= r_gap, p being the mean top-1
        probability of a branch's own tokens so far, all of the problem's branches in this step but
        the leader finish, with `finish_reason` "gate" (the paper stops the leader too). Of a step
        in parts (thoughts with a limit, calls of tools) those are compared whose parts began
        together; so here alone the memory policy may change what is stopped.

    theta, r_gap: these thresholds.
    min_tokens: each branch's own tokens before the gate looks.
    """

    setting_of: ClassVar[str] = "gate."

    theta: NonNegativeFloat = 0.72
    r_gap: NonNegativeFloat = 0.10
    min_tokens: PositiveInt = 1

    def losers(self, problem: Sequence[Branch]) -> list[Branch]:
        """Those of a problem's branches that stop now. Who was stopped before is no rival."""
        rivals = [branch for branch in problem if not branch.gated]
        if len(rivals) < 2 or any(len(branch.generated) < self.min_tokens for branch in rivals):
            return []
        p = [confidence(branch) for branch in rivals]
        if not clear_leader(max(p), gap_ratio(p), self.theta, self.r_gap):
            return []
        leader = p.index(max(p))
        return [branch for i, branch in enumerate(rivals) if i != leader and not branch.finished]
