"""Which mathematical expression a text states as its answer."""

from __future__ import annotations

import re

from ttc.text.boxes import after_cut, boxed
from ttc.text.number_answers import find_number, in_english, stated_number
from ttc.text.numbers import CURRENCIES, as_number
from ttc.text.statements import Statement, clause, decimal_comma, plain, statements
from ttc.text.tables import WORDS
from ttc.text.units import split_unit

_FORMULA = re.compile(
    r"\$\$([^$]++)\$\$"
    r"|(?<![\\$])\$(?![\s$])((?:[^$\n\\]|\\.)++)(?<!\s)\$(?![\d$])"
    r"|\\\(((?:[^\\]|\\[^()])++)\\\)"
    r"|(?<!\\)\\\[((?:[^\\]|\\[^\[\]])++)\\\]"
)
"""Between $, $$, \\( or \\[. Two prices ($5 and $7) make none: before the second $ is a blank."""

_JOINED = re.compile(r"[^\w$\\.]*+(?:(?:and|or)\b[^\w$\\]*+)?(?:\$|\\\(|\\\[)")
"""What parts two formulas of one answer, as in $x = 1$ or $x = 2$."""
_QUOTED = re.compile(r'"((?:[^"\\\n]|\\.)++)"')
_DIGIT = re.compile(r"\d")
_MATHS = re.compile(r"[\d\\=<>^∞√π+]|\$")
_SAYS_NOTHING = re.compile(rf"(?:{WORDS['says_nothing']})\b", re.IGNORECASE)
LONGEST_SENTENCE = 400
_LABEL = re.compile(r"[A-Za-z]{2,12}:[ \t]*")
_VALUE = re.compile(
    r"(?:[Tt]he\s)?(?:[A-Za-z]{2,}|\$[^$\n]{1,60}\$)\s"
    rf"(?:(?!\b(?:{WORDS['limits']})\b)[^.,;:\n])*"
    r"\b(?:is|are|equals|be)\s(?=(?:[$*(]|\\\()*[-−\\]?[\d.\\])"
)
"""What stands before a value that a sentence names: "the number of ways is 120"."""
_SUM = re.compile(r"(-?[\d.,]+) ?= ?[-\d.,() ]+(?:[-+*/×÷^]|\\times|\\cdot)[-+*/×÷^\d.,() ]*")
"""A number and the sum that it comes from, as in 7 = 3 + 4."""
_COUNTED = re.compile(
    rf"((?:\\?[{CURRENCIES}])?[\d.,]*\d(?:\s[A-Za-z]{{1,20}}){{0,2}}?)\s(?:for|per|over|from|in)\s\d.*"
)
"""A number and what it is counted for, as in \\$15 for 2 tickets."""


def find_expression(text: str) -> str | None:
    """The last `\\boxed{}`, or several that are one answer; else what is stated, up to the end of
    its clause; else the last number, or the formula that it stands in."""
    rest = plain(after_cut(text))
    if len(rest) < len(text) and rest.count("{") > rest.count("}"):
        return None  # a formula that was cut
    text = rest
    if (content := boxed(text)) is not None:
        return _pointed(content.strip(), text) or None
    content = _stated(text) or stated_number(text) or _several(text) or _last_formula(text)
    content = content or _last_typed(text) or find_number(text)
    return content and _pointed(content, text)


def boxed_expression(text: str) -> str | None:
    return _pointed((boxed(text) or "").strip(), text) or None


_COMMA = re.compile(r"([^\d,;()\[\]]*+)(\d[\d. ]*+(?:,|\{,\})\d++)([^\d,;()\[\]]*+)")


def _pointed(content: str, text: str) -> str:
    """One number with a decimal comma as English writes it, where the text's language has them."""
    number = _COMMA.fullmatch(content)
    if number is None or not decimal_comma(text):
        return content
    return number[1] + in_english(number[2].replace("{,}", ","), True) + number[3]


def _stated(text: str) -> str | None:
    """The last statement of something mathematical, else the last of words ("Tuesday")."""
    contents = [content for one in statements(text) if (content := _content_of(text, one))]
    maths = [content for content in contents if _MATHS.search(content)]
    best = maths or contents
    return best[-1] if best else None


def _content_of(text: str, statement: Statement) -> str | None:
    if not statement.linked:
        return None
    rest = text[statement.place : statement.place + 4000].lstrip(" \t\n*:_}")
    if quoted := _QUOTED.match(rest):
        return quoted[1]
    line = rest.split("\n", 1)[0]
    if statement.hashes and _is_heading(line, text, statement.place):
        return None
    formula = _FORMULA.match(rest)
    if formula and not _JOINED.match(rest, formula.end()):
        return _result(_unpointed(_content(formula))) or None
    if statement.hashes and (label := _LABEL.match(line)):
        rest = rest[label.end() :]
    value = _VALUE.match(rest[:LONGEST_SENTENCE])
    content = _unpointed(clause(rest, value.end() if value else 0).strip(" $*_`"))
    return None if _SAYS_NOTHING.match(content) else _result(content) or None


def _is_heading(line: str, text: str, place: int) -> bool:
    """Whether what follows `####` is words, or a number with words, above more text."""
    words = re.match(r"(?:\d{1,2}[.)] )?[*_]*[A-Za-z]{2}", line)
    _, _, below = text[place : place + 4000].lstrip(" \t\n").partition("\n")
    return words is not None and bool(below.strip())


def _result(content: str) -> str:
    """Of 7 = 3 + 4 the number; all else as it is."""
    total = _SUM.fullmatch(content) or _COUNTED.fullmatch(content)
    return total[1] if total else content


def _unpointed(content: str) -> str:
    """Without the full stop at its end, and the blanks around."""
    return content.strip().rstrip(" .").strip()


_SENTENCE = re.compile(r"[.!?]\s|\n\s*\n")
_AFTERTHOUGHT = re.compile(
    r"(?<=[$)\]]),?\s(?:because|since|(?:which\sis\s|and\sis\s)?"
    rf"(?:{WORDS['attained']})\s(?:{WORDS['before_condition']}))\s[^,]*$"
)
"""What the last sentence says of its formula: "The minimum is $-1$, attained at $x = 2$." """


def _last_formula(text: str) -> str | None:
    """The formula with the text's last digit, of an equation its result if that is a number."""
    sentences = text.rstrip()
    start = max(0, len(sentences) - LONGEST_SENTENCE)
    ends = [end.end() for end in _SENTENCE.finditer(sentences, start)]
    last = ends[-1] if ends else start
    after = _AFTERTHOUGHT.search(sentences, last)
    return (after and _last_formula_of(text[: after.start()], last)) or _last_formula_of(text)


def _last_formula_of(text: str, start: int = 0) -> str | None:
    last = max((digit.start() for digit in _DIGIT.finditer(text, start)), default=-1)
    for formula in _FORMULA.finditer(text, start):
        if formula.start() < last < formula.end():
            content = _content(formula)
            result = _unpointed(content.rpartition("=")[2])
            if result == "0" or (content.count("=") > 1 and "," in content):
                return content  # x - 2y = 0 is a line; k = 45, n = 2 are two answers
            return result if as_number(split_unit(result)[0]) is not None else content
    return None


_NUMBER = r"[-−]?\d++(?:\.\d++)?"
_SEVERAL = re.compile(
    rf"(?<![\w$])\$?([A-Za-z]) ?= ?{_NUMBER}\$?"
    rf"(?:(?:,? (?:or|and)|,) (?:\$?\1 ?= ?)?{_NUMBER}\$?)+(?=\W{{0,9}}$)"
)
_CONDITION = re.compile(rf"\b(?:{WORDS['before_condition']})\W*$")
_TYPED = re.compile(
    rf"(?<![\w.:/]){_NUMBER}(?:(?: : |:){_NUMBER})+(?: ?[APap]\.?[Mm]\b)?"
    r"|(?<![\w'′])\d+['′’] ?\d+(?:''|′′|[\"″”])"
    rf"|(?<!\w)[(\[]{_NUMBER}(?:, ?{_NUMBER})+[)\]]"
    r"|(?<!\d)\d*+√\(?\d++\)?"
)
"""Ratios and times of day, feet and inches, points and intervals, roots, as people type them."""


def _several(text: str) -> str | None:
    """Equations that end a text together: x = 1 or x = 3."""
    found = _SEVERAL.search(text, max(0, len(text) - LONGEST_SENTENCE))
    if found is None or _CONDITION.search(text[max(0, found.start() - 20) : found.start()]):
        return None
    return found[0].replace("$", "")


def _last_typed(text: str) -> str | None:
    """What is typed without LaTeX with the text's last digit in it."""
    line = text.rstrip().rfind("\n") + 1
    last = max((digit.start() for digit in _DIGIT.finditer(text, line)), default=-1)
    typed = (one[0] for one in _TYPED.finditer(text, line) if one.start() <= last < one.end())
    return next(typed, None)


def _content(formula: re.Match[str]) -> str:
    return str(formula[formula.lastindex or 0]).strip()
