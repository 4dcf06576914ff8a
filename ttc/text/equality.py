"""One equality of answers, for grading and for voting."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from ttc.text.code import spelt_alike
from ttc.text.formulas import read_formula
from ttc.text.math_equality import MAX_CHARS as MOST_CHARS
from ttc.text.math_equality import math_equal
from ttc.text.numbers import MAX_CHARS, as_number, without_unit
from ttc.text.typed_math import in_latex
from ttc.text.units import PERCENT, Unit, conversion, split_unit
from ttc.text.written_answers import (
    date_of,
    in_signs,
    in_words,
    same_dates,
    same_times,
    time_of,
)

Same = Callable[[str, str], bool]
"""Whether two answers are the same; where one is a gold answer, it comes first."""

_SIZES = re.compile(r"\\(?:left|right|displaystyle)\b\s*")
_SPACES = re.compile(r"\\[,;:! ]")
_SHORT_FRACTION = re.compile(r"\\frac ?(?:\{([^{}]{1,100})\}|(\d)) ?(?:\{([^{}]{1,100})\}|(\d))")
_AROUND = re.compile(r" ?([-+*/=<>^_,;:|(){}\[\]]) ?")
_PERCENT = re.compile(r"(?:\\?%|\b(?:percent|pct|percentage)\b|\\text\s*\{\s*percent\s*\})\s*\.?$")
_ROUNDED, _ROUNDED_SMALL = Fraction(5, 10**7), Fraction(5, 10**5)
_GOES_ON = re.compile(r"(?:\.\.|…|\\[lc]?dots)\s*$")
"""A decimal whose digits go on is no number of so many digits."""
_TWICE_ESCAPED = re.compile(r"\\\\(?=[A-Za-z]{2}|[{}])")
"""A command's backslash in a file of JSON that was written twice. Rows end with two as well."""
_LEFT_TO_MATH_VERIFY = re.compile(
    r"\\(?:i*int|oint|sum|prod|lim|det|operatorname)(?![A-Za-z])|∫|∑|∏"
)
"""What `ttc.text.formulas` does not read."""


def canonical(answer: str | None, kind: str = "text") -> str | None:
    """One spelling for answers that are the same: 12.0, $12 and 12 agree. None for an invalid one.

    kind: the answer kind. "number" and "math" leave out a unit behind a number too, "math" blanks
    that say nothing, and "code" comments.
    """
    if answer is None:
        return None
    return _short(answer, kind) if len(answer) <= MAX_CHARS else _spelling(answer, kind)


def _spelling(answer: str, kind: str) -> str | None:
    if not answer.strip():
        return None
    if kind == "code":
        return spelt_alike(answer)
    if kind == "math":
        bare, unit = split_unit(answer)
        value = None if _GOES_ON.search(bare) else as_number(bare)
        if value is not None and unit is not None:
            return f"{value} {unit}".strip()
    else:
        value = as_number(without_unit(answer) if kind in ("number", "strict") else answer)
    if value is not None:
        return str(value)
    plain = " ".join(_plain_latex(answer).split()).strip(" .")
    return _plain_math(plain) if kind == "math" else plain


_short = lru_cache(maxsize=2**14)(_spelling)


def same_answer(gold: str, predicted: str | None, kind: str = "number") -> bool:
    """Whether `predicted` is right: spelt the same (`canonical`), or of kind "math" the same words,
    date, time, quantity or formula. Which of the two is gold changes nothing.

    A comparison that takes too long counts as not equal (see `ttc.text.math_equality`).
    """
    if predicted is None:
        return False
    left, right = canonical(gold, kind), canonical(predicted, kind)
    if left is None or right is None:
        return False
    if left == right:
        return True
    if kind != "math" or max(len(gold), len(predicted)) > MOST_CHARS:
        return False
    return _same_math(gold, predicted) if gold < predicted else _same_math(predicted, gold)


@lru_cache(maxsize=2**16)
def _same_math(gold: str, predicted: str) -> bool:
    left, right = _read(gold), _read(predicted)
    if left.time and right.time and (left.time[2] or right.time[2]):
        return same_times(left.time, right.time)
    if left.date and right.date:
        return same_dates(left.date, right.date)
    factor = conversion(left.unit, right.unit)
    if factor is None:
        return False
    if left.number is not None and right.number is not None:
        return _same_numbers(left, right, factor)
    if left.is_formula and right.is_formula:
        one = (
            left.bare
            if factor == 1
            else rf"\frac{{{factor.numerator}}}{{{factor.denominator}}}({left.bare})"
        )
        return math_equal(one, right.bare)
    if left.words == right.words:
        return True
    if _LEFT_TO_MATH_VERIFY.search(gold) or _LEFT_TO_MATH_VERIFY.search(predicted):
        return math_equal(left.bare, right.bare)
    return False


@dataclass(frozen=True)
class _Answer:
    """An answer of kind "math" as it is compared. bare: without its unit."""

    bare: str
    unit: Unit | None
    number: Fraction | None
    is_percent: bool
    is_formula: bool
    words: str
    date: tuple[int, int, int] | None
    time: tuple[int, int, bool] | None


@lru_cache(maxsize=2**14)
def _read(answer: str) -> _Answer:
    signs = in_signs(answer if r"\begin" in answer else _TWICE_ESCAPED.sub(r"\\", answer))
    percent = _PERCENT.search(signs)
    bare, unit = (signs[: percent.start()].rstrip(), PERCENT) if percent else split_unit(signs)
    number = None if _GOES_ON.search(bare) else as_number(bare)
    is_formula = read_formula(bare) is not None
    if number is not None and not is_formula:
        bare, is_formula = str(number), True
    if percent:
        bare += r"\%"
    return _Answer(
        bare=bare,
        unit=unit,
        number=number,
        is_percent=percent is not None,
        is_formula=is_formula,
        words=in_words(answer),
        date=date_of(answer),
        time=time_of(answer),
    )


def _same_numbers(left: _Answer, right: _Answer, factor: Fraction) -> bool:
    assert left.number is not None and right.number is not None
    rounded = "." in left.bare + right.bare
    if _near(left.number * factor, right.number, rounded):
        return True
    if left.is_percent == right.is_percent:
        return False
    if left.is_percent:
        return _near(left.number / 100, right.number, rounded)
    return _near(right.number / 100, left.number, rounded)


def _near(left: Fraction, right: Fraction, rounded: bool) -> bool:
    """Whether two numbers are equal: decimals to six digits, but small ones relative to their size;
    whole numbers and fractions exactly."""
    if left == right:
        return True
    if not rounded or left.denominator == right.denominator == 1:
        return False
    size = max(abs(left), abs(right))
    return abs(left - right) <= min(_ROUNDED, _ROUNDED_SMALL * size)


def ballots(
    answers: Sequence[str | None], kind: str = "text", same: Same | None = None
) -> list[str | None]:
    """What each answer votes for: answers that are the same give the same string, None has no vote.

    same: the grader to group by; default: `same_answer` of this kind. Two answers are the same if
    either is right when the other is gold.
    Equality by a grader is not transitive (0.3333333 is 1/3, and 0.3333328 is 0.3333333). So an
    answer joins the first group whose first answer it equals, or begins one: later answers never
    change what earlier ones vote for.
    """
    equal = same or (lambda gold, predicted: same_answer(gold, predicted, kind))
    firsts: dict[str, str] = {}  # the first answer of each group, by its spelling
    known: dict[str, str] = {}  # the group of each spelling
    votes: list[str | None] = []
    for answer in answers:
        spelling = canonical(answer, kind)
        if answer is None or spelling is None:
            votes.append(None)
            continue
        if spelling not in known:
            others = firsts.items() if same is not None or kind == "math" else ()
            group = (name for name, first in others if equal(first, answer) or equal(answer, first))
            known[spelling] = next(group, spelling)
            firsts.setdefault(known[spelling], answer)
        votes.append(known[spelling])
    return votes


def _plain_latex(answer: str) -> str:
    """Without what changes how a formula looks, not what it says."""
    sized = _SIZES.sub("", re.sub(r"\\[dt]frac\b", r"\\frac", answer))
    return _SPACES.sub(" ", sized)


def _plain_math(plain: str) -> str:
    """A formula with single blanks, without those that say nothing, and with braces in \\frac12."""
    if len(plain) > MAX_CHARS:
        return plain
    braced = re.sub(r"\\[dt]frac(?=\d)", r"\\frac", plain)
    braced = _SHORT_FRACTION.sub(lambda m: rf"\frac{{{m[1] or m[2]}}}{{{m[3] or m[4]}}}", braced)
    return _AROUND.sub(r"\1", in_latex(braced)).strip(" $")
