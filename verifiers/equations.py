"""Finding the equations that a text writes, and checking them with exact arithmetic."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

MAX_DIGITS = 40
"""Longer numbers, and powers above 64, are not judged."""

MAX_BITS = 4096
"""Nor are powers of powers with more bits than that."""

_LATEX = (
    (re.compile(r"\\d?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r"((\1)/(\2))"),
    (re.compile(r"\\(?:text|mathrm|boxed)\s*\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\\(?:times|cdot)\b"), "*"),
    (re.compile(r"\\div\b"), "/"),
    (re.compile(r"\\left|\\right|\\[,;!() \[\]]"), " "),
    (re.compile(r"\\([%$])"), r"\1"),
)
_ANNOTATION = re.compile(r"<<[^<>]*>>")
_TOKEN = re.compile(
    r"(?P<number>(?:\d{1,3}(?:,\d{3})+(?![\d])|\d+)(?:\.\d+)?|\.\d+)"
    r"|(?P<percent>%)|(?P<power>\*\*|\^)|(?P<op>[*/×÷·−–x]|[-+](?![A-Za-z]))|(?P<open>\()|(?P<close>\))"
    r"|(?P<equals>=|\bis equal to\b|\bequals\b)|(?P<of>\bof\b)|(?P<money>[$€£])"
    r"|(?P<word>-?[A-Za-z_'’]+\.?)|(?P<end>[\n;?!,:]|\.(?!\d))"
)
_OPERATORS = {"×": "*", "·": "*", "x": "*", "÷": "/", "−": "-", "–": "-", "of": "*"}
MAX_UNIT_WORDS = 4
"""Words that may stand between a number and the next sign: "3 boxes of apples * 4"."""

Token = tuple[str, str, int, int]
"""Kind, text, start and end in the normalised text."""


@dataclass(frozen=True)
class Equation:
    """`left = right`, as a text writes it.

    numbers: the numbers on the left side, negative where a minus stands before them. open: whether the text ends right
    after it, so that more digits may come; an annotation (`<<3*4=12>>`) is complete.
    """

    text: str
    left: Fraction
    right: Fraction
    numbers: tuple[Fraction, ...]
    holds: bool
    open: bool = False


def normalise(text: str) -> str:
    """LaTeX, calculator annotations and signs in one plain spelling."""
    for pattern, plain in _LATEX:
        text = pattern.sub(plain, text)
    return text


def find_equations(text: str) -> list[Equation]:
    """Every equation with arithmetic on a side: annotated ones first, then the others, each in order.

    `a = b = c` gives `a = b` and `b = c`.

    A side is the longest run of numbers, signs, units and money that stands next to the equals sign; a statement
    about a name (`x = 5`) or without any arithmetic (`12 = 12`) is none. Linear in the length of the text.
    """
    text = normalise(text)
    found = []
    for match in _ANNOTATION.finditer(text):
        found += [replace(equation, open=False) for equation in _equations_in(match.group()[2:-2])]
    plain = _ANNOTATION.sub("", text)
    seen = {(e.left, e.right, e.numbers) for e in found}
    found += [e for e in _equations_in(plain) if (e.left, e.right, e.numbers) not in seen]
    return found


def _equations_in(text: str) -> list[Equation]:
    found = []
    for line in _lines(text):
        sides = _split(line, "equals")
        if len(sides) < 2:
            continue
        for left, right in pairwise(sides):
            a, b = _last_expression(left), _first_expression(right)
            if a is None or b is None or not (_has_arithmetic(a) or _has_arithmetic(b)):
                continue
            if not _has_arithmetic(a) and left[-1][0] == "word":
                continue  # a conversion: 12 nickels = 12 * 5
            x, y = evaluate(a), evaluate(b)
            if x is None or y is None:
                continue
            written = max((t[1] for t in b if t[0] == "number"), key=len, default="")
            numbers = tuple(_signed(a))
            cut = b[-1][3] >= len(text.rstrip(" $")) and b[-1][0] == "number"
            found.append(Equation(text[a[0][2] : b[-1][3]], x, y, numbers, _agree(x, y, a, b, written), cut))
    return found


def _lines(text: str) -> list[list[Token]]:
    """Tokens, cut where a sentence, a line or an unknown sign ends a run."""
    lines: list[list[Token]] = [[]]
    place = 0
    for match in _TOKEN.finditer(text):
        gap = text[place : match.start()]
        kind = match.lastgroup or ""
        value = match.group()
        if kind == "word" and value.endswith("."):
            lines[-1].append(("word", value, match.start(), match.end()))
            if not text[match.end() : match.end() + 2].strip().isdigit():
                lines.append([])
        elif kind == "end" or gap.strip(" *"):
            lines.append([])
            if kind != "end":
                lines[-1].append((kind, value, match.start(), match.end()))
        else:
            if value == "x" and not _is_times(text, match):
                kind = "word"
            if kind == "word" and len(value) == 1 and text[match.start() - 1 : match.start()].isdigit():
                kind = "name"  # the x of 2x
            lines[-1].append((kind, value, match.start(), match.end()))
        place = match.end()
    return lines


def _is_times(text: str, match: re.Match[str]) -> bool:
    before, after = text[: match.start()].rstrip()[-1:], text[match.end() : match.end() + 3].lstrip()[:1]
    return bool(re.match(r"[\d)%a-z]", before)) and bool(re.match(r"[\d($]", after))


def _split(tokens: Sequence[Token], kind: str) -> list[list[Token]]:
    parts: list[list[Token]] = [[]]
    for token in tokens:
        if token[0] == kind:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _last_expression(tokens: Sequence[Token]) -> list[Token] | None:
    """The longest suffix that reads as arithmetic."""
    run = _trailing_run(tokens)
    for start in range(len(run)):
        if start and run[start - 1][0] in ("op", "power", "name"):
            continue  # the middle of something larger
        if run[start][0] in ("number", "open") or (run[start][1] in "-−–" and _is_sign(run, start)):
            expression = _without_words(run[start:])
            if expression is not None:
                return expression
    return None


def _trailing_run(tokens: Sequence[Token]) -> list[Token]:
    """The tokens after the last place where too many words stand in a row."""
    words, start = 0, 0
    for i, token in enumerate(tokens):
        words = words + 1 if token[0] == "word" else 0
        if words > MAX_UNIT_WORDS:
            start = i + 1
    return list(tokens[max(start, len(tokens) - 60) :])


def _first_expression(tokens: Sequence[Token]) -> list[Token] | None:
    """The longest prefix that reads as arithmetic."""
    tokens = list(tokens[:60])
    end = next((i for i in range(len(tokens)) if _words_from(tokens, i) > MAX_UNIT_WORDS), len(tokens))
    for stop in range(end, 0, -1):
        if tokens[stop - 1][0] in ("number", "close", "percent") and not _goes_on(tokens, stop):
            expression = _without_words(tokens[:stop])
            if expression is not None:
                return expression
    return None


def _goes_on(tokens: Sequence[Token], stop: int) -> bool:
    """Whether an operator, or the name in 2x, ties the expression to what follows."""
    if stop == len(tokens):
        return False
    kind, value = tokens[stop][:2]
    rate = value == "/" and stop + 1 < len(tokens) and tokens[stop + 1][0] == "word"
    return kind in ("op", "power", "name") and not rate


def _words_from(tokens: Sequence[Token], start: int) -> int:
    count = 0
    while start + count < len(tokens) and tokens[start + count][0] == "word":
        count += 1
    return count


def _is_sign(tokens: Sequence[Token], i: int) -> bool:
    return i + 1 < len(tokens) and tokens[i + 1][0] in ("number", "money", "open")


def _without_words(tokens: Sequence[Token]) -> list[Token] | None:
    """The arithmetic of a run with units, money and rates ("4 apples/box") left out; None if it does not parse."""
    kept: list[Token] = []
    for i, token in enumerate(tokens):
        kind, value = token[0], token[1]
        if kind == "money":
            continue
        if kind == "word":
            if not kept:
                return None  # a name, not a quantity
            if (
                i + 1 < len(tokens)
                and tokens[i + 1][0] in ("number", "open")
                and kept[-1][0] in ("number", "close", "percent")
            ):
                return None  # two quantities with only words between them
            continue
        if kind == "op" and value == "/" and i + 1 < len(tokens) and tokens[i + 1][0] == "word":
            continue  # a rate's unit
        if kind == "of" and not (
            kept and i + 1 < len(tokens) and tokens[i + 1][0] in ("number", "open", "money") and _is_part(kept)
        ):
            continue
        kept.append(token)
    return kept if kept and evaluate(kept) is not None else None


def _is_part(kept: Sequence[Token]) -> bool:
    """Whether what stands before "of" is a percentage or a fraction."""
    return kept[-1][0] == "percent" or kept[-1][0] == "close" or (len(kept) >= 3 and kept[-2][1] == "/")


def _has_arithmetic(tokens: Sequence[Token]) -> bool:
    binary = any(t[0] in ("op", "power", "of") for t in tokens[1:])
    return binary or sum(t[0] == "number" for t in tokens) > 1


def _value(text: str) -> Fraction:
    return Fraction(text.replace(",", ""))


def evaluate(tokens: Sequence[Token]) -> Fraction | None:
    """The exact value of an expression, or None if it is none (or divides by zero, or is too large)."""
    try:
        value, rest = _sum(tokens, 0, 0)
    except (ValueError, ZeroDivisionError, IndexError):
        return None
    return value if rest == len(tokens) else None


def _sum(tokens: Sequence[Token], at: int, depth: int) -> tuple[Fraction, int]:
    value, at = _product(tokens, at, depth)
    while at < len(tokens) and (sign := _operator(tokens[at])) in ("+", "-"):
        term, after = _product(tokens, at + 1, depth)
        share = after == at + 3 and tokens[after - 1][0] == "percent" and tokens[at - 1][0] != "percent"
        if share:  # 50 - 20% takes 20% of the 50
            term *= value
        value, at = (value + term if sign == "+" else value - term), after
    return value, at


def _product(tokens: Sequence[Token], at: int, depth: int) -> tuple[Fraction, int]:
    value, at = _power(tokens, at, depth)
    while at < len(tokens):
        sign = _operator(tokens[at])
        if sign in ("*", "/"):
            factor, at = _power(tokens, at + 1, depth)
            value = value * factor if sign == "*" else value / factor
        elif tokens[at][0] == "open":  # 3(4)
            factor, at = _power(tokens, at, depth)
            value *= factor
        else:
            break
    return value, at


def _power(tokens: Sequence[Token], at: int, depth: int) -> tuple[Fraction, int]:
    value, at = _atom(tokens, at, depth)
    if at < len(tokens) and tokens[at][0] == "power":
        exponent, at = _atom(tokens, at + 1, depth)
        if exponent.denominator != 1 or abs(exponent) > 64:
            raise ValueError("power out of range")
        if max(value.numerator.bit_length(), value.denominator.bit_length()) * abs(exponent) > MAX_BITS:
            raise ValueError("power out of range")
        value = value**exponent.numerator
    return value, at


def _atom(tokens: Sequence[Token], at: int, depth: int) -> tuple[Fraction, int]:
    kind, text, *_ = tokens[at]
    if depth > 30:
        raise ValueError("nested too deeply")
    if kind == "op" and _operator(tokens[at]) in ("-", "+"):
        value, at = _atom(tokens, at + 1, depth + 1)
        return (-value if _OPERATORS.get(text, text) == "-" else value), at
    if kind == "open":
        value, at = _sum(tokens, at + 1, depth + 1)
        if tokens[at][0] != "close":
            raise ValueError("unbalanced")
        at += 1
    elif kind == "number" and len(text) <= MAX_DIGITS:
        value, at = _value(text), at + 1
    else:
        raise ValueError("not a number")
    if at < len(tokens) and tokens[at][0] == "percent":
        value, at = value / 100, at + 1
    return value, at


def _operator(token: Token) -> str:
    return _OPERATORS.get(token[1], token[1]) if token[0] in ("op", "of") else ""


def _agree(x: Fraction, y: Fraction, a: Sequence[Token], b: Sequence[Token], written: str) -> bool:
    """Equal, or equal after rounding to the digits that the right side writes, or a percentage written as one."""
    if x == y:
        return True
    if b[-1][0] == "percent" and len(b) == 2 and x == y * 100:
        return True
    if a[-1][0] == "percent" and not _has_arithmetic(a) and x * 100 == y:
        return True
    if _has_arithmetic(b):
        return False
    digits = len(written.partition(".")[2])
    unit = Fraction(1, 10**digits)
    if b[-1][0] == "percent":
        unit /= 100
    rounded = abs(x - y) <= unit / 2
    cut_off = 0 <= abs(x) - abs(y) < unit and x * y >= 0
    return x.denominator != 1 and (digits > 0 or abs(x) >= 10) and (rounded or cut_off)


def _signed(tokens: Sequence[Token]) -> Iterator[Fraction]:
    for i, token in enumerate(tokens):
        if token[0] == "number":
            minus = i > 0 and _operator(tokens[i - 1]) == "-"
            yield -_value(token[1]) if minus else _value(token[1])


def stated_operands(text: str) -> dict[Fraction, int]:
    """The numbers that a text itself adds or subtracts (`7` and `9` in "6 + 7 - 9"), each with its sign."""
    signs: dict[Fraction, int] = {}
    for line in _lines(normalise(text)):
        for before, sign, number in zip(line, line[1:], line[2:], strict=False):
            if before[0] not in ("number", "close") or _operator(sign) not in ("+", "-"):
                continue
            if number[0] == "number" and len(number[1]) <= MAX_DIGITS:
                value, direction = _value(number[1]), 1 if _operator(sign) == "+" else -1
                signs[value] = direction if signs.get(value, direction) == direction else 0  # 0: both ways
    return signs
