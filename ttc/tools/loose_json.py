"""JSON with bare keys and with strings in quotes of another kind."""

from __future__ import annotations

import re
from typing import Any

_BARE = re.compile(r"[^\s,:{}\[\]]+")
_BLANK = re.compile(r"\s*")
DEPTH = 64
"""The deepest nesting that is read."""


def read_loose(text: str, place: int, quote: str) -> tuple[Any, int]:
    """The value at `place`, and where it ends.

    quote: stands before and after each string, which escapes nothing.
    Raises ValueError where there is none.
    """
    return _value(text, place, quote, DEPTH)


def _value(text: str, place: int, quote: str, depth: int) -> tuple[Any, int]:
    place = _after_blanks(text, place)
    if not depth:
        raise ValueError(f"it is nested more than {DEPTH} deep")
    if text.startswith(quote, place):
        return _string(text, place, quote)
    if text.startswith("{", place):
        return _object(text, place, quote, depth)
    if text.startswith("[", place):
        return _list(text, place, quote, depth)
    word, end = _bare(text, place)
    named = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
    if word in named:
        return named[word], end
    for number in (int, float):
        try:
            return number(word), end
        except ValueError:
            continue
    return word, end


def _object(text: str, place: int, quote: str, depth: int) -> tuple[dict[str, Any], int]:
    values = dict[str, Any]()
    place = _after_blanks(text, place + 1)
    while not text.startswith("}", place):
        read = _string if text.startswith(quote, place) else _bare
        key, place = read(text, place, quote)
        place = _after_blanks(text, place)
        if not text.startswith(":", place):
            raise ValueError(f"no value follows the name {key}")
        values[key], place = _value(text, place + 1, quote, depth - 1)
        place = _to_next(text, place, "}")
    return values, place + 1


def _list(text: str, place: int, quote: str, depth: int) -> tuple[list[Any], int]:
    values = list[Any]()
    place = _after_blanks(text, place + 1)
    while not text.startswith("]", place):
        value, place = _value(text, place, quote, depth - 1)
        values.append(value)
        place = _to_next(text, place, "]")
    return values, place + 1


def _string(text: str, place: int, quote: str) -> tuple[str, int]:
    start = place + len(quote)
    end = text.find(quote, start)
    if end < 0:
        raise ValueError("a string is not ended")
    return text[start:end], end + len(quote)


def _bare(text: str, place: int, quote: str = "") -> tuple[str, int]:
    match = _BARE.match(text, place)
    if match is None:
        raise ValueError(f"a value is missing before {text[place : place + 10]!r}")
    return match[0], match.end()


def _to_next(text: str, place: int, close: str) -> int:
    place = _after_blanks(text, place)
    if text.startswith(",", place):
        return _after_blanks(text, place + 1)
    if not text.startswith(close, place):
        raise ValueError(f"{close!r} is missing")
    return place


def _after_blanks(text: str, place: int) -> int:
    match = _BLANK.match(text, place)
    return place if match is None else match.end()
