"""A language model that grades solutions by a rubric (Zheng et al., 2023).

The expected grade is that of G-Eval (Liu et al., 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Interval
from torch import Tensor

from ttc.backend import Backend
from ttc.checks import Words
from ttc.engine import Engine
from ttc.errors import InvalidInput, UnsupportedModel
from ttc.text.chat import has_template
from ttc.text.thinking_switch import without_thought
from verifiers.reward_model import RewardModel
from verifiers.reward_model_pass import TreeMirror

RUBRIC = (
    "Grade a solution of a problem. The solution may not be complete yet; then grade it as far as "
    "it goes. Look whether each step follows from the problem and from the steps before it, and "
    "whether each calculation is right."
)


@dataclass(eq=False)
class LLMJudge(RewardModel):
    """The grade that a language model is expected to give, from 0 (grade 1) to 1 (grade `grades`).

    The expectation is over the probabilities of the grades' digits. Rubric, problem and solution
    come first and are shared along the tree.
    model: None for the search's own model, on its own engine. rubric: what the grade is for.
    grades: how many there are, 2 to 9. thoughts: grade a model's thoughts too, and not its answer
    alone.

    Rates: the answer: a grade by a rubric of yours, from any chat model or the search's own.
    Cost: the new tokens and the question.
    Use it where: no reward model was trained for the task.
    """

    model: Any = None
    rubric: Words = RUBRIC
    grades: Annotated[int, Interval(ge=2, le=9)] = 5
    thoughts: bool = False
    headed: ClassVar[bool] = False
    rates_steps: ClassVar[bool] = False

    def mirror(self, backend: Backend) -> TreeMirror:
        if self.model is None and (self._mirror is None or self._mirror[0]() is not backend):
            if not isinstance(backend, Engine):
                name = type(backend).__name__
                raise InvalidInput(f"{name} is no engine, whose model could grade; give a model")
            self._parts = backend.model, backend.tokenizer
            self._encodings.clear()
        return super().mirror(backend)

    def _engine(self, backend: Backend) -> Engine:
        if self.model is None and isinstance(backend, Engine):
            return backend
        return super()._engine(backend)

    def closed(self, question: str, steps: Sequence[str]) -> list[int]:
        solution = "".join(steps)
        text = (
            f"{self.rubric}\n\nProblem:\n{question}\n\nSolution:\n{solution}"
            f"\n\nReply with one number from 1 (worst) to {self.grades} (best)."
        )
        if not has_template(self.tokenizer):
            return self.whole(f"{text}\nGrade:")
        options, closing = without_thought(self.tokenizer)
        chat = self.chat([{"role": "user", "content": text}], answer=True, options=options)
        return self.templated(chat + closing)

    def score(self, output: Tensor) -> float:
        digits = [
            (grade, token) for grade in range(self.grades) for token in self._digit(grade + 1)
        ]
        weights = output[[token for _, token in digits]].double().softmax(-1).tolist()
        expected = sum(grade * weight for (grade, _), weight in zip(digits, weights, strict=True))
        return float(expected / (self.grades - 1))

    def _digit(self, grade: int) -> list[int]:
        last = {self.encode(f"{space}{grade}")[-1] for space in ("", " ")}
        tokens = [t for t in sorted(last) if self.tokenizer.decode([t]).strip() == str(grade)]
        if not tokens:
            raise UnsupportedModel(
                f"the tokenizer has no token for the grade {grade}; use another model as the judge"
            )
        return tokens
