"""Math-Shepherd (Wang et al., 2024)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from verifiers.reward_model import RewardModel

GOOD = "+"
BAD = "-"
STEP_END = "ки"
NUMBERED = re.compile(r"Step \d+:")


@dataclass(eq=False)
class MathShepherd(RewardModel):
    """P(+) against P(-) at the `ки` that ends each step of
    "QUESTION Step 1: ... ки\\nStep 2: ... ки".

    The text is encoded as a whole: SentencePiece puts a blank before whatever it encodes alone.

    Rates: each step: P(+) by math-shepherd-mistral-7b-prm.
    Cost: the new tokens.
    Use it where: figures are compared with those of papers that used it.
    """

    model: Any = "peiyi9979/math-shepherd-mistral-7b-prm"
    headed: ClassVar[bool] = False

    def check_tokenizer(self) -> None:
        for text in (STEP_END, GOOD, BAD):
            self.single(text)

    def closed(self, question: str, steps: Sequence[str]) -> list[int]:
        plain = numbered([step.replace(STEP_END, "") for step in steps])
        return self.whole(f"{question} " + f" {STEP_END}\n".join(plain) + f" {STEP_END}")

    def score(self, output: Tensor) -> float:
        return self.first_share(output, GOOD, BAD)


def numbered(steps: Sequence[str]) -> list[str]:
    return [
        step if NUMBERED.match(step) else f"Step {number}: {step}"
        for number, step in enumerate(steps, start=1)
    ]
