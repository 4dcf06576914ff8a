"""Skywork-o1-Open-PRM (Skywork, 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from verifiers.token_prm import Format, MarkedSteps


@dataclass(eq=False)
class SkyworkPRM(MarkedSteps):
    """The sigmoid of a value head at the line break that ends each step.

    Question, steps and line breaks are encoded apart, as the authors' `prepare_input` does
    (SkyworkAI/skywork-o1-prm-inference, model_utils/io_utils.py). By it every line is a step as it
    is written, also an empty one, once it has begun. With another separator, steps come without the
    blanks around them, and a line break within a step becomes a space.

    Rates: each step: P(correct) by Skywork-o1-Open-PRM, 1.5B or 7B.
    Cost: the new tokens.
    Use it where: problems are mathematics, and the machine is small.
    """

    model: Any = "Skywork/Skywork-o1-Open-PRM-Qwen-2.5-1.5B"
    separator: str = "\n"

    published: ClassVar[Format] = Format(
        mark="\n", good=0, bad=(), template="{bos}{question}\n{steps}", apart=True
    )

    def split(self, text: str, finished: bool) -> tuple[list[str], str | None]:
        if self.separator != "\n":
            return super().split(text, finished)
        *ended, rest = text.rstrip("\ufffd").split("\n")
        if finished:
            return [*ended, rest], None
        return ended, rest if rest or not ended else None
