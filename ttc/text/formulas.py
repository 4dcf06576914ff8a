"""Mathematical answers as trees, in LaTeX or as people type them. What is not read whole is none.

A tree is a tuple whose first entry names what it is:
    ("num", digits), ("sym", name), ("const", "pi" | "e" | "i" | "oo" | "reals" | "empty"),
    ("+" | "*", parts...), ("/" | "^", left, right), ("neg" | "!" | "percent" | "degree", part),
    ("pm" | "mp", left, right), ("call", function, arguments...), ("apply", name, arguments...),
    ("base", digits, base), ("list", "," | "and" | "or", parts...), ("set", parts...),
    ("brackets", opening, closing, parts...), ("union" | "minus", parts...), ("ratio", parts...),
    ("relation", signs, parts...), ("matrix", rows...), ("dots",)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ttc.text.number_words import in_digits
from ttc.text.tables import AROUND_WORDS, by_word, table
from ttc.text.typed_math import GREEK, with_commands

Expr = tuple[Any, ...]

MAX_CHARS = 2000
"""Longer answers are no formulas."""
DEEPEST = 60
"""Brackets within brackets."""
LONGEST_RUN = 24
"""Letters without a blank: more are no product."""

_TOKEN = re.compile(
    r"(?P<space>(?:\s|\\[,;:! ]|~|\\q?quad(?![A-Za-z])|\\displaystyle(?![A-Za-z]))+)"
    r"|(?P<dots>\\(?:ldots|dots|cdots|dotsc|dotsb)(?![A-Za-z])|\.\.\.)"
    r"|(?P<number>(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,4}(?![\w^]))?|\d+\.(?!\d))"
    rf"|{AROUND_WORDS}\*?\s*\{{(?P<text>[^{{}}]*)\}}"
    r"|(?P<command>\\[A-Za-z]+|\\[{}|%$#&])"
    r"|(?P<letters>[A-Za-z]+)"
    r"|(?P<row>\\\\)"
    r"|(?P<sign>\*\*|<=|>=|!=|==|=<|[-+*/^_=<>!%'(){}\[\],;:|&])"
    r"|(?P<other>.)",
    re.DOTALL,
)
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,]|\.\d*,\d)")
_MARKED_THOUSANDS = re.compile(
    r"(?<=\d)(?: ?\{ ?, ?\} ?|,\\! ?|\\[,;: ]|~|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))"
)
_DELIMITERS = re.compile(r"\\?\$|(?<!\\)\\[()]")
_ROWS = re.compile(r"\\begin\{(aligned|align\*?|gathered|cases)\}(.*?)\\end\{\1\}", re.DOTALL)
_INTERVAL = re.compile(
    r"(?:(?<![\w)\]}])|(?<=cup))([\[\]])([^\[\]]{1,60}[;,][^\[\]]{1,60})([\[\]])"
)
_SIZES = re.compile(r"\\(?:left|right|[bB]igg?[lrm]?|middle)(?![A-Za-z])\.?\s*|\\!\s*")
_BASE = re.compile(
    r"\(?([0-9A-Z]+)\)?\s*_\s*\{?\s*(?:\\text\s*\{)?\s*\(?(\d{1,2}|[a-z]+)\)?\s*\}{0,2}"
    r"|(?=[A-Z]*\d)([0-9A-Z]+)\s*(?:\(\s*)?(?:\\text\s*\{\s*\(?)?\s*(?:in )?base[- ]?"
    r"(\d{1,2}|[a-z]+)\s*\)?\s*\}?\s*\)?"
)
_REPEATING = re.compile(
    r"(-?\d*\.\d*)(?:\\overline|\\bar|\\dot)\s*\{?\s*(\d+)\s*\}?|(-?\d*\.\d*)\((\d+)\)"
    r"|(-?\d*\.\d{0,60}?)(\d{1,60}?)\6+(?:\.\.\.|\\l?dots)"
)

_TABLE = table("formulas")
_FUNCTIONS = {name: name for name in _TABLE["functions"].split()} | {
    f"{arc}{name}": f"a{name}" for arc in ("arc", "ar") for name in _TABLE["inverse"].split()
}
_SEVERAL, _ACCENTS, _FIGURES, _FRACTIONS, _BINOMIALS, _MATRICES, _TIMES, _SHORT_WORDS = (
    frozenset(_TABLE[name].split())
    for name in (
        *("several", "accents", "figures", "fractions", "binomials", "matrices", "times"),
        "short_words",
    )
)
_GREEK = {name[1:] for name in GREEK.values()} - {"pi"} | {*_TABLE["greek"].split()}
_CONSTANTS = {word: ("const", name) for word, name in by_word(_TABLE["constants"]).items()}
_AND_OR, _RELATIONS = by_word(_TABLE["joins"]), by_word(_TABLE["relations"])
_NAMES = {*_FUNCTIONS, *_CONSTANTS, *_GREEK}
_DIFFERENTIALS = {f"d{letter}" for letter in "xyztrsuvw"}
_SETS, _AROUND = _TABLE["sets"], _TABLE["around"]
_CHAINS = ("abcdefghijklmnopqrstuvwxyz", "pqrstuvwxyz")


class Unread(Exception):
    """A part that is no formula."""


def read_formula(answer: str) -> Expr | None:
    """The tree of an answer that is a formula as a whole, else None."""
    plain = answer.strip()
    if len(plain) > MAX_CHARS:
        return None
    if based := _BASE.fullmatch(plain):
        digits, base = based[1] or based[3], based[2] or based[4]
        base = in_digits(base) or base
        if base.isdigit() and any(digit.isdigit() for digit in digits):
            return ("base", digits.lstrip("0") or "0", base)
    if repeating := _REPEATING.fullmatch(plain):
        return _fraction_of(*(part for part in repeating.groups() if part is not None))
    try:
        return _Reader(plain).whole()
    except (Unread, RecursionError, IndexError):
        return None


def is_word(letters: str) -> bool:
    """Whether letters are a word and no product of letters: Friday, odd; not abc or xy."""
    if len(letters) < 2 or letters in _NAMES:
        return False
    small = letters.lower()
    if letters.isupper() and len(letters) < 4:
        return False  # the segment NO
    if small in _SHORT_WORDS:
        return True
    product = not re.search("[aeiou]", small) or any(small in chain for chain in _CHAINS)
    return len(letters) > 3 and not product and not letters.isupper()


def _length_of_name(run: str) -> int:
    """How many letters the longest name has that a run begins with; 0 where it is a product."""
    for length in range(len(run), 1, -1):
        name, rest = run[:length], run[length:]
        called = name in _FUNCTIONS and rest in ("x", "t")
        if called or (name == "pi" and len(rest) == 1) or (not rest and name in _NAMES):
            return length
    return 0


def nodes(tree: Expr) -> Iterator[Expr]:
    yield tree
    for part in tree:
        if isinstance(part, tuple):
            yield from nodes(part)


def changed(tree: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """A tree with each of its parts changed."""
    return tuple(change(part) if isinstance(part, tuple) else part for part in tree)


def listed_parts(tree: Expr) -> Expr:
    """The parts of a list; of anything else itself."""
    return tree[2:] if tree[0] == "list" else (tree,)


def _joined(kind: str, parts: Sequence[Expr]) -> Expr:
    """One part stands for itself."""
    return parts[0] if len(parts) == 1 else (kind, *parts)


def _need(there: object) -> None:
    """What stands there is no formula that is read, unless this is so."""
    if not there:
        raise Unread


class _Reader:
    def __init__(self, answer: str):
        self.tokens = _tokens(answer)
        self.at = 0
        self.bars = False
        self.depth = 0
        self.in_set = False

    # what stands next

    def token(self, ahead: int = 0) -> tuple[str, str, bool]:
        place = self.at + ahead
        return self.tokens[place] if place < len(self.tokens) else ("", "", False)

    def kind(self) -> str:
        return self.token()[0]

    def peek(self, ahead: int = 0) -> str:
        return self.token(ahead)[1]

    def spaced(self) -> bool:
        return self.token()[2]

    def take(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1][1]

    def accept(self, *signs: str) -> bool:
        if self.kind() in ("sign", "command", "row") and self.peek() in signs:
            self.at += 1
            return True
        return False

    def expect(self, *signs: str) -> None:
        _need(self.accept(*signs))

    # answers

    def whole(self) -> Expr:
        while self.accept("=", "\\approx", "\\simeq"):
            pass
        tree = self.answers()
        _need(self.at == len(self.tokens))
        if tree[0] == "set" and self.tokens[0][1] == "{":  # LaTeX shows no braces: 1, 3
            return ("list", ",", *tree[1:])
        return tree

    def answers(self) -> Expr:
        """Statements with commas between; where these stand within semicolons, lists of them."""
        groups = [self.listed()]
        while self.accept(";"):
            groups.append(self.listed())
        if len(groups) == 1:
            return groups[0]
        if all(group[0] != "list" for group in groups):
            return ("list", ",", *groups)
        return ("list", ",", *(("brackets", "(", ")", *listed_parts(group)) for group in groups))

    def listed(self) -> Expr:
        parts = [self.statement()]
        word = ","
        while sign := self.separator():
            if sign != ",":
                word = sign
            parts.append(self.statement())
        return parts[0] if len(parts) == 1 else ("list", word, *parts)

    def separator(self) -> str:
        sign = ""
        while True:
            if self.accept(","):
                sign = sign or ","
            elif self.kind() in ("letters", "text") and self.peek().strip() in _AND_OR:
                sign = _AND_OR[self.take().strip()]
            elif self.accept("\\lor", "\\vee"):
                sign = "or"
            elif self.accept("\\land", "\\wedge"):
                sign = "and"
            else:
                return sign

    def statement(self) -> Expr:
        self.depth += 1
        _need(self.depth <= DEEPEST)
        if self.kind() == "dots":
            self.at += 1
            self.depth -= 1
            return ("dots",)
        parts, signs = [self.union()], []
        while self.kind() in ("sign", "command") and self.peek() in _RELATIONS:
            signs.append(_RELATIONS[self.take()])
            parts.append(self.union())
        self.depth -= 1
        if "~" in signs:  # what comes before it is exact; of x ≈ 3.5 the name
            exact = signs.index("~")
            named = exact == 0 and parts[0][0] == "sym"
            signs, parts = (["="], parts[:2]) if named else (signs[:exact], parts[: exact + 1])
        return ("relation", tuple(signs), *parts) if signs else parts[0]

    def union(self) -> Expr:
        parts = [self.ratio()]
        while self.accept("\\cup"):
            parts.append(self.ratio())
        tree = _joined("union", parts)
        while self.accept("\\setminus", "\\backslash"):
            tree = ("minus", tree, self.ratio())
        return tree

    def ratio(self) -> Expr:
        parts = [self.sum()]
        while not self.in_set and self.accept(":"):
            parts.append(self.sum())
        return _joined("ratio", parts)

    def sum(self) -> Expr:
        if self.kind() == "command" and self.peek() in ("\\pm", "\\mp"):
            parts: list[Expr] = [("num", "0")]
        else:
            parts = [self.product()]
        while True:
            if self.accept("+"):
                parts.append(self.product())
            elif self.accept("-"):
                parts.append(("neg", self.product()))
            elif self.kind() == "command" and self.peek() in ("\\pm", "\\mp"):
                sign = self.take()[1:]
                parts = [(sign, _joined("+", parts), self.product())]
            else:
                return _joined("+", parts)

    def product(self) -> Expr:
        factors = [self.unary()]
        while True:
            if self.kind() in ("sign", "command") and self.peek() in _TIMES:
                self.at += 1
                factors.append(self.unary())
            elif self.accept("/", "\\div"):
                factors = [("/", _joined("*", factors), self.unary())]
            elif self.begins_factor():
                factors.append(self.power())
            else:
                return _joined("*", factors)

    def begins_factor(self) -> bool:
        kind, sign = self.kind(), self.peek()
        if kind == "number":
            before = self.tokens[self.at - 1]
            after = before[1] in (")", "}") and not self.spaced()
            return before[0] == "sign" and (after or before[1] == "!")
        if kind == "letters":
            return sign not in _AND_OR
        if kind == "text":
            return sign.strip() not in _AND_OR
        if kind == "command":
            return self.is_atom_command(sign)
        if kind == "sign":
            return sign in ("(", "{", "[") or (sign == "|" and not self.bars)
        return False

    def is_atom_command(self, command: str) -> bool:
        tables = (_FUNCTIONS, _CONSTANTS, _GREEK, _ACCENTS, _FRACTIONS, _BINOMIALS)
        others = ("begin", "{", "langle", "mathbb")
        return any(command[1:] in table for table in (*tables, others)) or command in _AROUND

    def unary(self) -> Expr:
        signs = 0
        while self.kind() == "sign" and self.peek() in "+-":
            signs += self.take() == "-"
        part = self.power()
        return ("neg", part) if signs % 2 else part

    def power(self) -> Expr:
        base = self.postfix(self.atom())
        while self.accept("^", "**"):
            if self.is_degree():
                base = ("degree", base)
                continue
            base = self.postfix(("^", base, self.exponent()))
        return base

    def is_degree(self) -> bool:
        start = self.at
        braced = self.accept("{")
        if self.accept("\\circ", "\\degree") and (not braced or self.accept("}")):
            return True
        self.at = start
        return False

    def exponent(self) -> Expr:
        if self.accept("{"):
            return self.until("}")
        negative = self.accept("-")
        self.accept("+")
        part = self.atom(single=True)
        if self.accept("^", "**"):
            part = ("^", part, self.exponent())
        return ("neg", part) if negative else part

    def until(self, closing: str) -> Expr:
        part = self.inside(closing == "|", self.in_set)
        _need(part[0] not in ("list", "relation"))
        self.expect(closing)
        return part

    def inside(self, bars: bool, in_set: bool) -> Expr:
        """What stands in brackets. bars, in_set: whether a | and a : end it."""
        before = self.bars, self.in_set
        self.bars, self.in_set = bars, in_set
        inside = self.answers()
        self.bars, self.in_set = before
        return inside

    def postfix(self, part: Expr) -> Expr:
        while True:
            if self.accept("!"):
                part = ("!", part)
            elif self.accept("%", "\\%"):
                part = ("percent", part)
            elif self.accept("\\degree"):
                part = ("degree", part)
            else:
                return part

    # atoms

    def atom(self, single: bool = False) -> Expr:
        kind, value = self.kind(), self.peek()
        if kind == "number":
            self.at += 1
            return self.number(value, single)
        if kind == "letters":
            return self.letters()
        if kind == "text":
            return self.text()
        if kind == "command":
            self.at += 1
            return self.command(value)
        if kind == "sign" and value in ("(", "["):
            self.at += 1
            return self.bracketed(value)
        if self.accept("{"):
            return self.grouped()
        self.expect("|")
        return ("call", "abs", self.until("|"))

    def grouped(self) -> Expr:
        """A group of LaTeX, or a set as people type it."""
        inside = self.inside(False, self.in_set)
        self.expect("}")
        return ("set", *inside[2:]) if inside[0] == "list" else inside

    def number(self, digits: str, single: bool) -> Expr:
        if self.accept("_"):
            return ("base", digits, self.name_part())
        number = ("num", digits)
        if single or not digits.isdigit():
            return number
        start = self.at
        if self.kind() == "command" and self.peek()[1:] in _FRACTIONS:
            self.at += 1
            part = self.fraction()
            if all(side[0] == "num" and side[1].isdigit() for side in part[1:]):
                return ("+", number, part)
        elif self.kind() == "number" and self.spaced() and self.peek(1) == "/":
            top = self.take()
            self.at += 1
            if self.kind() == "number" and top.isdigit() and self.peek().isdigit():
                return ("+", number, ("/", ("num", top), ("num", self.take())))
        self.at = start
        return number

    def letters(self) -> Expr:
        run = self.peek()
        _need(len(run) <= LONGEST_RUN)
        length = _length_of_name(run)
        if not length:
            called = self.peek(1) == "(" and (run[1:] in _FUNCTIONS or run[2:] in _FUNCTIONS)
            _need(called or not is_word(run))  # xsin(x), 2xln(x)
            length = 2 if run in _DIFFERENTIALS else 1
        self.split(length)
        name = self.take()
        if name in _FUNCTIONS:
            return self.function(_FUNCTIONS[name])
        if name in _CONSTANTS and (length > 1 or self.peek() not in ("'", "_")):
            return _CONSTANTS[name]
        return self.symbol(name)

    def split(self, length: int) -> None:
        """Part the letters or digits that stand next."""
        kind, run, spaced = self.tokens[self.at]
        if length < len(run):
            self.tokens[self.at : self.at + 1] = [
                (kind, run[:length], spaced),
                (kind, run[length:], False),
            ]

    def text(self) -> Expr:
        content = self.take().strip()
        plain = content.strip("()") if len(content) == 3 else content
        if plain in _FUNCTIONS:
            return self.function(_FUNCTIONS[plain])
        if plain in _CONSTANTS:
            return _CONSTANTS[plain]
        if re.fullmatch("[A-Za-z]", plain):
            return self.symbol(plain)
        if re.fullmatch(r"[A-Z]{2,3}", plain):
            return ("*", *(("sym", letter) for letter in plain))
        _need(re.fullmatch(r"\d+(?:\.\d+)?", plain))
        return ("num", plain)

    def symbol(self, name: str) -> Expr:
        if self.accept("_"):
            name += "_" + self.name_part()
        while self.accept("'"):
            name += "'"
        if [self.peek(step) for step in range(4)] == ["^", "{", "\\prime", "}"]:
            self.at += 4
            name += "'"
        inverse = [self.peek(step) for step in range(5)] == ["^", "{", "-", "1", "}"]
        called = name[0] in "fgP" and name[1:2] in ("", "'", "_")
        if called and inverse and self.peek(5) == "(":
            self.at += 5
            name += "^-1"
        if (called or "'" in name) and self.peek() == "(" and not self.spaced():
            self.at += 1
            inside = self.bracketed("(")
            return ("apply", name, *(inside[3:] if inside[0] == "brackets" else (inside,)))
        return ("sym", name)

    def name_part(self) -> str:
        """A subscript, as a name."""
        if not self.accept("{"):
            _need(self.kind() in ("number", "letters", "text", "command"))
            if self.kind() == "letters":
                self.split(1)
            return self.take().strip().removeprefix("\\")
        parts, depth = [], 1
        while depth:
            kind, value, _ = self.tokens[self.at]
            self.at += 1
            depth += (value == "{") - (value == "}") if kind == "sign" else 0
            parts.append(value.strip())
        return "".join(parts[:-1]).removeprefix("\\")

    def bracketed(self, opening: str) -> Expr:
        """What stands in brackets: a formula, or several parts."""
        inside = self.inside(False, False)
        closing = self.peek()
        self.expect(")", "]")
        if inside[0] == "list" and inside[1] == ",":
            if _are_rows(opening, closing, inside[2:]):
                return ("matrix", *(row[3:] for row in inside[2:]))
            return ("brackets", opening, closing, *inside[2:])
        _need((opening == "(") == (closing == ")"))
        return inside

    def argument(self) -> Expr:
        """One argument of a LaTeX command: a group, or one sign."""
        if self.accept("{"):
            return self.until("}")
        kind = self.kind()
        if kind == "letters" or (kind == "number" and self.peek().isdigit()):
            self.split(1)
        _need(kind in ("number", "letters", "command", "text"))
        return self.atom(single=True)

    def fraction(self) -> Expr:
        return ("/", self.argument(), self.argument())

    def function(self, name: str) -> Expr:
        if name == "sqrt":
            return self.root()
        base, exponent = self.scripts()
        if name == "log" and self.kind() == "number" and self.peek(1) == "(" and not self.spaced():
            base = ("num", self.take())
        _need(base is None or name == "log")
        if exponent == ("neg", ("num", "1")):
            name, exponent = f"a{name}", None
        arguments = self.arguments()
        if name in _SEVERAL and arguments[0][0] == "brackets":
            arguments = list(arguments[0][3:])
        _need(len(arguments) == 1 or name in _SEVERAL)
        if name in ("log", "lg"):
            arguments.append(base or ("num", "10"))
        call: Expr = ("call", name, *arguments)
        return call if exponent is None else ("^", call, exponent)

    def scripts(self) -> tuple[Expr | None, Expr | None]:
        """The subscript and the exponent of a function, in any order."""
        base: Expr | None = None
        exponent: Expr | None = None
        for _ in range(2):
            if self.accept("_"):
                base = self.log_base()
            elif self.accept("^", "**"):
                exponent = self.exponent()
        return base, exponent

    def log_base(self) -> Expr:
        if self.kind() == "number" and self.peek(1) in ("(", "{", "|"):
            return ("num", self.take())
        return self.argument()

    def arguments(self) -> list[Expr]:
        if self.accept("("):
            return [self.bracketed("(")]
        if self.accept("{"):
            return [self.until("}")]
        negative = self.accept("-")
        part = self.power()
        while self.begins_factor() and not self.begins_function():
            if self.kind() == "sign" and self.peek() in ("(", "["):
                break
            part = ("*", part, self.power())
        return [("neg", part) if negative else part]

    def begins_function(self) -> bool:
        return self.peek().lstrip("\\") in _FUNCTIONS and self.peek() != "\\sqrt"

    def root(self) -> Expr:
        degree: Expr | None = None
        if self.accept("["):
            degree = self.answers()
            self.expect("]")
        if self.accept("{"):
            inside = self.until("}")
        elif self.accept("("):
            inside = self.bracketed("(")
        else:
            _need(self.kind() in ("number", "letters", "command", "text"))
            if self.kind() == "letters" and self.peek() not in _CONSTANTS:
                self.split(1)
            inside = self.atom(single=True)
        return ("call", "sqrt", inside) if degree is None else ("call", "root", inside, degree)

    def command(self, command: str) -> Expr:
        name = command[1:]
        if name in _FRACTIONS:
            return self.fraction()
        if name in _SPECIAL:
            return _SPECIAL[name](self)
        if name in _FUNCTIONS:
            return self.function(_FUNCTIONS[name])
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        if name in _GREEK:
            return self.symbol(name)
        if command in _AROUND:
            function, closing = _AROUND[command]
            return ("call", function, self.until(closing))
        if name in _ACCENTS:
            return self.accented(name)
        _need(name in _FIGURES)
        return ("sym", name + "".join(self.take() for _ in range(self.kind() == "letters")))

    def binomial(self) -> Expr:
        return ("call", "binom", self.argument(), self.argument())

    def number_set(self) -> Expr:
        letter = self.argument()
        _need(letter[0] == "sym" and letter[1] in _SETS)
        return ("const", _SETS[letter[1]])

    def vector(self) -> Expr:
        inside = self.answers()
        self.expect("\\rangle")
        return ("brackets", "(", ")", *listed_parts(inside))

    def accented(self, name: str) -> Expr:
        start = self.at
        self.argument()
        inner = "".join(value for _, value, _ in self.tokens[start : self.at] if value not in "{}")
        _need(name not in ("overline", "bar") or not re.search(r"\d", inner))
        return self.symbol(f"{'bar' if name == 'overline' else name}:{inner}")

    def set(self) -> Expr:
        if self.accept("\\}"):
            return ("const", "empty")
        inside = self.inside(True, True)
        tree: Expr = ("set", *listed_parts(inside))
        if self.accept("|", ":", "\\mid"):
            first = inside[2] if inside[0] == "relation" else inside
            _need(first[0] == "sym")
            tree = self.inside(True, True)
        self.expect("\\}")
        return tree

    def matrix(self) -> Expr:
        kind = self.environment()
        if kind == "array" and self.accept("{"):
            while not self.accept("}"):
                self.take()
        rows: list[Expr] = []
        row: list[Expr] = []
        while True:
            row.append(self.statement())
            if self.accept("&"):
                continue
            rows.append(tuple(row))
            row = []
            if not self.accept("\\\\"):
                break
            if self.peek() == "\\end":
                break
        self.expect("\\end")
        _need(self.environment() == kind)
        return ("call", "det", ("matrix", *rows)) if kind == "vmatrix" else ("matrix", *rows)

    def environment(self) -> str:
        self.expect("{")
        name = self.take()
        self.expect("}")
        _need(name in _MATRICES)
        return name


_SPECIAL: dict[str, Callable[[_Reader], Expr]] = {
    **dict.fromkeys(_BINOMIALS, _Reader.binomial),
    "mathbb": _Reader.number_set,
    "{": _Reader.set,
    "langle": _Reader.vector,
    "begin": _Reader.matrix,
}


def _tokens(answer: str) -> list[tuple[str, str, bool]]:
    """(kind, value, whether a blank stands before it)."""
    undelimited = _INTERVAL.sub(_half_open, _ROWS.sub(_listed_rows, _DELIMITERS.sub("", answer)))
    plain = _SIZES.sub("", _MARKED_THOUSANDS.sub("", with_commands(undelimited)))
    tokens: list[tuple[str, str, bool]] = []
    spaced = False
    if not re.search(r"[(\[{]", plain):
        plain = _THOUSANDS.sub(lambda number: number[0].replace(",", ""), plain)
    for token in _TOKEN.finditer(plain):
        kind = token.lastgroup or ""
        value = token[kind]
        if kind == "space":
            spaced = True
            continue
        _need(kind != "other")
        if kind == "number":
            value = value.rstrip(".")
        if value in ("\\lbrace", "\\rbrace"):
            value = "\\{" if value == "\\lbrace" else "\\}"
        tokens.append((kind, value, spaced))
        spaced = False
    return tokens


def _half_open(interval: re.Match[str]) -> str:
    """[1; 4[ as [1; 4), as French and German schools write it."""
    opening, ends, closing = interval.groups()
    return "[("[opening == "]"] + ends + "])"[closing == "["]


def _listed_rows(rows: re.Match[str]) -> str:
    """Rows as x = 1, y = 2; not those of a case and its condition."""
    cells = rows[2].replace(r"\&", "")
    if rows[1] == "cases" and "&" in cells:
        return rows[0]
    return ",".join(filter(str.strip, cells.replace("&", "").split(r"\\")))


def _are_rows(opening: str, closing: str, parts: Expr) -> bool:
    """Whether lists within a list are a matrix: [[1, 2], [3, 4]]."""
    lists = all(part[:3] == ("brackets", "[", "]") for part in parts)
    return (opening, closing) == ("[", "]") and lists and len({len(part) for part in parts}) == 1


def _fraction_of(before: str, repeated: str) -> Expr:
    """0.1(6) as a fraction: 15/90."""
    whole, _, digits = before.partition(".")
    nines = 10 ** len(repeated) - 1
    top = int((whole.lstrip("-") or "0") + digits) * nines + int(repeated)
    value = ("/", ("num", str(top)), ("num", str(nines * 10 ** len(digits))))
    return ("neg", value) if whole.startswith("-") else value
