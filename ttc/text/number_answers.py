"""Which number a text states as its answer."""

from __future__ import annotations

import re

from ttc.text.boxes import boxed
from ttc.text.number_words import MAGNITUDE, number_in_words
from ttc.text.numbers import (
    MINUS,
    POWER_OF_TEN,
    THOUSANDS,
    as_number,
    hyphened,
    spelt_out,
    without_unit,
)

# Quantifiers that keep what they took (++, *+) make every pattern linear.
_FRACTION = r"/\d++(?!\.\d)"
_TEX_FRACTION = r"\\[dtc]?frac ?(?:\{ ?-?\d++ ?\}|\d) ?(?:\{ ?\d++ ?\}|\d)"
_WHOLE = rf"(?:\d{{1,3}}(?:{THOUSANDS}\d{{3}}(?!\d))++|\d++)"
_SIGN = rf"[-{MINUS}]?(?:\\?\$)?"
_DIGITS = (
    rf"{_SIGN}(?:\d{{1,3}}+ ?)?{_TEX_FRACTION}"  # 1\frac{1}{2}
    rf"|{_SIGN}\d{{1,3}}+[ ]\d++{_FRACTION}"  # 1 1/2
    rf"|{_SIGN}{_WHOLE}(?:\.\d++)?(?:{_FRACTION}|{POWER_OF_TEN}(?!\w)|{MAGNITUDE})?"
    rf"|[-{MINUS}]?\.\d++"
)
_NUMBER = re.compile(rf"(?<![\w.^])(?<!\^\{{)(?:{_DIGITS})")
"""A number that is no exponent: of 18 m^2 it is 18."""
_NUMBER_HERE = re.compile(rf"(?:[\s*_`:$€£¥₹({{]|\\(?![dtc]?frac)|(?<=\\)\[)*+({_DIGITS})")

STATED = re.compile(
    r"####"
    r"|\banswer(?:\s++to\s++(?:the|this)\s++(?:question|problem))?+\**+\s*+"
    r"(?:is|:|=|(?:should|must|would)\s++be)"
    r"(?:\s++(?:therefore|thus|then)\b,?+)?+\**+\s*+:?+",
    re.IGNORECASE,
)
"""What an answer follows."""

_TIMES = r"\\(?:times|cdot|div)\b|(?<=[\d) ])x(?= ?[\d($])"
_SUM = re.compile(
    r"\s*+"
    rf"(?:[-−–+*/×÷·^{{}}()$€£%, \t\d]|\.(?=\d)|{_TIMES}|\\[$%(\[])*+"
    r"=(?!=)[ \t]*+"
)
_OPERAND = (
    r"[\s($*_\\]*+\d[\d,]*+(?:\.\d++)?+%?+"
    r"(?:[ /]++(?!(?:of|x)\b)[A-Za-z]++){0,3}+[)\s]*+"
)
_OPERATOR = r"(?:[-−–+*/×÷x]|of\b|\\times\b|\\cdot\b)"
_WORDED_SUM = re.compile(rf"{_OPERAND}(?:{_OPERATOR}{_OPERAND})++=(?!=)[ \t]*+")
"""A sum of numbers with units, up to its result: 3 boxes * 4 apples = 12."""
_HEADING = re.compile(r"\d{1,2}[.)][ \t]++[A-Za-z*]")
_FIRST_OF_A_LIST = re.compile(r"1[.)][ \t]++[A-Za-z*]")
_TEXT_PART = re.compile(r"\\(?:text|textrm|mbox|mathrm) ?\{[^{}]*+\}")


def stated_number(text: str) -> str | None:
    """The number right after the last `####` or "answer is" that has one, in digits or words, of an
    equation its result. Headings (`#### 2. Subtract`) and lists below "Answer:" state none."""
    plain = spelt_out(text)
    for mark in reversed(list(STATED.finditer(plain))):
        place = mark.end()
        while equation := _SUM.match(plain, place) or _WORDED_SUM.match(plain, place):
            place = equation.end()
        number = _NUMBER_HERE.match(plain, place)
        if number and not _begins_a_list(plain, mark, number.start(1)):
            return hyphened(number[1])
        if not number and (words := number_in_words(plain, place)) is not None:
            return words
    return None


def find_number(text: str) -> str | None:
    """The number that is stated, else the last one in a `\\boxed{}`, else the last one."""
    stated = stated_number(text)
    if stated is not None:
        return stated
    content = boxed(text)
    if content is not None and (number := _boxed_number(spelt_out(content))) is not None:
        return number
    place = last_number(spelt_out(text))
    return None if place is None else hyphened(place.group())


def last_number(text: str) -> re.Match[str] | None:
    last = None
    for number in _NUMBER.finditer(text):
        last = number
    return last


def _begins_a_list(text: str, mark: re.Match[str], start: int) -> bool:
    if mark.group() == "####":
        return _HEADING.match(text, start) is not None
    on_a_new_line = "\n" in text[mark.start() : start]
    return on_a_new_line and _FIRST_OF_A_LIST.match(text, start) is not None


def _boxed_number(content: str) -> str | None:
    numbers = _NUMBER.findall(_TEXT_PART.sub(" ", content)) or _NUMBER.findall(content)
    whole = hyphened(without_unit(content)).strip()
    if as_number(whole) is not None:
        return whole  # 12 000 or - 20
    return hyphened(numbers[-1]) if numbers else number_in_words(content, 0)
