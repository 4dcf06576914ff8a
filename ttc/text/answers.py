"""Reading answers out of text."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial

from ttc.checks import check_choice, check_is
from ttc.errors import InvalidInput
from ttc.text.boxes import boxed
from ttc.text.numbers import as_number
from ttc.text.statements import plain, statements
from ttc.text.thinking_marks import ThinkingMarks
from ttc.text.thinking_models import ANY
from ttc.text.units import split_unit

__all__ = ["KINDS", "boxed", "check_gold", "extract_answer"]


def extract_answer(
    text: str,
    kind: str = "number",
    strict: bool = False,
    choices: str | None = None,
    marks: ThinkingMarks | None = ANY,
) -> str | None:
    """The answer that `text` states, or None, in time linear in the text.

    kind: "number", "math", a "choice"'s letter, "text", "code" (a program), or "strict", which is
        "number" with `strict`.
    strict: only the form that the prompts ask for: a number right after `####` or "answer is", a
        letter after "answer is" or "answer:", a `\\boxed{}`, a fenced block.
    choices: the letters of the problem's choices, as "ABCD", if they are known.
    marks: what parts thoughts, which are not read, from the answer, by default those of all known
        models; None reads the whole text.
    """
    check_is("text", text, str, "a string")
    check_choice(kind, KINDS, f"answer kind {kind!r} is unknown")
    if kind != "code" and ("nswer>" in text or "NSWER>" in text):
        text = _TAGS.sub(lambda tag: "\n" if tag[1] else "\nAnswer: ", text)
    answer = text if marks is None else marks.split(text).answer
    if answer is None:
        return None
    read = _reader(kind, strict)
    return read(answer, choices) if kind == "choice" else read(answer)


_TAGS = re.compile(r"<(/?)(?:final[ _-]?)?answer>", re.IGNORECASE)


def check_gold(gold: str, kind: str) -> None:
    """Raise InvalidInput for a gold answer that no extracted answer of this kind can ever equal."""
    is_solution = "####" in gold
    if kind in ("number", "strict"):
        fits, form = as_number(split_unit(gold)[0]) is not None, "a number"
    elif kind == "choice":
        fits, form = re.fullmatch("[A-Z]", gold.strip()) is not None, "a capital letter"
    else:
        fits, form = kind == "code" or not is_solution, "an answer alone"
    if fits:
        return
    quoted = repr(gold if len(gold) <= 60 else f"...{gold[-57:]}")
    way = (
        "give the answer alone, a number with a decimal point, or the answer_kind that it has: "
        "number, choice, math, text or code"
    )
    if is_solution:
        way = "it is a whole solution with the answer after ####, which dataset.reader=gsm8k reads"
    raise InvalidInput(
        f"the gold answer {quoted} is not {form}, so that with answer_kind={kind} none is right; "
        f"{way}"
    )


def _text(text: str) -> str | None:
    stated = [one for one in statements(plain(text)) if one.linked and not one.corrects]
    rest = text[stated[-1].place :] if stated else text
    lines = [line.strip(" *.") for line in rest.strip().splitlines() if line.strip(" *.")]
    return (lines[0] if stated else lines[-1]) if lines else None


KINDS = ("number", "strict", "choice", "math", "text", "code")


@cache
def _reader(kind: str, strict: bool) -> Callable[..., str | None]:
    """What reads answers of a kind. A kind's grammar is loaded when it is first asked for."""
    if kind == "text":
        return _text
    if kind == "choice":
        from ttc.text.multiple_choice import find_choice, stated_choice

        return stated_choice if strict else find_choice
    if kind == "math":
        from ttc.text.math_answers import boxed_expression, find_expression

        return boxed_expression if strict else find_expression
    if kind == "code":
        from ttc.text.code import find_program

        return partial(find_program, strict=strict)
    from ttc.text.number_answers import find_number, stated_number

    return stated_number if strict or kind == "strict" else find_number
