"""RLHFlow's process reward models: Llama3.1-8B-PRM-Deepseek-Data and -Mistral-Data (Xiong et al., 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from verifiers.reward_model import MARK, RewardModel

GOOD, BAD = "+", "-"


@dataclass(eq=False)
class RLHFlowPRM(RewardModel):
    """P(+) against P(-) as the answer to each step.

    A step is a message of the user, the first one after the question. It is answered with "+" whatever its score, and
    the score is read where that answer is predicted: at the last token of the answer's header. The authors take the
    mean over the steps.
    """

    model: Any = "RLHFlow/Llama3.1-8B-PRM-Deepseek-Data"
    headed: ClassVar[bool] = False
    offset: ClassVar[int] = -3  # "\\n\\n" of the header, "+", the end of the turn

    def check_tokenizer(self) -> None:
        self.single(GOOD), self.single(BAD)
        text = self.chat(self._messages("?", ["1"]))
        tokens = self.templated(text)
        if tokens[-2:-1] != [self.single(GOOD)]:
            raise self.unknown_template(text)

    def closed(self, question: str, steps: Sequence[str]) -> list[int]:
        return self.templated(self.chat(self._messages(question, steps)))

    def opened(self, question: str, steps: Sequence[str]) -> list[int]:
        return self.templated(self.chat(self._messages(question, [*steps[:-1], steps[-1] + MARK])))

    def _messages(self, question: str, steps: Sequence[str]) -> list[dict[str, str]]:
        messages = []
        for place, step in enumerate(steps):
            asked = f"{question} {step}" if place == 0 else step
            messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": GOOD}]
        return messages

    def score(self, output: Tensor) -> float:
        return float(output[[self.single(GOOD), self.single(BAD)]].float().softmax(-1)[0])
