"""CGEE level 1 (RKSC, section 2.3): no verification where the model's own confidence decides already."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

from ttc.approximate.branch_confidence import clear_leader, confidence, gap_ratio
from ttc.calibration.confidence_gate import GateCalibration, check_threshold
from ttc.checks import check_kind
from ttc.errors import InvalidInput, VerifierError
from ttc.protocols import Backend, Forgets, Need, Priced, Verifier
from ttc.tree.branch import Branch, by_problem


@dataclass
class ConfidenceGatedVerifier:
    """Rates a problem's branches by their p alone where p is decisive, by `inner` where it is not. Approximate.

    A problem is what stands on one root: all branches with one `root_id`. At its first rating it is skipped when
    max p >= tau_conf and (max - second) / max >= r_gap (RKSC, Eq. 4; p is `confidence`, the gap `gap_ratio`), and that
    decision holds for all of its later ratings. A search compares scores of different steps, a finished beam's with
    those of longer ones; p and the inner verifier's scores have no common scale, so no problem gets both.

    A skipped problem gets one score per branch, p itself, whatever the search's aggregation; a verified one gets the
    scores of `inner`, unchanged. `inner` is called once per request, with the branches of all problems that it must
    rate, and not at all when there are none.

    tau_conf, r_gap: thresholds; 0 and 0 always skip, a tau_conf above 1 never does. They belong to a model and a data
    set: means over tens of tokens differ by a few percent, so that the defaults hardly ever skip. calibration: found
    on held-out problems (`ttc.calibration.confidence_gate`); takes the place of both.
    calls, skips: ratings of a problem asked so far, and those answered without `inner`; the latter are also counted in
    the problem's `usage.verifications_skipped`. A rating that failed counts in neither.
    Raises InvalidInput for thresholds that are none, or when `inner` is a gate itself.
    """

    inner: Verifier
    tau_conf: float = 0.9
    r_gap: float = 0.1
    calibration: GateCalibration | None = None
    calls: int = field(default=0, init=False)
    skips: int = field(default=0, init=False)
    decisions: dict[int, bool] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.calibration is not None:
            self.tau_conf, self.r_gap = self.calibration.tau_conf, self.calibration.r_gap
        check_threshold("tau_conf", self.tau_conf)
        check_threshold("r_gap", self.r_gap)
        check_kind("inner", self.inner, callable(getattr(self.inner, "rate", None)), "a verifier, as SelfVerifier()")
        if isinstance(self.inner, ConfidenceGatedVerifier):
            raise InvalidInput("the inner verifier is a confidence gate itself; give it the verifier to be skipped")

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the gate and the inner verifier need of a backend."""
        return ("logprobs", *getattr(self.inner, "needs", ()))

    def rate(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> list[Sequence[float]]:
        p = [confidence(branch) for branch in branches]
        problems = by_problem(branches)
        skipped = [rows for rows in problems if self._skips(branches[rows[0]], [p[row] for row in rows])]
        without = {row for rows in skipped for row in rows}
        rest = [row for row in range(len(branches)) if row not in without]
        scores: list[Sequence[float]] = [[value] for value in p]
        if rest:
            found = self.inner.rate([branches[row] for row in rest], [questions[row] for row in rest], backend)
            if len(found) != len(rest):
                name = type(self.inner).__name__
                raise VerifierError(f"{name} returned {len(found)} ratings for {len(rest)} branches")
            for row, steps in zip(rest, found, strict=True):
                scores[row] = steps
        self.calls += len(problems)
        self.skips += len(skipped)
        for rows in skipped:
            branches[rows[0]].usage.verifications_skipped += 1
        return scores

    def price(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> int:
        """What the inner verifier would take; it may be skipped."""
        return self.inner.price(branches, questions, backend) if isinstance(self.inner, Priced) else 0

    def released(self, branches: Sequence[Branch]) -> None:
        """Pass on that branches were let go."""
        if isinstance(self.inner, Forgets):
            self.inner.released(branches)

    def _skips(self, branch: Branch, p: Sequence[float]) -> bool:
        """Whether the problem of `branch` is skipped: decided when it is first asked, forgotten when the problem is."""
        problem = branch.root_id
        if problem not in self.decisions:
            self.decisions[problem] = clear_leader(max(p), gap_ratio(p), self.tau_conf, self.r_gap)
            weakref.finalize(branch.usage, self.decisions.pop, problem)
        return self.decisions[problem]
