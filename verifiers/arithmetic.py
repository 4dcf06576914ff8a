"""A rule-based process verifier: it checks the arithmetic that a branch writes, step by step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ttc.answers import as_number, extract_answer
from ttc.branch import Branch
from ttc.errors import InvalidInput
from ttc.protocols import Backend
from verifiers.equations import Equation, find_equations, normalise

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


@dataclass(frozen=True)
class ArithmeticVerifier:
    """Rates each step of a branch in [0, 1] by rules; no model, no gold answer.

    A branch starts at `neutral`. Up to each step's end, the score is a product: `wrong` for every equation that does
    not hold, `unfounded` for every left-side number that stands neither in the question nor in an earlier result,
    `inconsistent` if the answer it states is no result of its equations, `repeated` for an equation written before,
    and `unused` for each number of the question that a finished branch never used. Every sound equation takes the
    score `credit` of the way to 1. An equation cut off by a step's end is judged when it is complete.
    """

    neutral: float = 0.5
    credit: float = 0.3
    wrong: float = 0.05
    unfounded: float = 0.6
    inconsistent: float = 0.3
    repeated: float = 0.5
    unused: float = 0.7

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value <= 1:
                raise InvalidInput(f"{name}={value} must lie in [0, 1]")

    def rate(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> list[list[float]]:
        return [self.rate_text(b.steps, question, b.finished) for b, question in zip(branches, questions, strict=True)]

    def rate_text(self, steps: Sequence[str], question: str, finished: bool) -> list[float]:
        """The score after each step of a solution."""
        scores, text = [], ""
        for i, step in enumerate(steps):
            text += step
            scores.append(self._score(text, question, finished and i == len(steps) - 1))
        return scores or [self.neutral]

    def _score(self, text: str, question: str, finished: bool) -> float:
        given = numbers_in(question)
        known, used, seen = set(given), set[Fraction](), set[tuple[Fraction, ...]]()
        sound = self.neutral
        penalty = 1.0
        equations = [e for e in find_equations(text) if finished or not e.open]
        for equation in equations:
            numbers = set(map(abs, equation.numbers))
            used |= numbers
            if not equation.holds:
                penalty *= self.wrong
            foreign = numbers - known - _COMMON
            penalty *= self.unfounded ** len(foreign)
            key = (equation.left, *equation.numbers)
            if key in seen:
                penalty *= self.repeated
            elif equation.holds:
                sound += (1 - sound) * self.credit
            seen.add(key)
            known.add(abs(equation.right))
        if finished:
            penalty *= self._ending(text, equations)
            penalty *= self.unused ** len(given - used - {Fraction(1)}) if equations else 1.0
        return sound * penalty

    def _ending(self, text: str, equations: Sequence[Equation]) -> float:
        stated = extract_answer(text, "number")
        value = as_number(stated) if stated is not None else None
        if value is None:
            return self.inconsistent
        if equations and value not in (equations[-1].right, equations[-1].left):
            return self.inconsistent
        return 1.0


def numbers_in(text: str) -> set[Fraction]:
    """The numbers that a text gives, in digits or in words, without signs."""
    plain = normalise(text)
    found = {Fraction(m.replace(",", "")) for m in _NUMBER.findall(plain)}
    words = re.findall(r"[a-z]+", plain.lower())
    return found | {_NAMED[word] for word in words if word in _NAMED}
