"""When two answers of kind "math" are the same: numbers with units, dates, words and formulas."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from ttc.text.formulas import read_formula
from ttc.text.math_equality import MAX_CHARS as MOST_CHARS
from ttc.text.math_equality import math_equal
from ttc.text.numbers import MAX_CHARS, as_number, plain_spelling
from ttc.text.typed_math import in_latex
from ttc.text.units import PERCENT, MeasureUnit, conversion, split_unit
from ttc.text.written_answers import (
    date_of,
    in_signs,
    in_words,
    same_dates,
    same_times,
    time_of,
)

_SHORT_FRACTION = re.compile(r"\\frac ?(?:\{([^{}]{1,100})\}|(\d)) ?(?:\{([^{}]{1,100})\}|(\d))")
_AROUND = re.compile(r" ?([-+*/=<>^_,;:|(){}\[\]]) ?")
_PERCENT = re.compile(r"(?:\\?%|\b(?:percent(?:age)?|pct)\b|\\text\s*\{\s*percent\s*\})\s*\.?$")
_ROUNDED, _ROUNDED_SMALL = Fraction(5, 10**7), Fraction(5, 10**5)
_GOES_ON = re.compile(r"(?:\.\.|…|\\[lc]?dots)\s*$")
"""A decimal whose digits go on is no number of so many digits."""
_TWICE_ESCAPED = re.compile(r"\\\\(?=[A-Za-z]{2}|[{}])")
"""A command's backslash in a file of JSON that was written twice. Rows end with two as well."""
_LEFT_TO_MATH_VERIFY = re.compile(
    r"\\(?:i*int|oint|sum|prod|lim|det|operatorname)(?![A-Za-z])|∫|∑|∏"
)
"""What `ttc.text.formulas` does not read."""


def math_spelling(answer: str) -> str:
    """One spelling for answers that are the same, their units as one writes them."""
    bare, unit = split_unit(answer)
    value = None if _GOES_ON.search(bare) else as_number(bare)
    if value is None:
        return _plain_math(plain_spelling(answer))
    return str(value) if unit is None else f"{value} {unit}".strip()


def same_math(gold: str, predicted: str) -> bool:
    """Which of the two is gold changes nothing."""
    if max(len(gold), len(predicted)) > MOST_CHARS:
        return False
    return _same(gold, predicted) if gold < predicted else _same(predicted, gold)


@lru_cache(maxsize=2**16)
def _same(gold: str, predicted: str) -> bool:
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
        times = rf"\frac{{{factor.numerator}}}{{{factor.denominator}}}({left.bare})"
        return math_equal(left.bare if factor == 1 else times, right.bare)
    if left.words == right.words:
        return True
    if _LEFT_TO_MATH_VERIFY.search(gold) or _LEFT_TO_MATH_VERIFY.search(predicted):
        return math_equal(left.bare, right.bare)
    return False


@dataclass(frozen=True)
class _Answer:
    """An answer of kind "math" as it is compared. bare: without its unit."""

    bare: str
    unit: MeasureUnit | None
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


def _plain_math(plain: str) -> str:
    """A formula with single blanks, without those that say nothing, and with braces in \\frac12."""
    if len(plain) > MAX_CHARS:
        return plain
    braced = re.sub(r"\\[dt]frac(?=\d)", r"\\frac", plain)
    braced = _SHORT_FRACTION.sub(lambda m: rf"\frac{{{m[1] or m[2]}}}{{{m[3] or m[4]}}}", braced)
    return _AROUND.sub(r"\1", in_latex(braced)).strip(" $")
