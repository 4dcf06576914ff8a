"""RLHFlow's process reward models: Llama3.1-8B-PRM-Deepseek-Data and -Mistral-Data (Xiong et al.,
2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from verifiers.token_prm import Format, MarkedSteps


@dataclass(eq=False)
class RLHFlowPRM(MarkedSteps):
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

    published: ClassVar[Format] = Format(
        mark="+",
        template=[{"role": "user", "content": "{question} {steps}"}],
        read="before",
        turns=True,
    )
