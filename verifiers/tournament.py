"""A pairwise tournament: each solution of a problem against others, the model says which is
better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ttc.backend import Backend
from ttc.branch import Branch
from ttc.checks import PositiveInt, Words
from ttc.passes.ratings import pass_by_pass
from ttc.task import Passes
from ttc.tree.branch import by_problem
from verifiers.side_branches import rated_text
from verifiers.side_questions import SideQuestions

PAIR = (
    "{question}\n\nHere are two solutions.\n\nA:\n{a}\n\nB:\n{b}\n\n{criterion} Reply with A or B."
)


@dataclass(eq=False)
class Tournament(SideQuestions):
    """The mean, over the solutions that one is compared with, of the probability that it is better.

    Each two are compared in both orders, P(A) against P(B), after LLM-as-a-Verifier (arXiv
    2607.05391), which sums up wins, not probabilities. A solution without an opponent rates 0.5,
    and equal texts are one solution. Ratings hold within one call.
    criterion: what is asked of two solutions. opponents: how many others each one meets, those that
        follow it in a circle; None for all of them.
    repeats, max_tokens, temperature: how often the model writes a text before it answers, and how;
        it answers at once with max_tokens=0.
    thoughts: compare a model's thoughts too, and not its answers alone.

    Rates: the answer: the probability that it is better than others.
    Cost: two prompts for each pair of solutions.
    Use it where: there are few whole answers.
    """

    cue: ClassVar[str] = "\nThe better one:"

    criterion: Words = "Which of them is right, or nearer to it?"
    opponents: PositiveInt | None = None

    @pass_by_pass
    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> Passes[list[list[float]]]:
        scores = [0.5] * len(branches)
        for rows in by_problem(branches):
            texts = {row: self._text(branches[row]) for row in rows}
            solutions = list(dict.fromkeys(texts.values()))
            pairs = self.pairs(len(solutions))
            payer = branches[rows[0]]
            prompts = self._prompts(questions[rows[0]], solutions, pairs, backend, payer)
            if not prompts:
                continue
            requests = [(payer, prompt) for prompt in prompts]
            shares = yield from self.answer_shares(backend, requests, "AB")
            won: dict[str, list[float]] = {text: [] for text in solutions}
            for place, (first, second) in enumerate(pairs):
                share = (shares[2 * place][0] + shares[2 * place + 1][1]) / 2
                won[solutions[first]].append(share)
                won[solutions[second]].append(1 - share)
            for row, text in texts.items():
                scores[row] = sum(won[text]) / len(won[text])
        return [[score] for score in scores]

    def _text(self, branch: Branch) -> str:
        return rated_text(branch, self.thoughts).strip()

    def pairs(self, count: int) -> list[tuple[int, int]]:
        reach = count - 1 if self.opponents is None else min(self.opponents, count - 1)
        steps = range(1, reach + 1)
        met = {frozenset((i, (i + step) % count)) for i in range(count) for step in steps}
        return sorted((min(pair), max(pair)) for pair in met)

    def price(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> int:
        cost = 0
        for rows in by_problem(branches):
            solutions = list(dict.fromkeys(self._text(branches[row]) for row in rows))
            pairs = self.pairs(len(solutions))
            payer = branches[rows[0]]
            prompts = self._prompts(questions[rows[0]], solutions, pairs, backend, payer)
            cost += self.longest_cost(prompts, backend, payer.thoughts)
        return cost

    def children_price(
        self, parent: Branch, question: str, backend: Backend, tokens: int, count: int
    ) -> int:
        (prompt, _) = self._prompts(question, [self._text(parent)] * 2, [(0, 1)], backend, parent)
        matches = 2 * len(self.pairs(count))
        return matches * (self.longest_cost([prompt], backend, parent.thoughts) + 2 * tokens)

    def _prompts(
        self,
        question: str,
        solutions: Sequence[str],
        pairs: Sequence[tuple[int, int]],
        backend: Backend,
        about: Branch,
    ) -> list[list[int]]:
        orders = [order for pair in pairs for order in (pair, pair[::-1])]
        texts = [
            PAIR.format(question=question, a=solutions[a], b=solutions[b], criterion=self.criterion)
            for a, b in orders
        ]
        return [self.question_tokens(text, backend, about.thoughts) for text in texts]
