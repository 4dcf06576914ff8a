"""How sure the model was of what it wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ttc.approximate.confidence import mean_of_own
from ttc.errors import InvalidInput
from ttc.protocols import Backend, Need
from ttc.tree.branch import Branch


@dataclass(frozen=True)
class ConfidenceVerifier:
    """Rates each step by the mean over its tokens of "top1", the model's highest probability at each place (RKSC's p),
    or of "logprob", the log-probability of the token itself. A step without generated tokens rates 0.
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
        return [mean_of_own(values[a:b]) for a, b in zip([0, *ends], ends, strict=False)]
