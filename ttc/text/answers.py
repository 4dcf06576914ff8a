"""Reading answers out of text, and deciding whether two are the same."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from fractions import Fraction

from ttc.checks import check_kind
from ttc.errors import InvalidInput

_NUMBER = re.compile(
    r"(?<![\w.])[-−]?\$?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:/\d+(?![\d.]))?|(?<![\w.])[-−]?\.\d+"
)
_STATED = re.compile(r"####|\banswer\s*(?:is|:|=)\s*:?", re.IGNORECASE)
_LETTER = r"([B-HJ-Z]\b(?!['’])|[AI]\b(?!['’]|\s+(?!because\b|since\b|as\b|for\b|and\b|not\b|due\b)[a-z]))"
"""A choice, not the word A or I."""
_CHOICES = [
    re.compile(r"(?i:\banswer\s*(?:is|:)?\s*:?\s*(?:option\s*)?)[\(\[*]*" + _LETTER),
    re.compile(r"\\boxed\{\s*(?:\\text\{)?\(?([A-Z])\b"),
    re.compile(r"[\(\[]([A-Z])[\)\]]"),
    re.compile(r"^\W*([A-Z])\W*$", re.MULTILINE),
]
"""Ways to state a choice; the first that a text uses counts, where it uses it last."""
_STATED_SUM = re.compile(r"(?:[-−+*/×÷()$€£%, \t\d]|\.(?=\d))*=(?!=)[ \t]*")


def extract_answer(text: str, kind: str = "number", strict: bool = False) -> str | None:
    """The answer that `text` states, or None.

    kind: "number" takes what follows `####`, "answer is" or "Answer:", then a `\\boxed{}`, then the last number;
    "strict" only a number right after `####` or "answer is" (of an equation there, its result); "choice" a letter,
    stated after "answer", boxed, in brackets or alone on a line, in this order; "math" a `\\boxed{}` or a stated or
    last expression; "text" what follows the last "answer is", or the last line.
    strict: only what is said in the form that the prompts ask for: "number" as kind "strict", "choice" a letter after
    "answer is" or "answer:", "math" a `\\boxed{}`. "text" has one form.
    """
    check_kind("text", text, isinstance(text, str), "a string")
    if kind not in _EXTRACTORS:
        raise InvalidInput(f"answer kind {kind!r} is unknown; use one of {', '.join(_EXTRACTORS)}")
    return (_STRICT if strict else _EXTRACTORS)[kind](text)


def check_gold(gold: str, kind: str) -> None:
    """Raise InvalidInput for a gold answer that no extracted answer of this kind can ever equal."""
    solution = "####" in gold
    if kind in ("number", "strict"):
        wrong, wanted = as_number(gold) is None, "a number"
    elif kind == "choice":
        wrong, wanted = re.fullmatch("[A-Z]", gold.strip()) is None, "a capital letter"
    else:
        wrong, wanted = solution, "an answer alone"
    if wrong:
        shown = repr(gold if len(gold) <= 60 else f"...{gold[-57:]}")
        way = (
            "it is a whole solution with the answer after ####, which dataset.reader=gsm8k reads"
            if solution
            else "give the answer alone, or the answer_kind that it has: number, choice, math or text"
        )
        raise InvalidInput(
            f"the gold answer {shown} is not {wanted}, so that with answer_kind={kind} none is right; {way}"
        )


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
        rest = text[mark.end() :]
        while equation := _STATED_SUM.match(rest):
            rest = rest[equation.end() :]
        found = _NUMBER.match(rest.lstrip(" \t*:$\\({").replace("−", "-"))
        if found:
            return found.group()
    return None


def _choice(text: str) -> str | None:
    return next((found[-1] for pattern in _CHOICES if (found := pattern.findall(text))), None)


def _stated_choice(text: str) -> str | None:
    found = _CHOICES[0].findall(text)
    return found[-1] if found else None


def _boxed(text: str) -> str | None:
    return (boxed(text) or "").strip() or None


def _math(text: str) -> str | None:
    if boxed(text) is not None:
        return _boxed(text)
    marks = list(_STATED.finditer(text))
    if marks:
        line = text[marks[-1].end() :].strip().split("\n")[0]
        stated = re.split(r"\.\s+(?=[A-Z])", line)[0].strip(" $.*")  # up to the next sentence
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
_STRICT = _EXTRACTORS | {"number": _strict, "choice": _stated_choice, "math": _boxed}


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
    """The exact value of a number as people write it ($1,200.50, 3/4, 1 1/2, 12%, \\frac{3}{4}), or None."""
    plain = re.sub(r"\\?[$€£%]", "", answer.replace("−", "-")).strip().rstrip(".")
    plain = re.sub(r"\\[dt]?frac\s*\{\s*(-?\d+)\s*\}\s*\{\s*(\d+)\s*\}", r" \1/\2", plain).strip()
    if mixed := re.fullmatch(r"([-+]?)(\d+)\s+(\d+/\d+)", plain):
        sign, whole, part = mixed.groups()
        value = as_number(part)
        return None if value is None else (int(whole) + value) * (-1 if sign == "-" else 1)
    plain = re.sub(r"(?<=\d)[,\s](?=\d{3}(?!\d))", "", re.sub(r"^([-+])\s+", r"\1", plain))  # thousands
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
    return str(value) if value is not None else " ".join(_plain_latex(answer).split()).strip(" .")


def _plain_latex(answer: str) -> str:
    """Without what changes how a formula looks, not what it says."""
    sized = re.sub(r"\\(?:left|right|displaystyle)\b\s*", "", re.sub(r"\\[dt]frac\b", r"\\frac", answer))
    return re.sub(r"\\[,;:! ]", " ", sized)


def same_answer(gold: str, predicted: str | None, kind: str = "number") -> bool:
    """Whether `predicted` is right. Kind "math" compares expressions with math-verify, gold first."""
    if predicted is None:
        return False
    if canonical(gold) == canonical(predicted):
        return True
    if kind != "math":
        return False
    from math_verify import parse, verify

    seconds = 5 if threading.current_thread() is threading.main_thread() else None  # its timeouts are signals
    left = parse(f"${gold}$", parsing_timeout=seconds)
    right = parse(f"${predicted}$", parsing_timeout=seconds)
    return bool(verify(left, right, timeout_seconds=seconds))
