"""Math-Shepherd (Wang et al., 2024)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from verifiers.reward_model import RewardModel

GOOD, BAD, STEP_END = "+", "-", "ки"
NUMBERED = re.compile(r"Step \d+:")


@dataclass(eq=False)
class MathShepherd(RewardModel):
    """P(+) against P(-) at the `ки` that ends each step of "QUESTION Step 1: ... ки\\nStep 2: ... ки".

    The text is encoded as a whole: SentencePiece puts a blank before whatever it encodes alone. Steps that do not
    begin with "Step N:" get their number.
    """

    model: Any = "peiyi9979/math-shepherd-mistral-7b-prm"
    headed: ClassVar[bool] = False

    def check_tokenizer(self) -> None:
        self.single(STEP_END), self.single(GOOD), self.single(BAD)

    def closed(self, question: str, steps: Sequence[str]) -> list[int]:
        return self.whole(f"{self._text(question, steps)} {STEP_END}")

    def opened(self, question: str, steps: Sequence[str]) -> list[int]:
        return self.whole(self._text(question, steps))

    def _text(self, question: str, steps: Sequence[str]) -> str:
        return f"{question} " + f" {STEP_END}\n".join(numbered([step.replace(STEP_END, "") for step in steps]))

    def score(self, output: Tensor) -> float:
        return float(output[[self.single(GOOD), self.single(BAD)]].float().softmax(-1)[0])


def numbered(steps: Sequence[str]) -> list[str]:
    """The steps, each beginning with "Step N:"."""
    return [s if NUMBERED.match(s) else f"Step {number}: {s}" for number, s in enumerate(steps, start=1)]
