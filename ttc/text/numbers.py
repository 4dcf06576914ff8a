"""Numbers as people write them."""

from __future__ import annotations

import re
from fractions import Fraction

MAX_CHARS = 1000
"""Longer answers are no numbers; Python refuses integers of 4,301 digits."""

MINUS = "−–"
"""The minus sign and the en dash, which both stand for a minus."""

_AS_HYPHEN = str.maketrans(dict.fromkeys(MINUS, "-"))
_SIGNS = re.compile(r"\\?[$€£¥₹%]")
_FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{\s*(-?\d+)\s*\}|(\d))\s*(?:\{\s*(\d+)\s*\}|(\d))")
_MIXED = re.compile(r"([-+]?)(\d+)\s+(\d+/\d+)")
_THOUSANDS = re.compile(r"(?<=\d)[,\s](?=\d{3}(?!\d))")

_WORDS = (
    "percent|percentage|degrees?|deg|dollars?|cents?|euros?|usd|eur|rupees"
    "|mm|cm|dm|km|in|inch|inches|foot|feet|ft|yards?|meters?|metres?|miles?|mph|kmph|km/h|m/s"
    "|mg|gm|kg|grams?|pounds?|lbs?|ounces?|oz|ml|liters?|litres?|gallons?"
    "|seconds?|minutes?|hours?|days?|weeks?|months?|years?|units?|points?|ways?"
    "|integers?|digits?|students?"
)
_SQUARE, _POWER = "(?:(?:square|cubic|sq) )?", r"(?:\^ ?\{?[23]\}?|[²³])?"
_UNIT = re.compile(
    r"(?: ?(?:°|\^ ?\{? ?\\circ ?\}?|\\degree)(?: ?[CF])?"
    r"|(?<=[\d.}]) ?(?:\\ )?\\(?:text|mathrm|textrm|mbox) ?"
    rf"\{{ ?{_SQUARE}(?:m|g|s|h|{_WORDS})\.?{_POWER} ?\}}{_POWER}"
    rf"|(?<=[\d.}}]) ?{_SQUARE}(?:{_WORDS})\.?{_POWER})$",
    re.IGNORECASE,
)
"""A unit at the end. A single letter is one only as text: 5m may be five times m."""


def as_number(answer: str) -> Fraction | None:
    """The value of a number as people write it ($1,200.50, 3/4, 1 1/2, 12%, –3, \\frac{3}{4})."""
    if len(answer) > MAX_CHARS:
        return None
    plain = _SIGNS.sub("", hyphened(answer)).strip().rstrip(".")
    plain = _FRACTION.sub(_slashed, plain).strip()
    if mixed := _MIXED.fullmatch(plain):
        sign, whole, part = mixed.groups()
        value = as_number(part)
        return None if value is None else (int(whole) + value) * (-1 if sign == "-" else 1)
    plain = _THOUSANDS.sub("", re.sub(r"^([-+])\s+", r"\1", plain))
    if "e" in plain.lower() or "_" in plain:  # exponents ask for any size; _ is Python's alone
        return None
    try:
        return Fraction(plain)
    except (ValueError, ZeroDivisionError):
        return None


def hyphened(answer: str) -> str:
    return answer.translate(_AS_HYPHEN)


def without_unit(answer: str) -> str:
    """An answer without the unit behind a number (5 cm, 90^\\circ, 3\\text{ dollars})."""
    if len(answer) > MAX_CHARS:
        return answer
    plain = " ".join(answer.split()).rstrip(".")
    unit = _UNIT.search(plain)
    return plain[: unit.start()] if unit else answer


def _slashed(fraction: re.Match[str]) -> str:
    return f" {fraction[1] or fraction[2]}/{fraction[3] or fraction[4]}"
