"""Finding the equations that a text writes, and checking them with exact arithmetic."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from ttc.text.numbers import CURRENCIES, VULGAR
from ttc.text.statements import plain

MAX_DIGITS = 40
MAX_EXPONENT = 64
MAX_POWER_BITS = 4096
"""What is larger is not judged."""
MAX_SIDE_TOKENS = 60
"""A side of an equation is looked for among so many tokens."""
MAX_UNIT_WORDS = 4
"""Words that may stand between a number and the next sign: "3 boxes of apples * 4"."""
MAX_LINE_CHARS = 2000
"""A line that no sentence ends before is cut at the last blank."""

_PLAIN = (
    (re.compile(r"(?m)^[ \t]*(?:[-*•]|\w{1,2}\))[ \t]+(?=\S)"), ""),  # of a list
    (re.compile(r"(\d)(?<![\d.,]\d)(\d*),(\d\d?)(?![\d.,]*\d)"), r"\1\2.\3"),  # 2,5
    (re.compile(r"(?<=\d)(?:\{,\}|,?\\[!,;: ])(?=\d{3}(?!\d))"), ","),  # 3{,}000
    (re.compile(r"\*\*(?!(?<=[\d)]\*\*)[\d(]|(?<=[\d)]\s\*\*)\s[\d(])"), ""),  # **5**, not 2**5
    (re.compile(r"\\[dt]?frac\s*(\d)\s*(\d)"), r"((\1)/(\2))"),
    (re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r"((\1)/(\2))"),
    (re.compile(r"\^\{(\d+)\}"), r"^\1"),
    (re.compile("(?<=[A-Za-z])[²³]"), ""),  # of a unit
    (re.compile("²"), "^2"),
    (re.compile("³"), "^3"),
    (re.compile(r"\\(?:text|mathrm|boxed)\s*\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\\(?:times|cdot|ast)\b"), "*"),
    (re.compile(r"\\div\b"), "/"),
    (re.compile(r"\\left|\\right|\\[,;!() \[\]]"), " "),
    (re.compile(r"\\([%$])"), r"\1"),
)
_ANNOTATION = re.compile(r"<<[^<>]*>>")
_BREAK = re.compile(r"\n|\.\s(?=[^\s\d])")
_TOKEN = re.compile(
    r"(?P<clock>\d+:\d\d(?!\d))"
    r"|(?P<number>(?:\d{1,3}(?:,\d{3})+(?![\d])|\d+)(?:\.\d+)?|\.\d+)"
    r"|(?P<percent>%)|(?P<power>\*\*|\^)|(?P<op>[*/×÷·⋅∙∗∕−–x]|[-+](?![A-Za-z]))"
    r"|(?P<open>\()|(?P<close>\))"
    r"|(?P<equals>=|\bis equal to\b|\bequals\b)|(?P<of>\bof\b)"
    rf"|(?P<money>[{CURRENCIES}])"
    r"|(?P<word>-?[A-Za-zÀ-ÖØ-öø-ӿ_'’]+\.?)|(?P<end>[\n;?!,:]|\.(?!\d))"
)
_SPELLINGS = {
    **dict.fromkeys((*"×·⋅∙∗x", "of"), "*"),
    **dict.fromkeys("÷∕", "/"),
    **dict.fromkeys("−–", "-"),
    "^": "**",
}
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
OPERATORS = ("op", "power", "of")
BEGINS = ("number", "open")
ENDS = ("number", "close", "percent")
"""The kinds of tokens with which a quantity may begin and end."""


class Token(NamedTuple):
    """kind: a group of `_TOKEN`, or "name" for an unknown, as the x of 2x. text: Python's."""

    kind: str
    text: str
    start: int
    end: int


class Expression(NamedTuple):
    """Arithmetic without units and money, and what it comes to."""

    tokens: list[Token]
    value: Fraction

    @property
    def computes(self) -> bool:
        """Whether there is anything to compute, and it is no number alone."""
        numbers = sum(token.kind == "number" for token in self.tokens)
        return numbers > 1 or any(token.kind in OPERATORS for token in self.tokens[1:])

    @property
    def numbers(self) -> tuple[Fraction, ...]:
        """The numbers as they are written, negative where a minus stands before them."""
        signs = ["", *(token.text for token in self.tokens)]
        return tuple(
            _number(token) * (-1 if sign == "-" else 1)
            for sign, token in zip(signs, self.tokens, strict=False)
            if token.kind == "number"
        )

    @property
    def is_share(self) -> bool:
        """Whether it is a fraction below 1 or a percentage alone."""
        kinds = [token.kind for token in self.tokens]
        return kinds == ["number", "percent"] or (
            len(kinds) == 3 and _begins_with_share(self.tokens)
        )

    @property
    def is_percentage(self) -> bool:
        return self.tokens[-1].kind == "percent"


@dataclass(frozen=True)
class Equation:
    """`left = right`. numbers: those on the left side, negative where a minus stands before them.
    open: the text ends right after it, so that more digits may come."""

    left: Fraction
    right: Fraction
    numbers: tuple[Fraction, ...]
    holds: bool
    open: bool = False


def normalise(text: str) -> str:
    if not text.isascii():
        text = plain(text).translate(VULGAR)
    for pattern, written in _PLAIN:
        text = pattern.sub(written, text)
    return text


def complete_length(text: str) -> int:
    """How long the beginning is whose equations don't change when more text follows."""
    end = max((match.end() for match in _BREAK.finditer(text)), default=0)
    if len(text) - end <= MAX_LINE_CHARS:
        return end
    return max(end, text.rfind(" ") + 1)


def find_equations(text: str) -> list[Equation]:
    """Every equation with arithmetic on a side: annotated ones first, then the others, in order.

    `a = b = c` gives `a = b` and `b = c`. A side is the longest run of numbers, signs, units and
    money next to the equals sign. A statement about a name (`x = 5`) or without arithmetic
    (`12 = 12`) is none. Takes linear time.
    """
    text = normalise(text)
    annotated = [  # and so complete
        replace(equation, open=False)
        for annotation in _ANNOTATION.findall(text)
        for equation in _equations_in(annotation[2:-2])
    ]
    seen = {(e.left, e.right, e.numbers) for e in annotated}
    plain = _equations_in(_ANNOTATION.sub("", text))
    return annotated + [e for e in plain if (e.left, e.right, e.numbers) not in seen]


def stated_operands(text: str) -> dict[Fraction, int]:
    """The numbers that a text adds or subtracts (7 and 9 in "6 + 7 - 9"), with sign; 0 for both
    ways."""
    signs: dict[Fraction, int] = {}
    for line in _lines(normalise(text)):
        for before, sign, number in zip(line, line[1:], line[2:], strict=False):
            if before.kind not in ("number", "close") or sign.text not in ("+", "-"):
                continue
            if number.kind == "number" and len(number.text) <= MAX_DIGITS:
                value = _number(number)
                direction = 1 if sign.text == "+" else -1
                signs[value] = direction if signs.get(value, direction) == direction else 0
    return signs


def _equations_in(text: str) -> list[Equation]:
    equations = []
    length = len(text.rstrip(" $"))
    for line in _lines(text):
        places = [place for place, token in enumerate(line) if token.kind == "equals"]
        for start, sign, end in zip([-1, *places], places, [*places[1:], None], strict=False):
            left_side = line[start + 1 : sign]
            left, right = _last_expression(left_side), _first_expression(line[sign + 1 : end])
            if left is None or right is None or not (left.computes or right.computes):
                continue
            if line[sign].text != "=" and left.is_share:
                continue  # of something: 2/5 is equal to 12 hectares
            if not left.computes and left_side[-1].kind == "word":
                continue  # a conversion: 12 nickels = 12 * 5
            last = right.tokens[-1]
            is_open = last.end >= length and last.kind == "number"
            holds = _agree(left, right) or _agree(*map(_in_thousands, (left, right)))
            equations.append(Equation(left.value, right.value, left.numbers, holds, is_open))
    return equations


# ---------------------------------------------------------------- tokens


def _lines(text: str) -> list[list[Token]]:
    """Tokens, cut where a sentence, a line or an unknown sign ends a run."""
    lines: list[list[Token]] = [[]]
    place = 0
    for match in _TOKEN.finditer(text):
        start, end = match.span()
        kind, value = match.lastgroup or "", match.group()
        unknown = text[place:start].strip(" *")
        place = end
        ends_a_word = kind == "word" and value.endswith(".")
        if kind == "end" or (unknown and not ends_a_word):
            lines.append([])
        if kind == "end":
            continue
        kind = _kind_of(kind, value, match, lines[-1])
        value = _SPELLINGS.get(value, value) if kind in OPERATORS else value
        lines[-1].append(Token(kind, value, start, end))
        if ends_a_word and not text[end : end + 2].strip().isdigit():
            lines.append([])
    return lines


def _kind_of(kind: str, value: str, match: re.Match[str], before: Sequence[Token]) -> str:
    text, start = match.string, match.start()
    if value == "x" and not _is_times(text, start, match.end()):
        kind = "word"
    named = kind in ("word", "number") and _is_unknown(text, value, start, before)
    return "name" if named or kind == "clock" else kind


def _is_unknown(text: str, value: str, start: int, before: Sequence[Token]) -> bool:
    """Whether a word or number is a name: the x of 2x, (1/2)x, 9-x, "is x" and 3*x, the 3 of D3. A
    letter after a number and a blank is a unit (5 m), but for x, y and z."""
    near = text[start - 1 : start] if start else ""
    last = before[-1] if before else None
    if value[0].isdigit():
        return last is not None and last.kind in ("word", "name") and near.isalpha()
    letter = value.strip("-.")
    if len(letter) != 1 or not letter.isalpha():
        return False
    if near.isdigit() or near == ")" or letter.lower() in "xyz":
        return True
    return letter not in "aAI" and (last is None or last.kind not in ENDS)


def _is_times(text: str, start: int, end: int) -> bool:
    before = text[:start].rstrip()[-1:]
    after = text[end : end + 3].lstrip()[:1]
    return bool(re.match(r"[\d)%a-z]", before) and re.match(r"[\d($]", after))


def _number(token: Token) -> Fraction:
    return Fraction(token.text.replace(",", ""))


# ---------------------------------------------------------------- expressions


def _last_expression(tokens: Sequence[Token]) -> Expression | None:
    """The longest suffix that reads as arithmetic."""
    words, first = 0, 0
    for i, token in enumerate(tokens):
        words = words + 1 if token.kind == "word" else 0
        if words > MAX_UNIT_WORDS:
            first = i + 1
    run = tokens[max(first, len(tokens) - MAX_SIDE_TOKENS) :]
    for start, token in enumerate(run):
        if _is_inside(run, start):
            continue
        following = run[start + 1].kind if start + 1 < len(run) else ""
        signed = token.text == "-" and following in (*BEGINS, "money")
        if token.kind in BEGINS or signed:
            expression = _without_words(run[start:])
            if expression is not None:
                return expression
    return None


def _is_inside(run: Sequence[Token], start: int) -> bool:
    """Whether a token is in the middle of something larger: of x - 4, of 3 1/2, of Week 2."""
    last = start - 1
    if last < 0:
        return False
    token, before = run[start], run[last]
    if before.kind in ("op", "power", "name", *ENDS):
        return True
    if before.kind == "word" and token.text == "-":  # B - 10 or B-10, but not: is -5
        is_apart = start + 1 < len(run) and token.end < run[start + 1].start
        return is_apart or before.end == token.start
    if before.text == "and" and last and run[last - 1].kind == "number":
        return _begins_with_share(run[start:])
    while last >= 0 and run[last].kind == "word":
        last -= 1
    return last >= 0 and run[last].kind == "op" and run[last].text != "/"


def _begins_with_share(tokens: Sequence[Token]) -> bool:
    """Whether a fraction below 1 comes first."""
    if [token.kind for token in tokens[:3]] != ["number", "op", "number"]:
        return False
    return tokens[1].text == "/" and _number(tokens[0]) < _number(tokens[2])


def _first_expression(tokens: Sequence[Token]) -> Expression | None:
    """The longest prefix that reads as arithmetic."""
    run: list[Token] = []
    words = 0
    for token in tokens[:MAX_SIDE_TOKENS]:
        words = words + 1 if token.kind == "word" else 0
        if words > MAX_UNIT_WORDS:
            del run[-MAX_UNIT_WORDS:]
            break
        run.append(token)
    for stop in range(len(run), 0, -1):
        if run[stop - 1].kind in ENDS and not _goes_on(tokens, stop):
            expression = _without_words(run[:stop])
            if expression is not None:
                return expression
    return None


def _goes_on(tokens: Sequence[Token], stop: int) -> bool:
    """Whether an operator, the name in 2x or the fraction in 3 1/2 ties an expression to what
    follows it."""
    kind, text = tokens[stop][:2] if stop < len(tokens) else ("", "")
    following = tokens[stop + 1].kind if stop + 1 < len(tokens) else ""
    is_rate = text == "/" and following == "word"
    if text == "and":
        return _begins_with_share(tokens[stop + 1 :])
    return kind in ("op", "power", "name", "number") and not is_rate


def _without_words(tokens: Sequence[Token]) -> Expression | None:
    """A run without units, money and rates ("4 apples/box"); None where no arithmetic is left."""
    kept: list[Token] = []
    followers = [*(token.kind for token in tokens[1:]), ""]
    for before, token, following in zip([None, *tokens], tokens, followers, strict=False):
        if token.kind == "word":
            if not _is_unit(kept, following):
                return None
        elif token.kind == "of":
            if following not in (*BEGINS, "money"):
                continue
            if kept and before is kept[-1] and _is_share(kept):
                kept.append(token)
            elif kept and kept[-1].kind in ENDS:
                return None
        elif token.kind != "money" and not (token.text == "/" and following == "word"):
            kept.append(token)
    value = _evaluated(kept)
    return None if value is None else Expression(kept, value)


def _is_unit(kept: Sequence[Token], following: str) -> bool:
    """Whether a word is the unit of what stands before it: no name, and not all that stands between
    two quantities."""
    last = kept[-1].kind if kept else "open"
    if following == "power" or last in ("op", "power", "open"):
        return False
    return last not in ENDS or following not in BEGINS


def _is_share(kept: Sequence[Token]) -> bool:
    is_fraction = len(kept) >= 3 and kept[-2].text == "/"
    return is_fraction or bool(kept and kept[-1].kind in ("percent", "close"))


def _agree(left: Expression, right: Expression) -> bool:
    """Equal, or equal after rounding to the digits that the right side writes, or a percentage
    written as one."""
    x, y = left.value, right.value
    if x == y:
        return True
    if right.is_percentage and len(right.tokens) == 2 and x == y * 100:
        return True
    if left.is_percentage and not left.computes and x * 100 == y:
        return True
    is_share = left.is_percentage and left.tokens[-2].text == "100" and left.computes
    sizes = (x, x * 100) if is_share else (x,)
    return not right.computes and any(_is_rounded(size, right) for size in sizes)


def _in_thousands(side: Expression) -> Expression:
    """With 1.200 as a thousand and more, as most of Europe writes it."""
    tokens = [
        token._replace(text=token.text.replace(".", "")) if _THOUSANDS.match(token.text) else token
        for token in side.tokens
    ]
    return Expression(tokens, _evaluated(tokens) or side.value)


_THOUSANDS = re.compile(r"[1-9]\d{0,2}\.\d{3}$")


def _is_rounded(x: Fraction, right: Expression) -> bool:
    """Whether a number is what the right side writes, after rounding to its digits."""
    y = right.value
    if x == y or x.denominator == 1:
        return x == y
    written = max((t.text for t in right.tokens if t.kind == "number"), key=len, default="")
    digits = len(written.partition(".")[2])
    unit = Fraction(1, 10**digits) / (100 if right.is_percentage else 1)
    rounded = abs(x - y) <= unit / 2
    cut_off = 0 <= abs(x) - abs(y) < unit and x * y >= 0
    return (digits > 0 or abs(x) >= 10) and (rounded or cut_off)


# ---------------------------------------------------------------- values


def _evaluated(tokens: Sequence[Token]) -> Fraction | None:
    """The exact value of an expression, None if it is none, divides by zero or is too large.

    Python parses it: numbers are given as strings, and a percent sign as an attribute.
    """
    words = []
    before = ""
    closes = -1
    for place, token in enumerate(tokens):
        if _is_divisor(tokens, place):
            words.append("(")
            closes = place + 2
        if token.kind == before and before in ("number", "percent"):
            return None
        if token.kind == "number":
            if len(token.text) > MAX_DIGITS:
                return None
            words.append(f'"{token.text.replace(",", "")}"')
        elif token.kind == "percent":
            words.append(".percent")
        elif token.kind == "open" and before in ENDS:  # 3(4)
            words.append("* (")
        else:
            words.append(token.text)
        if place == closes:
            words.append(")")
        before = token.kind
    try:
        return _value(ast.parse(" ".join(words), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def _is_divisor(tokens: Sequence[Token], place: int) -> bool:
    """Whether what follows is the 1/3 of "25 / 1/3", which is written closer than what it
    divides."""
    if not 0 < place < len(tokens) - 2 or tokens[place - 1].text != "/":
        return False
    first, sign, second = tokens[place : place + 3]
    is_fraction = [first.kind, sign.text, second.kind] == ["number", "/", "number"]
    is_close = first.end == sign.start and sign.end == second.start
    return is_fraction and is_close and tokens[place - 1].end < first.start


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=str(number)):
            return Fraction(number)
        case ast.Attribute(value=whole):
            return _value(whole) / 100
        case ast.UnaryOp(op=sign, operand=operand):
            return -_value(operand) if isinstance(sign, ast.USub) else _value(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=sign, right=right):
            x, y = _value(left), _value(right)
            adds = isinstance(sign, ast.Add | ast.Sub)
            if adds and isinstance(right, ast.Attribute) and not _ends_with_percent(left):
                y *= x  # 50 - 20% takes 20% of the 50
            value: Fraction = _OPERATORS[type(sign)](x, y)
            return value
    raise ValueError("not arithmetic")


def _ends_with_percent(node: ast.expr) -> bool:
    while isinstance(node, ast.BinOp):
        node = node.right
    return isinstance(node, ast.Attribute)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    bits = max(base.numerator.bit_length(), base.denominator.bit_length()) * abs(exponent)
    if exponent.denominator != 1 or abs(exponent) > MAX_EXPONENT or bits > MAX_POWER_BITS:
        raise ValueError("the power is too large")
    return Fraction(base**exponent.numerator)
