"""Reading answers out of text."""

from __future__ import annotations

import re
from collections.abc import Callable

from ttc.checks import check_is
from ttc.errors import InvalidInput
from ttc.text.boxes import boxed
from ttc.text.code import find_program
from ttc.text.multiple_choice import find_choice, stated_choice
from ttc.text.numbers import as_number, hyphened, without_unit
from ttc.text.thinking_marks import ThinkingMarks
from ttc.text.thinking_models import ANY

__all__ = ["KINDS", "boxed", "check_gold", "extract_answer"]

# Quantifiers that keep what they took (++, *+) make every pattern linear.
_FRACTION = r"/\d++(?!\.\d)"
_WHOLE = r"(?:\d{1,3}(?:,\d{3}(?!\d))++|\d++)"
_DIGITS = (
    rf"[-−–]?\$?\d{{1,3}}+[ ]\d++{_FRACTION}"  # 1 1/2
    rf"|[-−–]?\$?{_WHOLE}(?:\.\d++)?(?:{_FRACTION})?"
    r"|[-−–]?\.\d++"
)
_NUMBER = re.compile(rf"(?<![\w.])(?:{_DIGITS})")
_NUMBER_HERE = re.compile(rf"[ \t*:$\\({{]*+({_DIGITS})")
_STATED = re.compile(r"####|\banswer\s*+(?:is|:|=)\s*+:?+", re.IGNORECASE)
_STATED_SUM = re.compile(r"(?:[-−–+*/×÷()$€£%, \t\d]|\.(?=\d))*+=(?!=)[ \t]*+")
_SENTENCE_END = re.compile(r"\.\s++(?=[A-Z])")


def extract_answer(
    text: str,
    kind: str = "number",
    strict: bool = False,
    choices: str | None = None,
    marks: ThinkingMarks | None = ANY,
) -> str | None:
    """The answer that `text` states, or None, in time linear in the text.

    kind: "number" takes what follows `####`, "answer is" or "Answer:", then a `\\boxed{}`, then the
        last number; "strict" only a number right after `####` or "answer is" (of an equation, its
        result); "choice" a letter, as `find_choice` reads it; "math" a `\\boxed{}` or a stated or
        last expression; "text" what follows the last "answer is", or the last line; "code" a
        program, as `find_program` reads it.
    strict: only the form that the prompts ask for: "number" as kind "strict", "choice" a letter
        after "answer is" or "answer:", "math" a `\\boxed{}`, "code" a fenced block.
    choices: the letters of the problem's choices, as "ABCD", if they are known.
    marks: what parts thoughts, which are not read, from the answer, by default those of all known
        models; None reads the whole text.
    """
    check_is("text", text, str, "a string")
    if kind not in KINDS:
        raise InvalidInput(f"answer kind {kind!r} is unknown; use one of {', '.join(KINDS)}")
    answer = text if marks is None else marks.split(text).answer
    if answer is None:
        return None
    if kind == "choice":
        return (stated_choice if strict else find_choice)(answer, choices)
    return (_STRICT if strict else _EXTRACTORS)[kind](answer)


def check_gold(gold: str, kind: str) -> None:
    """Raise InvalidInput for a gold answer that no extracted answer of this kind can ever equal."""
    is_solution = "####" in gold
    if kind in ("number", "strict"):
        fits, form = as_number(without_unit(gold)) is not None, "a number"
    elif kind == "choice":
        fits, form = re.fullmatch("[A-Z]", gold.strip()) is not None, "a capital letter"
    else:
        fits, form = kind == "code" or not is_solution, "an answer alone"
    if fits:
        return
    shown = repr(gold if len(gold) <= 60 else f"...{gold[-57:]}")
    way = (
        "give the answer alone, or the answer_kind that it has: number, choice, math, text or code"
    )
    if is_solution:
        way = "it is a whole solution with the answer after ####, which dataset.reader=gsm8k reads"
    raise InvalidInput(
        f"the gold answer {shown} is not {form}, so that with answer_kind={kind} none is right; "
        f"{way}"
    )


def _number(text: str) -> str | None:
    stated = _strict(text)
    if stated is not None:
        return stated
    content = boxed(text)
    numbers = _NUMBER.findall(content) if content is not None else []
    if content is not None and len(numbers) > 1 and as_number(without_unit(content)) is not None:
        return content.strip()  # \frac{3}{4}, or 12 000
    numbers = numbers or _NUMBER.findall(text)
    return hyphened(numbers[-1]) if numbers else None


def _strict(text: str) -> str | None:
    for mark in reversed(list(_STATED.finditer(text))):
        place = mark.end()
        while equation := _STATED_SUM.match(text, place):
            place = equation.end()
        if number := _NUMBER_HERE.match(text, place):
            return hyphened(number[1])
    return None


def _boxed(text: str) -> str | None:
    return (boxed(text) or "").strip() or None


def _math(text: str) -> str | None:
    if boxed(text) is not None:
        return _boxed(text)
    marks = list(_STATED.finditer(text))
    if marks:
        line = text[marks[-1].end() :].strip().split("\n")[0]
        stated = _SENTENCE_END.split(line, 1)[0].strip(" $.*")
        if stated:
            return stated
    return _number(text)


def _text(text: str) -> str | None:
    marks = list(_STATED.finditer(text))
    rest = text[marks[-1].end() :] if marks else text
    lines = [line.strip(" *.") for line in rest.strip().splitlines() if line.strip(" *.")]
    return (lines[0] if marks else lines[-1]) if lines else None


def _fenced(text: str) -> str | None:
    return find_program(text, strict=True)


_EXTRACTORS: dict[str, Callable[[str], str | None]] = {
    "number": _number,
    "strict": _strict,
    "math": _math,
    "text": _text,
    "code": find_program,
}
_STRICT = _EXTRACTORS | {"number": _strict, "math": _boxed, "code": _fenced}
KINDS = ("number", "strict", "choice", "math", "text", "code")
