"""A rule-based process verifier: it checks the arithmetic that a branch writes, step by step."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ttc.errors import InvalidInput
from ttc.protocols import Backend
from ttc.text.answers import extract_answer
from ttc.text.numbers import as_number
from ttc.tree.branch import Branch
from verifiers.equations import MAX_DIGITS, Equation, find_equations, normalise, stated_operands

_NUMBER = re.compile(r"\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?|\.\d+")
_WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_NAMED = {word: Fraction(i) for i, word in enumerate(_WORDS)} | {
    "half": Fraction(1, 2),
    "twice": Fraction(2),
    "double": Fraction(2),
    "triple": Fraction(3),
    "dozen": Fraction(12),
    "quarter": Fraction(1, 4),
    "third": Fraction(1, 3),
}
_COMMON = frozenset(map(Fraction, (1, 2, 7, 10, 12, 24, 30, 52, 60, 100, 365)))
"""Numbers that an equation may bring in without naming a source: halves, weeks, months, minutes, percents."""

UNFOUNDED, INCONSISTENT, REUSED, UNUSED = 0.6, 0.3, 0.7, 0.7
"""What a score is multiplied by for what `ArithmeticVerifier` says of each."""


@dataclass(frozen=True)
class ArithmeticVerifier:
    """Rates each step of a branch in [0, 1] by rules; no model, no gold answer.

    A branch starts at `neutral`. Up to each step's end, the score is a product: `wrong` for every equation that does
    not hold; `UNFOUNDED` for every number on its left that stands neither in the question nor in an earlier result,
    or that it adds where the question subtracts it (or the reverse); `REUSED` for one that was used up before;
    `INCONSISTENT` if the answer that is stated is not the result of the last equation; and `UNUSED` for each number
    of the question that stands in no equation by then. Every equation that holds takes the score `credit` of the way
    to 1; a step with neither equation nor answer multiplies it by `idle`. An equation that a step's end cuts off is
    judged when it is complete.
    """

    neutral: float = 0.5
    credit: float = 0.3
    wrong: float = 0.05
    idle: float = 0.9

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value <= 1:
                raise InvalidInput(f"{name}={value} must lie in [0, 1]")

    def rate(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> list[list[float]]:
        return [
            self.rate_text(b.steps, question, b.finished, _answers(b))
            for b, question in zip(branches, questions, strict=True)
        ]

    def rate_text(
        self, steps: Sequence[str], question: str, finished: bool, answers: Sequence[str] | None = None
    ) -> list[float]:
        """The score after each step of a solution.

        answers: up to each step's end, what is no thought, so that answers are read there alone; None where all is
        answer. Equations count wherever they stand."""
        scores, text, answer, pace = [], "", "", 1.0
        for i, step in enumerate(steps):
            text += step
            before, answer = answer, text if answers is None else answers[i]
            said = step if answers is None else answer.removeprefix(before)
            if step.strip() and not find_equations(step) and extract_answer(said, "strict", marks=None) is None:
                pace *= self.idle
            scores.append(pace * self._score(text, answer, question, finished and i == len(steps) - 1))
        return scores or [self.neutral]

    def _score(self, text: str, answer: str, question: str, finished: bool) -> float:
        """answer: the part of `text` that states the answer."""
        given, signs = numbers_in(question), stated_operands(question)
        left = Counter(given)
        known, used = set(given), set[Fraction]()
        sound, penalty = self.neutral, 1.0
        equations = [e for e in find_equations(text) if finished or not e.open]
        for equation in equations:
            if equation.holds:
                sound += (1 - sound) * self.credit
            else:
                penalty *= self.wrong
            for number in equation.numbers:
                size = abs(number)
                against = signs.get(size, 0) * (1 if number > 0 else -1) < 0
                if against or (size not in known and size not in _COMMON):
                    penalty *= UNFOUNDED
                elif size in known and left[size] < 1:
                    penalty *= REUSED
                left[size] -= 1
                used.add(size)
            known.add(abs(equation.right))
            left[abs(equation.right)] += 1
        stated = extract_answer(answer, "number" if finished else "strict", marks=None)
        if finished or stated is not None:
            penalty *= self._ending(stated, equations)
            penalty *= UNUSED ** len(set(given) - used) if equations else 1.0
        return sound * penalty

    def _ending(self, stated: str | None, equations: Sequence[Equation]) -> float:
        """What the stated answer costs: nothing if it is the last equation's result."""
        value = as_number(stated) if stated is not None else None
        supported = value is not None and equations and value in (equations[-1].right, equations[-1].left)
        return 1.0 if supported else INCONSISTENT


def _answers(branch: Branch) -> list[str] | None:
    """What is no thought of a branch, up to each step's end; None where all is answer."""
    if branch.thoughts is None:
        return None
    return [branch.parted(end).answer or "" for end in branch.step_ends]


def numbers_in(text: str) -> list[Fraction]:
    """The numbers of at most `MAX_DIGITS` that a text gives, in digits or in words, without signs."""
    plain = normalise(text)
    found = [Fraction(m.replace(",", "")) for m in _NUMBER.findall(plain) if len(m) <= MAX_DIGITS]
    words = re.findall(r"[a-z]+", plain.lower())
    return found + [_NAMED[word] for word in words if word in _NAMED]
