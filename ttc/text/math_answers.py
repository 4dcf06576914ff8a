"""Which mathematical expression a text states as its answer."""

from __future__ import annotations

import re

from ttc.text.boxes import boxed
from ttc.text.number_answers import STATED, find_number, stated_number
from ttc.text.numbers import as_number, without_unit

_FORMULA = re.compile(
    r"\$\$([^$]++)\$\$"
    r"|(?<![\\$])\$(?![\s$])((?:[^$\n\\]|\\.)++)(?<!\s)\$(?![\d$])"
    r"|\\\(((?:[^\\]|\\[^()])++)\\\)"
    r"|(?<!\\)\\\[((?:[^\\]|\\[^\[\]])++)\\\]"
)
"""Between $, $$, \\( or \\[. Two prices ($5 and $7) make none: before the second $ is a blank."""

_ANSWER_END = re.compile(
    r"\.\s++(?=[A-Z])|(?:,|(?<!\s))\s++(?:because|since|found|which)\b"
    r"|(?<!\s)\s++\((?=[a-z]{2,}\s)"
)
"""Where a sentence goes on without its answer: at a full stop, a reason, a remark in brackets."""
_JOINED = re.compile(r"[^\w$\\]*+(?:(?:and|or)\b[^\w$\\]*+)?(?:\$|\\\(|\\\[)")
"""What parts two formulas of one answer, as in $x = 1$ or $x = 2$."""
_DIGIT = re.compile(r"\d")


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
    if formula and not _JOINED.match(rest, formula.end()):
        return _content(formula).strip(" .")
    line = rest.split("\n")[0]
    return _ANSWER_END.split(line, 1)[0].strip(" $.*") or None


def _last_formula(text: str) -> str | None:
    """The formula with the text's last digit, of an equation its result if that is a number."""
    last = max((digit.start() for digit in _DIGIT.finditer(text)), default=-1)
    for formula in _FORMULA.finditer(text):
        if formula.start() < last < formula.end():
            content = _content(formula)
            result = content.rpartition("=")[2].strip(" .")
            return result if as_number(without_unit(result)) is not None else content
    return None


def _content(formula: re.Match[str]) -> str:
    return str(formula[formula.lastindex or 0]).strip()
