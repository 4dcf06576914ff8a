"""Reading answers out of text, and deciding whether two are the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from ttc.errors import InvalidInput

_NUMBER = re.compile(
    r"(?<![\w.])[-−]?\$?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:/\d+(?![\d.]))?|(?<![\w.])[-−]?\.\d+"
)
_STATED = re.compile(r"####|\banswer\s*(?:is|:|=)\s*:?", re.IGNORECASE)
_CHOICE = re.compile(
    r"(?i:\banswer\s*(?:is|:)?\s*:?\s*(?:option\s*)?)[\(\[*]*([A-Z])\b(?!['’])"
    r"|\\boxed\{\s*(?:\\text\{)?\(?([A-Z])\b|[\(\[]([A-Z])[\)\]]"
)
_LONE_CHOICE = re.compile(r"^\W*([A-Z])\W*$", re.MULTILINE)


def extract_answer(text: str, kind: str = "number") -> str | None:
    """The answer that `text` states, or None.

    kind: "number" takes what follows `####`, "answer is" or "Answer:", then a `\\boxed{}`, then the last number;
    "strict" only a number right after `####` or "answer is"; "choice" a letter; "math" a `\\boxed{}` or a stated or
    last expression; "text" what follows the last "answer is", or the last line.
    """
    if kind not in _EXTRACTORS:
        raise InvalidInput(f"answer kind {kind!r} is unknown; use one of {', '.join(_EXTRACTORS)}")
    return _EXTRACTORS[kind](text)


def _number(text: str) -> str | None:
    stated = _strict(text)
    if stated is not None:
        return stated
    content = boxed(text)
    numbers = _NUMBER.findall(content) if content is not None else []
    numbers = numbers or _NUMBER.findall(text)
    return numbers[-1] if numbers else None


def _strict(text: str) -> str | None:
    for mark in reversed(list(_STATED.finditer(text))):
        found = _NUMBER.match(text[mark.end() :].lstrip(" \t*:$\\({").replace("−", "-"))
        if found:
            return found.group()
    return None


def _choice(text: str) -> str | None:
    found = list(_CHOICE.finditer(text)) or list(_LONE_CHOICE.finditer(text))
    return next(g for g in found[-1].groups() if g) if found else None


def _math(text: str) -> str | None:
    content = boxed(text)
    if content is not None:
        return content.strip() or None
    marks = list(_STATED.finditer(text))
    if marks:
        stated = text[marks[-1].end() :].strip().split("\n")[0].strip(" $.*")
        if stated:
            return stated
    return _number(text)


def _text(text: str) -> str | None:
    marks = list(_STATED.finditer(text))
    rest = text[marks[-1].end() :] if marks else text
    lines = [line.strip(" *.") for line in rest.strip().splitlines() if line.strip(" *.")]
    return (lines[0] if marks else lines[-1]) if lines else None


_EXTRACTORS: dict[str, Callable[[str], str | None]] = {
    "number": _number,
    "strict": _strict,
    "choice": _choice,
    "math": _math,
    "text": _text,
}


def boxed(text: str) -> str | None:
    """The content of the last complete `\\boxed{...}`, braces nested."""
    for start in reversed([m.end() for m in re.finditer(r"\\boxed\s*\{", text)]):
        depth = 1
        for i, sign in enumerate(text[start:], start):
            depth += (sign == "{") - (sign == "}")
            if depth == 0:
                return text[start:i]
    return None


def as_number(answer: str) -> Fraction | None:
    """The exact value of a number as people write it ($1,200.50, 3/4, 12%), or None."""
    plain = re.sub(r"[$€£,\s%]|\\\$|\\%", "", answer.replace("−", "-")).rstrip(".")
    if len(plain) > 1000 or "e" in plain.lower():  # an exponent can ask for numbers of any size
        return None
    try:
        return Fraction(plain)
    except (ValueError, ZeroDivisionError):
        return None


def canonical(answer: str | None) -> str | None:
    """One spelling for answers that are the same: 12.0, $12 and 12 agree. None stays None (an invalid answer)."""
    if answer is None or not answer.strip():
        return None
    value = as_number(answer)
    return str(value) if value is not None else " ".join(answer.split()).strip(" .")


def same_answer(gold: str, predicted: str | None, kind: str = "number") -> bool:
    """Whether `predicted` is right. Kind "math" compares expressions with math-verify, gold first."""
    if predicted is None:
        return False
    if canonical(gold) == canonical(predicted):
        return True
    if kind != "math":
        return False
    from math_verify import parse, verify

    # timeouts by signal would need the main thread
    left = parse(f"${gold}$", parsing_timeout=None)
    right = parse(f"${predicted}$", parsing_timeout=None)
    return bool(verify(left, right, timeout_seconds=None))
