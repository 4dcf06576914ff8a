"""Math-Shepherd (Wang et al., 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from verifiers.token_prm import Format, MarkedSteps


@dataclass(eq=False)
class MathShepherd(MarkedSteps):
    """P(+) against P(-) at the `ки` that ends each step of
    "QUESTION Step 1: ... ки\\nStep 2: ... ки".

    The text is encoded as a whole: SentencePiece puts a blank before whatever it encodes alone.

    Rates: each step: P(+) by math-shepherd-mistral-7b-prm.
    Cost: the new tokens.
    Use it where: figures are compared with those of papers that used it.
    """

    model: Any = "peiyi9979/math-shepherd-mistral-7b-prm"

    published: ClassVar[Format] = Format(
        mark="ки",
        template="{question} {steps}",
        step="Step {number}: {step} {mark}\n",
        instead="",
    )
