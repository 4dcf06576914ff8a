"""Qwen2.5-Math-PRM (Zhang et al., 2025, "The Lessons of Developing Process Reward Models")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from verifiers.token_prm import Format, MarkedSteps

SYSTEM = r"Please reason step by step, and put your final answer within \boxed{}."


@dataclass(eq=False)
class QwenPRM(MarkedSteps):
    """P(correct) of each step: the softmax of the head's two outputs at the step's `<extra_0>`.

    The model is loaded as a plain Qwen2 with a head of two layers. The code on the hub, which newer
    releases of transformers cannot run, is not needed.

    Rates: each step: P(correct) by Qwen2.5-Math-PRM-7B or -72B.
    Cost: the new tokens.
    Use it where: problems are mathematics.
    """

    model: Any = "Qwen/Qwen2.5-Math-PRM-7B"

    published: ClassVar[Format] = Format(
        mark="<extra_0>",
        good=1,
        bad=0,
        template=[
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": "{question}"},
            {"role": "assistant", "content": "{steps}"},
        ],
        apart=True,
    )
