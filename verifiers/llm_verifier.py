"""LLM-as-a-Verifier (arXiv 2607.05391): fine grades, several criteria, repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Annotated, ClassVar

from annotated_types import Interval, Predicate

from ttc.backend import Backend
from ttc.branch import Branch
from ttc.checks import Words
from ttc.passes.ratings import pass_by_pass
from ttc.task import Passes
from verifiers.side_branches import rated_text
from verifiers.side_questions import SideQuestions

GRADE = (
    "{question}\n\nHere is a solution, which may not be complete yet.\n\n{solution}\n\n{criterion} "
    "Grade it from A (not at all) to {best} (fully). Reply with one letter."
)
CRITERIA = (
    "Does each step follow from the problem and from the steps before it?",
    "Is each calculation right?",
    "Does it answer what is asked?",
)


@dataclass(eq=False)
class LLMVerifier(SideQuestions):
    """The mean, over criteria and repeats, of the grade that the model is expected to give:

    R = 1 / (C K) sum_c sum_k sum_g p(letter g | text k, criterion c) (g - 1) / (G - 1).

    criteria: C questions, each asked for itself. grades: G letters, from A for the worst; the paper
        has 20. repeats: K texts that the model writes before each grade, of at most `max_tokens`
        tokens at `temperature`; with max_tokens=0 it grades at once, and once is enough.
    thoughts: grade a model's thoughts too, and not its answer alone.
    The paper's prompts are for agents; these are ours.

    Rates: the answer: the mean of grades by several criteria, from the search's own model.
    Cost: a prompt for each criterion, and what is written before each grade.
    Use it where: the model can judge, and one question is too coarse.
    """

    cue: ClassVar[str] = "\nGrade:"

    criteria: Annotated[tuple[Words, ...], Predicate(len)] = CRITERIA
    grades: Annotated[int, Interval(ge=2, le=26)] = 20

    @pass_by_pass
    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> Passes[list[list[float]]]:
        prompts = self._prompts(branches, questions, backend)
        payers = [branch for branch in branches for _ in self.criteria]
        requests = list(zip(payers, prompts, strict=True))
        shares = yield from self.answer_shares(backend, requests, ascii_uppercase[: self.grades])
        grades = [
            sum(place * share for place, share in enumerate(row)) / (self.grades - 1)
            for row in shares
        ]
        count = len(self.criteria)
        return [[sum(grades[i : i + count]) / count] for i in range(0, len(grades), count)]

    def price(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> int:
        prompts = self._prompts(branches, questions, backend)
        return self.longest_cost(prompts, backend, branches[0].thoughts if branches else None)

    def children_price(
        self, parent: Branch, question: str, backend: Backend, tokens: int, count: int
    ) -> int:
        extra = tokens * len(self.criteria)
        return count * (self.price([parent], [question], backend) + extra)

    def _prompts(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> list[list[int]]:
        best = ascii_uppercase[self.grades - 1]
        return [
            self.question_tokens(
                GRADE.format(
                    question=question,
                    solution=rated_text(branch, self.thoughts).strip(),
                    criterion=criterion,
                    best=best,
                ),
                backend,
                branch.thoughts,
            )
            for branch, question in zip(branches, questions, strict=True)
            for criterion in self.criteria
        ]
