"""Early answers (Zhang et al., 2025): a chain of thought that ends once a probe of the model's
hidden states says that it is right."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from search.base import COUNT, Case, Limit, SearchSteps, StepwiseSearch
from ttc.errors import BudgetExceeded, ContextExceeded
from ttc.protocols import Aggregation, Append, Expand, Rate, Release, Step
from ttc.tree.branch import Branch


@dataclass(frozen=True)
class EarlyAnswer(StepwiseSearch):
    """One chain that is rated after each of its steps, and asked for its answer as soon as the
    score is `threshold` or more, at the latest after `max_steps` steps.

    The verifier is the probe: `ValueHead`, which reads the last hidden state at the end of each
    step, or any other with scores on a scale that is known. The end of thinking and `final` are put
    after the chain, and the answer has `answer_tokens` tokens. A chain that ends by itself is left
    alone.
    """

    limits: ClassVar = {"answer_tokens": COUNT, "threshold": Limit()}

    thinking_step: int | str | None = "paragraph"
    threshold: float = 0.85
    step_tokens: int = 256
    max_steps: int = 64
    delimiter: str | None = "\n\n"
    answer_tokens: int = 64
    aggregation: Aggregation = "last"

    def run(self, root: Branch, case: Case) -> SearchSteps:
        step, chain = case.step(self.step_tokens, self.delimiter), [root]
        with suppress(BudgetExceeded, ContextExceeded):
            for _ in range(self.max_steps):
                chain += yield Expand(chain[-1:], 1, step, self.sampling)
                yield Release(chain[-2:-1])
                if chain[-1].finished:
                    return chain[-1:]
                (score,) = yield Rate(chain[-1:], self.aggregation)
                if score >= self.threshold:
                    break
            thoughts = case.thoughts
            open_thought = thoughts is not None and chain[-1].thinks(thoughts)
            closing = thoughts.marks.closing if thoughts is not None and open_thought else ""
            words = f"{closing}\n\n{self.final}"
            chain += yield Append(chain[-1:], words, ends_thinking=True)
            yield Release(chain[-2:-1])
            chain += yield Expand(
                chain[-1:], 1, Step(self.answer_tokens, end=case.end), self.sampling
            )
            yield Release(chain[-2:-1])
        return [branch for branch in chain[-1:] if branch is not root]
