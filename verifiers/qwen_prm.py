"""Qwen2.5-Math-PRM (Zhang et al., 2025, "The Lessons of Developing Process Reward Models")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from verifiers.reward_model import MARK, RewardModel

SYSTEM = r"Please reason step by step, and put your final answer within \boxed{}."
STEP_END = "<extra_0>"


@dataclass(eq=False)
class QwenPRM(RewardModel):
    """P(correct) of each step: the softmax of the head's two outputs at the step's `<extra_0>`.

    The model is loaded as a plain Qwen2 with a head of two layers. The code on the hub, which newer
    releases of transformers cannot run, is not needed.

    Rates: each step: P(correct) by Qwen2.5-Math-PRM-7B or -72B.
    Cost: the new tokens.
    Use it where: problems are mathematics.
    """

    model: Any = "Qwen/Qwen2.5-Math-PRM-7B"

    def check_tokenizer(self) -> None:
        self.single(STEP_END)
        self.chat([{"role": "user", "content": "?"}])

    def closed(self, question: str, steps: Sequence[str]) -> list[int]:
        return [*self.opened(question, steps), self.single(STEP_END)]

    def opened(self, question: str, steps: Sequence[str]) -> list[int]:
        messages = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": question},
            {"role": "assistant", "content": MARK},
        ]
        plain = [step.replace(STEP_END, " ") for step in steps]
        return self.templated(self.chat(messages)) + self.joined(plain, [self.single(STEP_END)])

    def score(self, output: Tensor) -> float:
        return float(output.float().softmax(-1)[1])
