"""Tests that the model writes for a problem, and verifiers that rate programs by them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import ClassVar, TypeVar

from ttc.backend import Backend
from ttc.branch import Branch
from ttc.checks import NonNegativeFloat, Options, PositiveInt
from ttc.execution.code_tests import CallTest, as_test, shown_tests
from ttc.execution.programs import Limits, ProgramMiB, ProgramSeconds, check_sandbox
from ttc.passes.ratings import pass_by_pass
from ttc.sampling import Sampling
from ttc.step import Step
from ttc.task import Passes
from ttc.tree.branch import by_problem
from verifiers.programs.execution_verifier import MIB, program_of, runs_of_each
from verifiers.side_branches import counted_as_verifier, side_tokens, written

V = TypeVar("V")

ASK = (
    "{question}\n\nDo not solve this. Write {count} different tests of the function {name}, each "
    "as one line of Python as `assert {name}(...) == ...`, in one fenced block."
)
_DEFINED = re.compile(r"^def ([A-Za-z_]\w*)", re.MULTILINE)
_ASSERTED = re.compile(r"^[ \t]*+(assert .+)$", re.MULTILINE)
NAME_TOKENS = 32
"""What a function's name may take, which a prompt has three times."""
REMEMBERED = 1024
"""Problems whose tests are kept: a search rates more than once."""


@dataclass(frozen=True)
class ProblemPrograms:
    """The programs of one problem, which are rated together, and the tests that there are. branch:
    one of the problem's, which pays for what is asked of the backend."""

    branch: Branch
    question: str
    programs: Sequence[str]
    tests: Sequence[CallTest]
    backend: Backend


@dataclass(eq=False)
class WrittenTests(Options, ABC):
    """Rates the programs of one problem together, by calls of the function that they define.

    The calls are those of the shown tests, and of tests that the model writes once for each
    problem, as verifier tokens. A branch without a program rates 0.
    tests: how many are asked for at a time. samples: how often. max_tokens, temperature: of each.
    time_s, memory_mib: as for `ExecutionVerifier`.
    """

    tests: PositiveInt = 8
    samples: PositiveInt = 1
    max_tokens: PositiveInt = 256
    temperature: NonNegativeFloat = 0.8
    time_s: ProgramSeconds = 5.0
    memory_mib: ProgramMiB = 1024
    _written: dict[int, list[CallTest]] = field(default_factory=dict, init=False, repr=False)
    answer_kinds: ClassVar[tuple[str, ...]] = ("code",)
    writes: ClassVar[bool] = True

    @property
    def limits(self) -> Limits:
        return Limits(self.time_s, self.memory_mib * MIB)

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature)

    @abstractmethod
    def rate_problem(self, problem: ProblemPrograms) -> Passes[list[float]]:
        """The rating of each of the programs."""

    @pass_by_pass
    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> Passes[list[list[float]]]:
        check_sandbox()
        programs = [program_of(branch) for branch in branches]
        yield from self._write(branches, questions, programs, backend)
        scores = [[0.0] for _ in branches]
        for rows in by_problem(branches):
            branch, question = branches[rows[0]], questions[rows[0]]
            own = {row: program for row in rows if (program := programs[row]) is not None}
            call_tests = [t for t in shown_tests(question, branch.about) if isinstance(t, CallTest)]
            tests = [*call_tests, *self._written.get(branch.root_id, [])]
            if own:
                problem = ProblemPrograms(branch, question, list(own.values()), tests, backend)
                ratings = yield from self.rate_problem(problem)
                for row, score in zip(own, ratings, strict=True):
                    scores[row] = [score]
        return scores

    # ---------------------------------------------------------------- writing tests

    def _write(
        self,
        branches: Sequence[Branch],
        questions: Sequence[str],
        programs: Sequence[str | None],
        backend: Backend,
    ) -> Passes[None]:
        requests: list[tuple[Branch, list[int]]] = []
        called: list[str] = []
        for rows in by_problem(branches):
            first = branches[rows[0]]
            names = Counter(n for row in rows for n in _DEFINED.findall(programs[row] or ""))
            if names and first.root_id not in self._written:
                called.append(names.most_common(1)[0][0])
                requests.append(
                    (first, self._prompt(questions[rows[0]], called[-1], backend, first))
                )
        texts = yield from self.side_texts(backend, requests, self.samples)
        for (first, _), name, samples in zip(requests, called, texts, strict=True):
            tests = [as_test(line.strip()) for text in samples for line in _ASSERTED.findall(text)]
            calls = {repr(t): t for t in tests if isinstance(t, CallTest) and t.function == name}
            self._written[first.root_id] = list(calls.values())
        while len(self._written) > REMEMBERED:
            del self._written[next(iter(self._written))]

    def _prompt(self, question: str, name: str, backend: Backend, about: Branch) -> list[int]:
        text = ASK.format(question=question, count=self.tests, name=name)
        ending = f"\n```python\nassert {name}("
        return side_tokens(text, backend, ending, thoughts=about.thoughts)

    def side_texts(
        self, backend: Backend, requests: Sequence[tuple[Branch, list[int]]], samples: int
    ) -> Passes[list[list[str]]]:
        """What the model writes after prompts, `samples` texts for each, as verifier tokens.
        requests: the branch that pays for each, and the prompt."""
        if not requests:
            return []
        payers = [branch for branch, _ in requests]
        with counted_as_verifier(payers):
            prompts = [prompt for _, prompt in requests]
            branches = yield from backend.side_branches(payers, prompts).passes()
            try:
                rows = [backend.fork(branch, samples) for branch in branches]
                writers = [writer for row in rows for writer in row]
                branches += writers
                yield from written(backend, writers, Step(self.max_tokens), self.sampling)
                return [[writer.text for writer in row] for row in rows]
            finally:
                backend.release(branches)


class Agreement(WrittenTests):
    """Rates programs by running them on the tests alone, so that its price is known."""

    @abstractmethod
    def agreement(
        self, programs: Sequence[str], tests: Sequence[CallTest]
    ) -> Passes[list[float]]: ...

    def rate_problem(self, problem: ProblemPrograms) -> Passes[list[float]]:
        return self.agreement(problem.programs, problem.tests)

    def price(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> int:
        """That of the tests, which are written once for all programs of a problem."""
        firsts = [rows[0] for rows in by_problem(branches)]
        new = [row for row in firsts if branches[row].root_id not in self._written]
        prompts = [self._prompt(questions[row], "function", backend, branches[row]) for row in new]
        return sum(
            len(prompt) + NAME_TOKENS + self.samples * (self.max_tokens + 1) for prompt in prompts
        )

    def children_price(
        self, parent: Branch, question: str, backend: Backend, tokens: int, count: int
    ) -> int:
        return self.price([parent], [question], backend)


def by_program(function: Callable[[str, Event], V], programs: Sequence[str]) -> Passes[list[V]]:
    """A function of each program, as in `runs_of_each`; equal programs are run once."""
    outcomes = yield from runs_of_each(function, programs)
    return [outcomes[program] for program in programs]
