"""RLHFlow's process reward models: Llama3.1-8B-PRM-Deepseek-Data and -Mistral-Data (Xiong et al.,
2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ttc.errors import UnsupportedModel
from verifiers.reward_model import RewardModel

GOOD, BAD = "+", "-"


@dataclass(eq=False)
class RLHFlowPRM(RewardModel):
    """P(+) against P(-) as the answer to each step.

    A step is a message of the user, the first one after the question. Each is answered with "+",
    and its score is read where that answer is predicted: at the last token of the answer's header.
    The authors take the mean over the steps.

    Rates: each step: P(+) by Llama3.1-8B-PRM-Deepseek-Data or -Mistral-Data.
    Cost: the new tokens.
    Use it where: figures are compared with those of papers that used it, with
        `search.aggregation=mean`.
    """

    model: Any = "RLHFlow/Llama3.1-8B-PRM-Deepseek-Data"
    headed: ClassVar[bool] = False
    offset: ClassVar[int] = -3  # "\\n\\n" of the header, "+", the end of the turn

    def check_tokenizer(self) -> None:
        good, _ = self.single(GOOD), self.single(BAD)
        text = self._chat("?", ["1"])
        if self.templated(text)[-2:-1] != [good]:
            raise UnsupportedModel(
                f"the chat template writes {text!r}, which is not RLHFlowPRM's format; give the "
                "reward model's own tokenizer"
            )

    def closed(self, question: str, steps: Sequence[str]) -> list[int]:
        return self.templated(self._chat(question, steps))

    def _chat(self, question: str, steps: Sequence[str]) -> str:
        messages = []
        for place, step in enumerate(steps):
            asked = step if place else f"{question} {step}"
            messages.append({"role": "user", "content": asked})
            messages.append({"role": "assistant", "content": GOOD})
        return self.chat(messages)

    def score(self, output: Tensor) -> float:
        return self.first_share(output, GOOD, BAD)
