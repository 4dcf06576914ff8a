"""Skywork-o1-Open-PRM (Skywork, 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ttc.errors import UnsupportedModel
from verifiers.reward_model import RewardModel


@dataclass(eq=False)
class SkyworkPRM(RewardModel):
    """The sigmoid of a value head at the line break that ends each step.

    Question, steps and line breaks are encoded apart from each other, as in training. A line break within a step would
    be read as a step's end; it becomes a space.
    """

    model: Any = "Skywork/Skywork-o1-Open-PRM-Qwen-2.5-1.5B"
    separator: str = "\n"

    def check_tokenizer(self) -> None:
        self.single("\n")
        if getattr(self.tokenizer, "bos_token", None) is None:
            raise UnsupportedModel(
                "the tokenizer has no bos_token, with which SkyworkPRM's texts begin; give the model's"
            )

    def closed(self, question: str, steps: Sequence[str]) -> list[int]:
        return [*self.opened(question, steps), self.single("\n")]

    def opened(self, question: str, steps: Sequence[str]) -> list[int]:
        tokens = list(self.encode(f"{self.tokenizer.bos_token}{question}\n"))
        for place, step in enumerate(steps):
            tokens += [self.single("\n")] * (place > 0) + self.encode(" ".join(step.splitlines()))
        return tokens

    def score(self, output: Tensor) -> float:
        return float(output.float().sigmoid()[0])
