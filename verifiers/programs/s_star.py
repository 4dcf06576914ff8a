"""S* (Li et al., 2025, arXiv 2502.14382): programs compared by inputs that tell them apart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from threading import Event
from typing import Annotated, ClassVar, NamedTuple

from annotated_types import Ge

from ttc.backend import Need
from ttc.execution.code_tests import CallTest, as_test, failures, shown_tests
from ttc.execution.programs import Functions, Outcome
from ttc.execution.values import short_repr
from ttc.task import Passes
from verifiers.programs.written_tests import ProblemPrograms, WrittenTests, by_program
from verifiers.side_branches import side_tokens, spellings, word_shares

TELL_APART = (
    "{question}\n\nHere are two programs.\n\nA:\n```python\n{a}\n```\n\nB:\n```python\n{b}\n```\n\n"
    "Write calls of {name} for which they may return different values, each as one line of Python "
    "as `{name}(...)`, in one fenced block."
)
CHOOSE = (
    "{question}\n\nFor the call {call} program A gives {a}, and program B gives {b}. Which one is "
    "right? Reply with A or B."
)
SHOWN_CHARS = 200


class Duel(NamedTuple):
    """Two groups of programs, by their places, and the call for which they differ."""

    first: int
    second: int
    call: CallTest
    outcomes: tuple[Outcome, Outcome]


@dataclass(eq=False)
class SStar(WrittenTests):
    """Adaptive input synthesis, S*'s selection (section 3.2, without its rounds of debugging).

    Of the programs that pass most shown tests, those with the same outputs for the inputs of the
    written tests are a group. For each two groups, the model writes calls that may tell them apart;
    both are run, and the model is asked which output is right, P(A) against P(B) in both orders.
    A program rates half the share of shown tests that it passes, and, if it is one of those that
    pass most, half the share of the other groups that its group wins against.
    groups: the most that are compared, those with most programs. tests, samples, max_tokens,
    temperature: of what is written.

    Rates: the program: which of two outputs is right, where two programs differ.
    Cost: as `codet`, and for each pair of groups a text and two questions.
    Use it where: as `codet`, and the model can judge.
    """

    needs: ClassVar[tuple[Need, ...]] = ("score",)

    groups: Annotated[int, Ge(2)] = 4

    def rate_problem(self, problem: ProblemPrograms) -> Passes[list[float]]:
        programs = problem.programs
        tests = shown_tests(problem.question, problem.branch.about)
        verdicts = yield from by_program(
            lambda program, stop: failures(program, tests, self.limits, stop=stop), programs
        )
        shares = [v.count(None) / len(v) if v else 1.0 for v in verdicts]
        best = [place for place, share in enumerate(shares) if share == max(shares)]
        groups = yield from self._groups([programs[place] for place in best], problem.tests)
        wins = yield from self._wins(problem, groups[: self.groups])
        scores = [share / 2 for share in shares]
        for members, won in zip(groups, wins, strict=False):
            for place in best:
                if programs[place] in members:
                    scores[place] += won / 2
        return scores

    def _groups(
        self, programs: Sequence[str], tests: Sequence[CallTest]
    ) -> Passes[list[list[str]]]:
        """Programs by their outputs, the largest group first."""
        groups: list[tuple[list[Outcome], list[str]]] = []
        outputs = yield from by_program(partial(self._run, tests), programs)
        for program, output in zip(programs, outputs, strict=True):
            group = next((members for other, members in groups if other == output), None)
            if group is None:
                groups.append((output, [program]))
            else:
                group.append(program)
        return sorted((members for _, members in groups), key=len, reverse=True)

    def _run(self, tests: Sequence[CallTest], program: str, stop: Event) -> list[Outcome]:
        outcomes = []
        with Functions(program, self.limits) as functions:
            for test in tests:
                if stop.is_set():
                    break
                outcomes.append(functions.call(test.function, test.arguments))
        return outcomes

    def _wins(
        self, problem: ProblemPrograms, groups: Sequence[Sequence[str]]
    ) -> Passes[list[float]]:
        if len(groups) < 2:
            return [1.0] * len(groups)
        duels = yield from self._duels(problem, groups)
        choices = yield from self._choices(problem, duels)
        wins = [0.0] * len(groups)
        for duel, share in zip(duels, choices, strict=True):
            winner = duel.first if share >= 0.5 else duel.second
            wins[winner] += 1 / (len(groups) - 1)
        return wins

    def _duels(
        self, problem: ProblemPrograms, groups: Sequence[Sequence[str]]
    ) -> Passes[list[Duel]]:
        """Each two groups with the first call that tells them apart, the model's before others."""
        pairs = list(combinations(range(len(groups)), 2))
        name = problem.tests[0].function
        question, backend, payer = problem.question, problem.backend, problem.branch
        requests = []
        for i, j in pairs:
            text = TELL_APART.format(question=question, a=groups[i][0], b=groups[j][0], name=name)
            requests.append((payer, side_tokens(text, backend, thoughts=payer.thoughts)))
        texts = yield from self.side_texts(backend, requests, 1)
        duels = []
        for (i, j), (text,) in zip(pairs, texts, strict=True):
            calls = [*_calls(text, name), *problem.tests]
            pair = [groups[i][0], groups[j][0]]
            outcomes = yield from by_program(partial(self._run, calls), pair)
            rows = zip(calls, *outcomes, strict=True)
            # none where a program depends on the time
            duels += [Duel(i, j, call, (a, b)) for call, a, b in rows if a != b][:1]
        return duels

    def _choices(self, problem: ProblemPrograms, duels: Sequence[Duel]) -> Passes[list[float]]:
        backend, payer = problem.backend, problem.branch
        prompts = []
        for duel in duels:
            call = f"{duel.call.function}({', '.join(map(repr, duel.call.arguments))})"
            a, b = map(_printed, duel.outcomes)
            for first, second in ((a, b), (b, a)):
                text = CHOOSE.format(question=problem.question, call=call, a=first, b=second)
                prompts.append(side_tokens(text, backend, thoughts=payer.thoughts))
        word_tokens = spellings(backend, "A", "B")
        judges = yield from backend.side_branches([payer] * len(prompts), prompts).passes()
        try:
            rows = yield from word_shares(backend, judges, word_tokens)
        finally:
            backend.release(judges)
        return [(a + 1 - b) / 2 for (a, _), (b, _) in zip(rows[::2], rows[1::2], strict=True)]


def _calls(text: str, name: str) -> list[CallTest]:
    lines = re.findall(rf"^\W*(?:assert |print\()?({re.escape(name)}\(.*?\))", text, re.MULTILINE)
    tests = (as_test(f"assert {line} == 0") for line in dict.fromkeys(lines))
    return [test for test in tests if isinstance(test, CallTest)]


def _printed(outcome: Outcome) -> str:
    if outcome.error is None:
        text = short_repr(outcome.value, SHOWN_CHARS + 1)
    else:
        text = outcome.error
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "..."
