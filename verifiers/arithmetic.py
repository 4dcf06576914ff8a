"""A rule-based process verifier: it checks the arithmetic that a branch writes, step by step."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate
from typing import ClassVar

from ttc.backend import Backend
from ttc.branch import Branch
from ttc.checks import Options, Probability
from ttc.text.answers import extract_answer
from ttc.text.conversation import last_words
from ttc.text.numbers import as_number
from verifiers.equations import (
    MAX_DIGITS,
    Equation,
    complete_length,
    find_equations,
    normalise,
    stated_operands,
)

_NUMBER = re.compile(r"\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?|\.\d+")
_WORDS = "zero one two three four five six seven eight nine ten eleven twelve"
_NAMED = {word: Fraction(i) for i, word in enumerate(_WORDS.split())} | {
    "half": Fraction(1, 2),
    "twice": Fraction(2),
    "double": Fraction(2),
    "triple": Fraction(3),
    "dozen": Fraction(12),
    "quarter": Fraction(1, 4),
    "third": Fraction(1, 3),
}
_COMMON = frozenset(map(Fraction, (1, 2, 7, 10, 12, 24, 30, 52, 60, 100, 365)))
"""Numbers that an equation may bring in: weeks, months, minutes, percents."""

UNFOUNDED = 0.6
INCONSISTENT = 0.3
REUSED = 0.7
UNUSED = 0.7
"""What a score is multiplied by for each (see `ArithmeticVerifier`)."""
CREDIT = 0.3
LOOK_BACK_CHARS = 200
"""A stated answer may begin so far before the step in which it ends."""


@dataclass(frozen=True)
class ArithmeticVerifier(Options):
    """Rates each step of a branch in [0, 1] by rules; no model, no gold answer.

    A branch starts at `neutral`. Up to each step's end, the score is a product of
    - `wrong` for every equation that does not hold;
    - `UNFOUNDED` for every number on its left that stands neither in the question nor in an
      earlier result, or that it adds where the question subtracts it (or the reverse);
    - `REUSED` for a number that was used up before;
    - `INCONSISTENT` if the stated answer is not the result of the last equation;
    - `UNUSED` for each number of the question, of a conversation its last one, that stands in no
      equation by then;
    - `idle` for each step with neither equation nor answer.
    Every equation that holds takes the score `CREDIT` of the way to 1. An equation that a step's
    end cuts off is judged when it is complete.

    neutral: where a branch starts. wrong, idle: these factors.

    Rates: each step: whether its equations hold, by rules.
    Cost: no tokens.
    Use it where: problems are solved by arithmetic.
    """

    answer_kinds: ClassVar[tuple[str, ...]] = ("number", "strict", "math")

    neutral: Probability = 0.5
    wrong: Probability = 0.05
    idle: Probability = 0.9

    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> list[list[float]]:
        return [
            self.rate_text(branch.steps, question, branch.finished, _answers(branch))
            for branch, question in zip(branches, questions, strict=True)
        ]

    def rate_text(
        self,
        steps: Sequence[str],
        question: str,
        finished: bool,
        answers: Sequence[str] | None = None,
    ) -> list[float]:
        """The score after each step of a solution. answers: the text up to each step's end without
        thoughts, which alone states answers; None where all is answer."""
        targets = set(numbers_in(last_words(question)))
        account = _Account(self.neutral, numbers_in(question), stated_operands(question), targets)
        scores, pace = list[float](), 1.0
        rest = before = ""  # what may still become an equation; the answer before the step
        stated: str | None = None
        for number, (step, answer) in enumerate(
            zip(steps, answers or accumulate(steps), strict=True), start=1
        ):
            rest += step
            complete = complete_length(rest)
            account.add(find_equations(rest[:complete]), self)
            rest = rest[complete:]
            added = answer.removeprefix(before)
            if step.strip() and not find_equations(step) and _stated(added) is None:
                pace *= self.idle
            if finished and number == len(steps):
                account.add(find_equations(rest), self)
                stated = extract_answer(answer, "number", marks=None)
                scores.append(pace * account.score(stated, finished))
                break
            if not answer.startswith(before):
                stated = None
            stated = _stated(answer[-len(added) - LOOK_BACK_CHARS :]) or stated
            so_far = deepcopy(account)
            so_far.add([e for e in find_equations(rest) if not e.open], self)
            scores.append(pace * so_far.score(stated, finished=False))
            before = answer
        return scores or [self.neutral]


@dataclass
class _Account:
    """What the equations of a solution come to. numbers: the question's. signs: see
    `stated_operands`. targets: those that have to be used. left: how often each number may still be
    used. sizes: those of the numbers so far."""

    sound: float
    numbers: list[Fraction]
    signs: dict[Fraction, int]
    targets: set[Fraction]
    penalty: float = 1.0
    left: Counter[Fraction] = field(init=False)
    sizes: set[Fraction] = field(init=False)
    used: set[Fraction] = field(default_factory=set)
    last: Equation | None = None

    def __post_init__(self) -> None:
        self.left = Counter(self.numbers)
        self.sizes = set(self.numbers)

    def add(self, equations: Iterable[Equation], weights: ArithmeticVerifier) -> None:
        for equation in equations:
            if equation.holds:
                self.sound += (1 - self.sound) * CREDIT
            else:
                self.penalty *= weights.wrong
            for number in equation.numbers:
                self._use(number)
            self.sizes.add(abs(equation.right))
            self.left[abs(equation.right)] += 1
            self.last = equation

    def _use(self, number: Fraction) -> None:
        size = abs(number)
        against_sign = self.signs.get(size, 0) * (1 if number > 0 else -1) < 0
        if against_sign or (size not in self.sizes and size not in _COMMON):
            self.penalty *= UNFOUNDED
        elif size in self.sizes and self.left[size] < 1:
            self.penalty *= REUSED
        self.left[size] -= 1
        self.used.add(size)

    def score(self, stated: str | None, finished: bool) -> float:
        penalty = self.penalty
        if finished or stated is not None:
            value = None if stated is None else as_number(stated)
            if value is None or self.last is None or value not in (self.last.right, self.last.left):
                penalty *= INCONSISTENT
            if self.last is not None:
                penalty *= UNUSED ** len(self.targets - self.used)
        return self.sound * penalty


def _stated(text: str) -> str | None:
    return extract_answer(text, "strict", marks=None)


def _answers(branch: Branch) -> list[str] | None:
    if branch.thoughts is None:
        return None
    return [branch.parted(end).answer or "" for end in branch.step_ends]


def numbers_in(text: str) -> list[Fraction]:
    """The numbers that a text gives, in digits (at most `MAX_DIGITS`) or words, without signs."""
    plain = normalise(text)
    digits = [m.replace(",", "") for m in _NUMBER.findall(plain) if len(m) <= MAX_DIGITS]
    words = re.findall(r"[a-z]+", plain.lower())
    return [*map(Fraction, digits), *(_NAMED[word] for word in words if word in _NAMED)]
