"""Which mathematical expression a text states as its answer."""

from __future__ import annotations

import re

from ttc.text.boxes import boxed
from ttc.text.number_answers import STATED, find_number, last_number, stated_number
from ttc.text.numbers import as_number, without_unit

_FORMULA = re.compile(
    r"\$\$([^$]++)\$\$"
    r"|(?<![\\$])\$(?![\s$])((?:[^$\n\\]|\\.)++)(?<!\s)\$(?![\d$])"
    r"|\\\(((?:[^\\]|\\[^()])++)\\\)"
    r"|(?<!\\)\\\[((?:[^\\]|\\[^\[\]])++)\\\]"
)
"""Between $, $$, \\( or \\[. Two prices ($5 and $7) make none: before the second $ is a blank."""

_SENTENCE_END = re.compile(r"\.\s++(?=[A-Z])")


def find_expression(text: str) -> str | None:
    """The last `\\boxed{}`, else what follows the last "answer is", else the last number, or the
    formula that it stands in."""
    if boxed(text) is not None:
        return boxed_expression(text)
    return _stated(text) or stated_number(text) or _last_formula(text) or find_number(text)


def boxed_expression(text: str) -> str | None:
    return (boxed(text) or "").strip() or None


def _stated(text: str) -> str | None:
    marks = list(STATED.finditer(text))
    if not marks:
        return None
    rest = text[marks[-1].end() :].lstrip(" \t\n*:")
    formula = _FORMULA.match(rest)
    if formula and not _FORMULA.search(rest.split("\n\n")[0], formula.end()):
        return _content(formula).strip(" .")
    line = rest.split("\n")[0]
    return _SENTENCE_END.split(line, 1)[0].strip(" $.*") or None


def _last_formula(text: str) -> str | None:
    """The formula with the text's last number, of an equation its result if that is a number."""
    number = last_number(text)
    if number is None:
        return None
    for formula in _FORMULA.finditer(text):
        if formula.start() < number.start() < formula.end():
            content = _content(formula)
            result = content.rpartition("=")[2].strip(" .")
            return result if as_number(without_unit(result)) is not None else content
    return None


def _content(formula: re.Match[str]) -> str:
    return str(formula[formula.lastindex or 0]).strip()
