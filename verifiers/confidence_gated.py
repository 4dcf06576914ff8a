"""CGEE level 1 (RKSC, section 2.3): no verification where the model's confidence decides."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ttc.approximate.branch_confidence import clear_leader, confidence, gap_ratio
from ttc.backend import Backend, Need
from ttc.branch import Branch
from ttc.calibration.gate_calibration import GateCalibration, Threshold
from ttc.checks import check_kind
from ttc.errors import VerifierError, number_of
from ttc.passes.ratings import pass_by_pass, passes_of_rating
from ttc.protocols import Verifier, score_range
from ttc.task import Passes
from ttc.tree.branch import by_problem
from verifiers.ensemble import Combined


@dataclass
class ConfidenceGatedVerifier(Combined):
    """Rates a problem's branches by their p where p is decisive, else by `inner`. Approximate.

    At the first rating of a problem (all branches with one `root_id`) it is skipped when max p >=
    tau_conf and (max - second) / max >= r_gap (RKSC, Eq. 4; p is `confidence`, the gap
    `gap_ratio`). The decision holds for all of its ratings, as p and the inner verifier's scores
    have no common scale. A skipped problem gets one score per branch, p.
    inner: the verifier that may be skipped.
    tau_conf, r_gap: thresholds; 0 and 0 always skip, a tau_conf above 1 never does. They belong to
        a model and a data set, so the defaults hardly ever skip.
    calibration: thresholds from held-out problems (`ttc.calibration.gate_calibration`), in the
        place of both.
    calls, skips: how often a problem was rated, and how often without `inner`; the latter is also
        counted in `usage.verifications_skipped`. A rating that failed counts in neither.

    Rates: as its inner verifier, which it skips where the model is confident (approximate).
    Cost: that of the other verifier, or none.
    Use it where: ratings take much of the time.
    """

    inner: Verifier
    tau_conf: Threshold = 0.9
    r_gap: Threshold = 0.1
    calibration: GateCalibration | None = None
    calls: int = field(default=0, init=False)
    skips: int = field(default=0, init=False)
    decisions: dict[int, bool] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.calibration is not None:
            self.tau_conf = self.calibration.tau_conf
            self.r_gap = self.calibration.r_gap
        super().__post_init__()
        is_verifier = callable(getattr(self.inner, "rate", None))
        check_kind("inner", self.inner, is_verifier, "a verifier, as SelfVerifier()")

    def refusals(self) -> Mapping[str, object]:
        nested = isinstance(self.inner, ConfidenceGatedVerifier)
        return {"the inner verifier is a confidence gate itself; give its own": nested}

    def verifiers(self) -> Sequence[Verifier]:
        return [self.inner]

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("logprobs", *super().needs)

    @property
    def score_range(self) -> tuple[float, float] | None:
        inner = score_range(self.inner)
        return None if inner is None else (min(0.0, inner[0]), max(1.0, inner[1]))

    @pass_by_pass
    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> Passes[list[Sequence[float]]]:
        p = [confidence(branch) for branch in branches]
        scores: list[Sequence[float]] = [[value] for value in p]
        problems = by_problem(branches)
        skipped = [
            rows for rows in problems if self._skips(branches[rows[0]], [p[row] for row in rows])
        ]
        verified = sorted(set(range(len(branches))) - {row for rows in skipped for row in rows})
        if verified:
            chosen = [branches[row] for row in verified]
            texts = [questions[row] for row in verified]
            rated = yield from passes_of_rating(self.inner, chosen, texts, backend)
            if len(rated) != len(verified):
                name = type(self.inner).__name__
                raise VerifierError(
                    f"{name} returned {number_of(len(rated), 'rating')} for "
                    f"{number_of(len(verified), 'branch', 'branches')}"
                )
            for row, steps in zip(verified, rated, strict=True):
                scores[row] = steps
        self.calls += len(problems)
        self.skips += len(skipped)
        for rows in skipped:
            branches[rows[0]].usage.verifications_skipped += 1
        return scores

    def _skips(self, branch: Branch, p: Sequence[float]) -> bool:
        """The decision for a branch's problem, forgotten when the problem is."""
        problem = branch.root_id
        if problem not in self.decisions:
            skips = clear_leader(max(p), gap_ratio(p), self.tau_conf, self.r_gap)
            self.decisions[problem] = skips
            weakref.finalize(branch.usage, self.decisions.pop, problem)
        return self.decisions[problem]
