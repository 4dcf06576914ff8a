"""Self-Refine (Madaan et al., 2023): the model criticises its own answer and rewrites it."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace

from search.base import Case, Search, SearchSteps
from search.turns import ask
from ttc.branch import Branch
from ttc.checks import PositiveInt, Words
from ttc.errors import BudgetExceeded
from ttc.protocols import Expand, Release

CRITICISE = (
    "Check this solution step by step. Say what is wrong with it; if nothing is, end with 'it is "
    "correct'. Do not solve the problem again."
)
REWRITE = (
    "Now write the whole solution again without these mistakes, with the final answer at its end."
)


@dataclass(frozen=True)
class SelfRefine(Search):
    """Answer, criticise, rewrite, until the model says `done` of its answer.

    The answer that was confirmed is returned, else the last one. The search also ends where the
    model's context has no room left.

    attempts: the most answers. feedback: asks for a critique. feedback_tokens: the most tokens of
        a critique. done: what is looked for in a critique, whatever its case. rewrite: asks for the
        next answer.

    Tokens: attempts x L + (attempts - 1) x feedback_tokens.
    Use it where: there is no verifier, and the model judges well.
    """

    attempts: PositiveInt = 4
    max_tokens: int = 256
    feedback_tokens: PositiveInt = 128
    feedback: Words = CRITICISE
    rewrite: Words = REWRITE
    done: Words = "it is correct"

    needs_verifier = False

    def run(self, root: Branch, case: Case) -> SearchSteps:
        answers: list[Branch] = []
        start = root
        step = case.answer(self.max_tokens)
        criticise = replace(case.answer(self.feedback_tokens), end=(), is_answer=False)
        with suppress(BudgetExceeded):
            while True:
                (answer,) = yield Expand([start], 1, step, self.sampling)
                yield Release([start, *answers[-1:]])
                answers.append(answer)
                if len(answers) == self.attempts:
                    break
                (turn,) = yield from ask([answer], self.feedback)
                if turn is None:
                    break
                (critique,) = yield Expand([turn], 1, criticise, self.sampling)
                yield Release([turn])
                if self._is_done(critique.answer_text or ""):
                    break
                (rewritten,) = yield from ask([critique], self.rewrite)
                yield Release([critique])
                if rewritten is None:
                    break
                start = rewritten
        return answers[-1:]

    def _is_done(self, critique: str) -> bool:
        pattern = rf"(?<!\w){re.escape(self.done)}(?!\w)"
        return re.search(pattern, critique, re.IGNORECASE) is not None
