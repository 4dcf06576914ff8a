"""How sure the model was of what it wrote."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ttc.approximate.branch_confidence import mean_of_own
from ttc.backend import Backend, Need
from ttc.branch import Branch
from ttc.checks import Options

WORST = {"top1": 0.0, "logprob": math.log(sys.float_info.min)}
"""Below what any token rates; finite, also after scores were added up."""


@dataclass(frozen=True)
class ConfidenceVerifier(Options):
    """Rates each step by a mean over its tokens.

    metric: "top1", the model's highest probability at each place (RKSC's p), or "logprob", the
    log-probability of the token itself.
    A step without generated tokens, and every step of a blank branch, rates `WORST`: to end at
    once is no answer, however sure the model is of it.

    Rates: each step: how likely its tokens were.
    Cost: no tokens.
    Use it where: a baseline is needed.
    """

    needs: ClassVar[tuple[Need, ...]] = ("logprobs",)

    metric: Literal["top1", "logprob"] = "top1"

    @property
    def score_range(self) -> tuple[float, float]:
        return (0.0, 1.0) if self.metric == "top1" else (-math.inf, 0.0)

    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> list[list[float]]:
        return list(map(self._rate_steps, branches))

    def _rate_steps(self, branch: Branch) -> list[float]:
        values = branch.top1 if self.metric == "top1" else branch.logprobs
        ends = [end - branch.prompt_length for end in branch.step_ends] or [len(values)]
        steps = [values[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        worst, blank = WORST[self.metric], not branch.text.strip()
        return [worst if blank or all(map(math.isnan, x)) else mean_of_own(x) for x in steps]
