"""How sure the model was of what it wrote."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ttc.approximate.branch_confidence import mean_of_own
from ttc.errors import InvalidInput
from ttc.protocols import Backend, Need
from ttc.tree.branch import Branch

WORST = {"top1": 0.0, "logprob": math.log(sys.float_info.min)}
"""Below what any token rates; scores must be finite, also after they were added up."""


@dataclass(frozen=True)
class ConfidenceVerifier:
    """Rates each step by the mean over its tokens of "top1", the model's highest probability at each place (RKSC's p),
    or of "logprob", the log-probability of the token itself.

    A step without generated tokens, and every step of a branch whose text is empty or blank, rates `WORST`: to end at
    once, however sure the model is of it, is no answer.
    """

    needs: ClassVar[tuple[Need, ...]] = ("logprobs",)

    metric: Literal["top1", "logprob"] = "top1"

    def __post_init__(self) -> None:
        if self.metric not in ("top1", "logprob"):
            raise InvalidInput(f"metric={self.metric!r} is unknown; use top1 or logprob")

    def rate(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> list[list[float]]:
        return [self._steps(branch) for branch in branches]

    def _steps(self, branch: Branch) -> list[float]:
        values = branch.top1 if self.metric == "top1" else branch.logprobs
        ends = [end - branch.prompt_length for end in branch.step_ends] or [len(values)]
        steps = [values[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        worst, silent = WORST[self.metric], not branch.text.strip()
        return [worst if silent or all(map(math.isnan, step)) else mean_of_own(step) for step in steps]
