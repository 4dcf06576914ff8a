"""Outcome reward models: classifiers of whole answers (`AutoModelForSequenceClassification`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ttc.errors import UnsupportedModel
from ttc.text.chat import chat_text
from ttc.text.conversation import Talk, chat_of
from verifiers.reward_model import RewardModel


@dataclass(eq=False)
class OutcomeReward(RewardModel):
    """One reward for a whole answer: the head's output at the end of the chat with it. As in
    transformers that is the last token which is not the configuration's `pad_token_id`.

    The reward is any number (a logit), so scores of one model alone compare. `separator` has no
    meaning: there are no steps. system: the model's system text, None for none. thoughts: rate a
    model's thoughts too, and not its answer alone.

    Rates: the answer: the reward of a sequence classifier, as Skywork-Reward-V2 or Qwen2.5-Math-RM.
    Cost: the new tokens and the end of the chat.
    Use it where: whole answers are compared, as in `best_of_n`.
    """

    model: Any = "Skywork/Skywork-Reward-V2-Qwen3-0.6B"
    system: str | None = None
    thoughts: bool = False
    rates_steps: ClassVar[bool] = False
    score_range: ClassVar[tuple[float, float]] = (-math.inf, math.inf)

    def check_tokenizer(self) -> None:
        self.chat([{"role": "user", "content": "?"}])

    def closed(self, question: str, steps: Sequence[str]) -> list[int]:
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        answer = {"role": "assistant", "content": "".join(steps)}
        chat = [*system, *chat_of(question), answer]
        talk = isinstance(question, Talk)  # in roles that the template may not know
        tokens = self.templated(
            chat_text(chat, self.tokenizer, begins_answer=False) if talk else self.chat(chat)
        )
        pad = self.parts[0].config.get_text_config().pad_token_id
        end = len(tokens)
        while end > 1 and tokens[end - 1] == pad:
            end -= 1
        return tokens[:end]

    def score(self, output: Tensor) -> float:
        if output.numel() != 1:
            raise UnsupportedModel(
                f"the head gives {output.numel()} numbers, not one reward; give a model with "
                "num_labels=1"
            )
        return float(output[0])
