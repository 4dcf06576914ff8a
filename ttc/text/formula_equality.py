"""Whether two formulas are equal: by their values at some points, and by their parts.

A formula is a tree of `ttc.text.formulas`. Two are equal if their values are, with 60 digits, for
several values of their letters. Nothing is simplified, so that equality is symmetric and ends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from math import factorial, gcd, lcm, prod
from typing import Any

import mpmath

from ttc.text.formulas import Expr, changed, listed_parts, nodes
from ttc.text.matrices import worked_out

DIGITS = 60
POINTS = 5
"""Of which the first `POSITIVE` have positive numbers alone."""
POSITIVE = 3

NOTHING = mpmath.mpf("1e-45")
"""What is smaller is nothing but rounding."""
EXACTLY = mpmath.mpf("1e-30")
"""How far apart values may be, relative to the larger one, where all numbers are exact."""

ROUNDED, ROUNDED_SMALL = mpmath.mpf("5e-7"), mpmath.mpf("5e-5")
"""The same for decimals: 0.333333 is 1/3. At most `ROUNDED`, and `ROUNDED_SMALL` of the larger one
where both are small."""

MOST_BITS = 20_000
"""Larger numbers have no value here: a tower of powers would take all memory."""

_SCALARS = {"num", "sym", "const", "+", "*", "/", "^", "neg", "!", "percent", "degree", "ratio"}
_SCALARS |= {"call", "apply", "base"}
_TRIGONOMETRIC = ("sin", "cos", "tan", "cot", "sec", "csc")
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}


class NoValue(Exception):
    """A formula that has no value at a point, or one without bounds."""


def equal_formulas(left: Expr, right: Expr) -> bool:
    left, right = worked_out(left), worked_out(right)
    with mpmath.workdps(DIGITS):
        if _same(_plain(left), _plain(right)):
            return True
        if _mixes_cases(left) or _mixes_cases(right):
            return False
        small = _plain(_lowered(left)), _plain(_lowered(right))
        return small != (left, right) and _same(*small)


# the forms of answers


def _plain(tree: Expr) -> Expr:
    """A tree with its forms told apart: both signs of ±, names of equations, intervals of
    inequalities."""
    if _has(tree, "pm", "mp"):
        return _with_both_signs(tree)
    if tree[0] != "list":
        return tree
    parts = [_plain(part) for part in tree[2:]]
    return _as_region(parts, tree[1]) or ("list", tree[1], *parts)


def _with_both_signs(tree: Expr) -> Expr:
    """A tree with ± as a list of two answers."""
    kind = tree[0]
    if kind in ("list", "set"):
        first = 1 if kind == "set" else 2
        parts = (part for each in tree[first:] for part in listed_parts(_plain(each)))
        return (*tree[:first], *parts)
    if kind == "relation" and tree[1] == ("=",) and not _has(tree[2], "pm", "mp"):
        values = listed_parts(_plain(tree[3]))
        return ("list", ",", *(("relation", ("=",), tree[2], value) for value in values))
    if kind in _SCALARS or kind in ("pm", "mp"):
        return ("list", ",", _with_sign(tree, 1), _with_sign(tree, -1))
    return tree


def _with_sign(tree: Expr, sign: int) -> Expr:
    if tree[0] in ("pm", "mp"):
        added = sign if tree[0] == "pm" else -sign
        left, right = (_with_sign(part, sign) for part in tree[1:])
        return ("+", left, right if added > 0 else ("neg", right))
    return changed(tree, lambda part: _with_sign(part, sign))


def _has(tree: Expr, *kinds: str) -> bool:
    return any(node[0] in kinds for node in nodes(tree))


def _mixes_cases(tree: Expr) -> bool:
    names = _symbols(tree)
    return len({name.lower() for name in names}) < len(names)


def _lowered(tree: Expr) -> Expr:
    if tree[0] in ("sym", "apply"):
        name = tree[1].lower()
        constant = tree[0] == "sym" and name in ("e", "i")
        return ("const", name) if constant else (tree[0], name, *map(_lowered, tree[2:]))
    return changed(tree, _lowered)


def _same(left: Expr, right: Expr) -> bool:
    if left == right:
        return True
    named = _same_named(left, right)
    if named is not None:
        return named
    regions = _region(left), _region(right)
    if all(regions):
        return _same_regions(*regions)
    if left[0] == "list":
        return _is_listed(left, right)
    if right[0] == "list":
        return _is_listed(right, left)
    left, right = _element(left), _element(right)
    if left[0] in _SCALARS and right[0] in _SCALARS:
        several = left[0] == right[0] == "ratio" and max(len(left), len(right)) > 3
        return _same_ratios(left, right) if several else _same_values(left, right)
    return left[0] == right[0] and left[0] in _COMPARED and _COMPARED[left[0]](left, right)


def _same_named(left: Expr, right: Expr) -> bool | None:
    """Whether equations that name a value are equal to others or to a value; None where neither
    names one, or the equations may say the same in other words."""
    one, other = _named(left), _named(right)
    if one and other:
        return (_same(one[0], other[0]) and _same(one[1], other[1])) or None
    if one and right[0] != "relation":
        return _same(one[1], right)
    if other and left[0] != "relation":
        return _same(left, other[1])
    return None


def _element(tree: Expr) -> Expr:
    """A set's only element, where it is a number."""
    alone = tree[0] == "set" and len(tree) == 2 and tree[1][0] in _SCALARS
    return tree[1] if alone else tree


def _same_brackets(left: Expr, right: Expr) -> bool:
    if left[1:3] != right[1:3] and len(left) == 5:
        return False
    return _in_order(left[3:], right[3:])


def _same_matrices(left: Expr, right: Expr) -> bool:
    return len(left) == len(right) and all(map(_in_order, left[1:], right[1:]))


def _same_ratios(left: Expr, right: Expr) -> bool:
    first = ("/", left[1], right[1])
    quotients = [("/", *pair) for pair in zip(left[2:], right[2:], strict=False)]
    return len(left) == len(right) and all(_same(first, each) for each in quotients)


def _is_listed(several: Expr, other: Expr) -> bool:
    """Whether parts without brackets are those of another answer: in any order, but in order where
    it has brackets, where dots stand between them, or each has a name of its own."""
    parts = several[2:]
    if other[0] == "list":
        others = other[2:]
        if several[1] != other[1] and "," not in (several[1], other[1]):
            return False
        dots = ("dots",) in (*parts, *others)
        if dots or _are_named_apart(parts) != _are_named_apart(others):
            return _in_order(parts, others)
        if all(part[0] == "brackets" for part in (*parts, *others)):  # points, each once
            return _in_any_order(_once(parts), _once(others))
        return _in_any_order(parts, others)
    if other[0] == "set":
        return _in_any_order(_once(parts), _once(other[1:]))
    if other[0] == "brackets" and (other[1:3] == ("(", ")") or len(parts) > 2):
        return _in_order(parts, other[3:])
    return False


def _are_named_apart(parts: Sequence[Expr]) -> bool:
    names = [named[0] for part in parts if (named := _named(part))]
    return len(names) == len(parts) == len(set(names))


def _in_order(left: Sequence[Expr], right: Sequence[Expr]) -> bool:
    return len(left) == len(right) and all(map(_same, left, right))


def _in_any_order(
    left: Sequence[Expr], right: Sequence[Expr], same: Callable[[Expr, Expr], bool] = _same
) -> bool:
    if len(left) != len(right):
        return False
    others = list(right)
    for part in left:
        match = next((i for i, other in enumerate(others) if same(part, other)), None)
        if match is None:
            return False
        del others[match]
    return True


def _once(parts: Sequence[Expr]) -> list[Expr]:
    kept: list[Expr] = []
    for part in parts:
        if not any(_same(part, other) for other in kept):
            kept.append(part)
    return kept


def _same_relations(left: Expr, right: Expr) -> bool:
    if len(left) != len(right):
        return False
    if left[1] == right[1] and _in_order(left[2:], right[2:]):
        return True
    flipped = tuple(_FLIPPED.get(sign, "") for sign in reversed(right[1]))
    if left[1] == flipped and _in_order(left[2:], right[:1:-1]):
        return True
    scalars = all(part[0] in _SCALARS for part in (*left[2:], *right[2:]))
    if len(left) > 4 or not scalars or "==" in (left[1][0], right[1][0]):
        return False
    sides = [("+", tree[2], ("neg", tree[3])) for tree in (left, right)]
    factor = _factor(*sides)
    if factor is None:
        return False
    sign = right[1][0] if factor > 0 else _FLIPPED[right[1][0]]
    return bool(left[1][0] == sign)


_COMPARED: dict[str, Callable[[Expr, Expr], bool]] = {
    "relation": _same_relations,
    "set": lambda left, right: _in_any_order(_once(left[1:]), _once(right[1:])),
    "brackets": _same_brackets,
    "matrix": _same_matrices,
    "union": lambda left, right: _in_any_order(left[1:], right[1:]),
    "minus": lambda left, right: _in_order(left[1:], right[1:]),
}


# equations and inequalities


def _named(tree: Expr) -> tuple[Expr, Expr] | None:
    """The name and the value of an equation that gives one: x = 5, 5 = x, f(x) = 2x, m + n = 7.
    Of a true sum (2 + 3 = 5) its value, which is its own name."""
    if tree[0] != "relation" or set(tree[1]) != {"="}:
        return None
    first, last = tree[2], tree[-1]
    if not _is_name(first) and _is_name(last) and len(tree) == 4:
        first, last = last, first
    if _is_name(first):
        inner = _symbols(last) & _symbols(("+", *_outside_calls(first)))
        return None if inner or (_is_name(last) and _symbols(last)) else (first, last)
    if not _symbols(tree) and all(_same(part, last) for part in tree[2:-1]):
        return last, last
    return None


def _is_name(tree: Expr) -> bool:
    if tree[0] == "apply" or tree == ("const", "e"):
        return True
    allowed = {"sym", "*", "+", "/", "neg", "call", "brackets", "apply", "ratio"}
    return bool(_symbols(tree)) and all(
        node[0] in allowed
        or node[1] == "e"  # a letter, beside others
        or (node[0] == "^" and node[1][0] == node[2][0] == "sym")
        for node in nodes(tree)
        if isinstance(node[0], str)
    )


def _outside_calls(tree: Expr) -> Iterator[Expr]:
    """The letters of a name; those that a function is of are none of them."""
    if tree[0] == "sym":
        yield tree
    elif tree[0] != "apply":
        for part in tree:
            if isinstance(part, tuple):
                yield from _outside_calls(part)


def _symbols(tree: Expr) -> set[str]:
    return {node[1] for node in nodes(tree) if node[0] == "sym"}


def _factor(left: Expr, right: Expr) -> Any:
    """The number that one formula is times another one, or None."""
    if _symbols(left) != _symbols(right) or not _symbols(left):
        return None
    factors = []
    for one, other in zip(_values(left), _values(right), strict=True):
        if one is not None and other is not None and abs(other) > NOTHING:
            factors.append(one / other)
    if len(factors) < 2 or abs(mpmath.im(factors[0])) > NOTHING or abs(factors[0]) < NOTHING:
        return None
    close = all(_close(factors[0], factor, _is_rounded(left, right)) for factor in factors[1:])
    return mpmath.re(factors[0]) if close else None


FormulaInterval = tuple[bool, Expr, Expr, bool]
"""Whether its ends are open, and the ends."""
FormulaRegion = tuple[str, list[FormulaInterval]]
"""The letter that intervals are for, "" for any, and the intervals."""
_INFINITE: Expr = ("const", "oo")
_MINUS_INFINITE: Expr = ("neg", _INFINITE)


def _region(tree: Expr) -> FormulaRegion | None:
    """The intervals that an answer stands for."""
    if tree[0] == "region":
        return tree[1], list(tree[2])
    if tree[0] == "brackets" and len(tree) == 5:
        return "", [_interval(tree[1] == "(", tree[3], tree[4], tree[2] == ")")]
    if tree == ("const", "reals"):
        return "", [(True, _MINUS_INFINITE, _INFINITE, True)]
    if tree[0] == "union":
        regions = [_region(part) for part in tree[1:]]
        if not all(regions):
            return None
        return "", [interval for region in regions if region for interval in region[1]]
    if tree[0] == "minus":
        return _without_points(tree)
    if tree[0] == "relation":
        return _solved(tree)
    return None


def _interval(open_left: bool, left: Expr, right: Expr, open_right: bool) -> FormulaInterval:
    return open_left or _is_infinite(left), left, right, open_right or _is_infinite(right)


def _is_infinite(tree: Expr) -> bool:
    return tree in (_INFINITE, _MINUS_INFINITE)


def _solved(tree: Expr) -> FormulaRegion | None:
    """The intervals of an inequality, or of x in an interval."""
    signs, parts = tree[1], tree[2:]
    if signs == ("=",) and parts[0][0] == "sym":
        inner = _region(parts[1])
        return inner and (parts[0][1], inner[1])
    if any(part[:2] == ("call", "abs") for part in parts):
        return _solved_absolute(signs, parts)
    if len(signs) == 2:
        return _between(signs, parts)
    if len(signs) == 1 and signs[0] in _FLIPPED and signs[0] != "=":
        return _half_line(signs[0], *parts)
    return None


def _between(signs: Sequence[str], parts: Sequence[Expr]) -> FormulaRegion | None:
    """1 < x <= 2, 2 >= x > 1."""
    if set(signs) <= {">", ">="}:
        signs, parts = [_FLIPPED[sign] for sign in reversed(signs)], parts[::-1]
    low, letter, high = parts
    if letter[0] not in ("sym", "apply") or not set(signs) <= {"<", "<="}:
        return None
    if letter[1] in _symbols(low) | _symbols(high):
        return None
    return letter[1], [_interval(signs[0] == "<", low, high, signs[1] == "<")]


def _half_line(sign: str, left: Expr, right: Expr) -> FormulaRegion | None:
    """x < 2, 2 > x, 2x - 4 < 0; of x != 2 both half lines."""
    if left[0] != "sym":
        sign, left, right = _FLIPPED[sign], right, left
    if left[0] != "sym" or left[1] in _symbols(right) or right[0] == "sym":
        solved = _solved_linear(sign, ("+", left, ("neg", right)))
        if solved is None:
            return None
        sign, left, right = solved
    below = _interval(True, _MINUS_INFINITE, right, sign in ("<", "!="))
    above = _interval(sign in (">", "!="), right, _INFINITE, True)
    intervals = {"!": [below, above], "<": [below], ">": [above]}[sign[0]]
    return left[1], intervals


def _solved_absolute(signs: Sequence[str], parts: Sequence[Expr]) -> FormulaRegion | None:
    """|x - 1| < 2 as -1 < x < 3, 1 <= |x| <= 3 as two intervals."""
    place = next(place for place, part in enumerate(parts) if part[:2] == ("call", "abs"))
    inside = parts[place][2]
    letter, *shift = inside[1:] if inside[0] == "+" else (inside,)
    bounds = _bounds(signs, parts, place)
    if bounds is None or letter[0] != "sym" or any(map(_symbols, shift)):
        return None
    is_open, most = bounds.get("<", (True, _INFINITE))
    left, right = _moved(("neg", most), shift), _moved(most, shift)
    if ">" not in bounds:
        return letter[1], [_interval(is_open, left, right, is_open)]
    is_open_inside, least = bounds[">"]
    return letter[1], [
        _interval(is_open, left, _moved(("neg", least), shift), is_open_inside),
        _interval(is_open_inside, _moved(least, shift), right, is_open),
    ]


def _bounds(
    signs: Sequence[str], parts: Sequence[Expr], place: int
) -> dict[str, tuple[bool, Expr]] | None:
    """The most and the least that the part at a place may be, each with whether it is less or
    more; None where they are no numbers, or below 0."""
    beside = [(_FLIPPED.get(signs[0], ""), parts[0])] if place else []
    beside += [(signs[-1], parts[-1])] if place < len(signs) else []
    bounds = {sign[:1]: (len(sign) == 1, bound) for sign, bound in beside}
    if len(beside) < len(signs) or len(bounds) < len(signs) or not bounds.keys() <= {"<", ">"}:
        return None
    unfit = any(_symbols(bound) or _is_below(bound, ("num", "0")) for _, bound in bounds.values())
    return None if unfit else bounds


def _moved(end: Expr, shift: Sequence[Expr]) -> Expr:
    return end if _is_infinite(end) or not shift else ("+", end, *(("neg", each) for each in shift))


def _solved_linear(sign: str, difference: Expr) -> tuple[str, Expr, Expr] | None:
    """2x - 4 < 0 as x < 2, where one letter has numbers alone beside it."""
    names = _symbols(difference)
    if len(names) != 1:
        return None
    name = names.pop()
    values = [_exact(_replaced(difference, name, str(number))) for number in range(4)]
    start, one, two, three = (value if value is not None else Fraction(0) for value in values)
    slope = one - start
    if None in values or not slope or two - one != slope or three - two != slope:
        return None
    root = -start / slope
    value: Expr = ("/", ("num", str(abs(root.numerator))), ("num", str(root.denominator)))
    sign = sign if slope > 0 else _FLIPPED[sign]
    return sign, ("sym", name), ("neg", value) if root < 0 else value


def _replaced(tree: Expr, name: str, digits: str) -> Expr:
    if tree == ("sym", name):
        return ("num", digits)
    return changed(tree, lambda part: _replaced(part, name, digits))


def _without_points(tree: Expr) -> FormulaRegion | None:
    region, points = _region(tree[1]), tree[2]
    if region is None or len(region[1]) != 1 or points[0] != "set":
        return None
    try:
        ordered = sorted(points[1:], key=lambda point: float(mpmath.re(_value(point, {}))))
    except (NoValue, ValueError, OverflowError, TypeError):
        return None
    (open_left, left, right, open_right) = region[1][0]
    intervals = []
    for point in ordered:
        intervals.append(_interval(open_left, left, point, True))
        open_left, left = True, point
    return region[0], [*intervals, _interval(open_left, left, right, open_right)]


def _as_region(parts: Sequence[Expr], word: str) -> Expr | None:
    """Inequalities for one letter as one region: all parts with "or", what two have in common with
    "and" or a comma. Points and several letters are none."""
    regions = [region for part in parts if (region := _region(part))]
    names = {name for name, _ in regions}
    inequalities = any(part[0] == "relation" for part in parts)
    if len(regions) < len(parts) or len(names) != 1 or "" in names or not inequalities:
        return None
    intervals = [interval for _, each in regions for interval in each]
    kept = intervals if word == "or" else _in_common(intervals)
    return ("region", names.pop(), tuple(kept)) if kept else None


def _in_common(intervals: list[FormulaInterval]) -> list[FormulaInterval] | None:
    """Of two half lines, one to each side."""
    if len(intervals) != 2:
        return None
    low, high = intervals
    if _is_infinite(low[2]) and _is_infinite(high[1]):
        low, high = high, low
    if not (_is_infinite(low[1]) and _is_infinite(high[2])):
        return None
    if _is_below(low[2], high[1]):  # x < 1, x > 2: people mean either
        return [low, high]
    return [(*high[:2], *low[2:])]


def _is_below(left: Expr, right: Expr) -> bool:
    values = [_values(tree)[0] for tree in (left, right)]
    return None not in values and bool(mpmath.re(values[0]) < mpmath.re(values[1]))


def _same_regions(left: Any, right: Any) -> bool:
    of_others = left[0] and right[0] and left[0] != right[0]
    return not of_others and _in_any_order(left[1], right[1], _same_intervals)


def _same_intervals(left: Expr, right: Expr) -> bool:
    return left[::3] == right[::3] and _in_order(left[1:3], right[1:3])


# values


def _same_values(left: Expr, right: Expr) -> bool:
    if left[0] == "base" or right[0] == "base":
        return _same_digits(left, right)
    if left[0] == right[0] == "percent":
        return _same_values(left[1], right[1])
    if right[0] == "percent":
        left, right = right, left
    if left[0] == "percent":
        hundredth = ("/", left[1], ("num", "100"))
        return _same_values(left[1], right) or _same_values(hundredth, right)
    if {left[0], right[0]} == {"const"} or _is_infinite(left) or _is_infinite(right):
        return False  # equal ones are the same tree
    rounded = _is_rounded(left, right)
    exact = _exact(left), _exact(right)
    if not rounded and None not in exact:
        return exact[0] == exact[1]
    points = enumerate(zip(_values(left), _values(right), strict=True))
    compared = [values for point, values in points if _is_compared(point, *values)]
    return bool(compared) and all(_close(*values, rounded) for values in compared)


def _is_compared(point: int, *values: Any) -> bool:
    """Whether there are two values, and real ones where letters may be negative."""
    if None in values:
        return False
    return point < POSITIVE or all(abs(mpmath.im(value)) < NOTHING for value in values)


def _same_digits(left: Expr, right: Expr) -> bool:
    """Digits of a base are equal to the same digits, of the same base where both name one."""
    digits = [
        tree[1].rstrip("0").rstrip(".") if "." in tree[1] else tree[1]
        for tree in (left, right)
        if tree[0] in ("base", "num")
    ]
    bases = {tree[2] for tree in (left, right) if tree[0] == "base"}
    return len(digits) == 2 and digits[0] == digits[1] and len(bases) == 1


def _is_rounded(left: Expr, right: Expr) -> bool:
    return any(
        node[0] == "num" and ("." in node[1] or "e" in node[1].lower())
        for tree in (left, right)
        for node in nodes(tree)
    )


def _close(one: Any, other: Any, rounded: bool) -> bool:
    size, gap = max(abs(one), abs(other)), abs(one - other)
    if size < NOTHING:
        return True
    if rounded and not _are_integers(one, other):
        return bool(gap <= min(ROUNDED, ROUNDED_SMALL * size))
    return bool(gap <= EXACTLY * size)


def _are_integers(*values: Any) -> bool:
    return all(not mpmath.im(value) and mpmath.isint(mpmath.re(value)) for value in values)


@lru_cache(maxsize=4096)
def _values(tree: Expr) -> tuple[Any, ...]:
    """A formula's values at the points, None where there is none. Without letters it has one."""
    names = sorted(_symbols(tree))
    varies = bool(names) or _has(tree, "apply")
    values = []
    for point in range(POINTS if varies else 1):
        try:
            value = _value(tree, {name: _number_of(name, point) for name in names})
            values.append(value if mpmath.isfinite(value) else None)
        except (NoValue, ArithmeticError, ValueError, TypeError):
            values.append(None)
    return tuple(values if varies else values * POINTS)


@lru_cache(maxsize=4096)
def _exact(tree: Expr) -> Fraction | None:
    """The value of whole numbers and their sums, products, quotients and powers, else None."""
    kind, parts = tree[0], tree[1:]
    if kind == "num":
        return Fraction(parts[0]) if parts[0].isdigit() else None
    if kind not in _EXACT_OPERATIONS:
        return None
    values = [_exact(part) for part in parts]
    if None in values:
        return None
    value = _EXACT_OPERATIONS[kind](*values)
    return value if value is None or _bits(value) <= MOST_BITS else None


def _exact_power(base: Fraction, exponent: Fraction) -> Fraction | None:
    if exponent.denominator > 1 or abs(exponent) * _bits(base) > MOST_BITS:
        return None
    return Fraction(base ** int(exponent)) if base or exponent > 0 else None


def _exact_factorial(number: Fraction) -> Fraction | None:
    small = number.denominator == 1 and 0 <= number <= 1000
    return Fraction(factorial(int(number))) if small else None


_EXACT_OPERATIONS: dict[str, Callable[..., Fraction | None]] = {
    "+": lambda *numbers: sum(numbers, Fraction(0)),
    "*": lambda *numbers: prod(numbers, start=Fraction(1)),
    "/": lambda left, right: left / right if right else None,
    "^": _exact_power,
    "neg": lambda number: -number,
    "!": _exact_factorial,
}


def _bits(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def _number_of(name: str, point: int) -> Any:
    digest = hashlib.sha256(f"{point} {name}".encode()).digest()
    value = mpmath.mpf(int.from_bytes(digest[:16], "big")) / 2**128 * 2 + mpmath.mpf("0.3")
    return -value if point >= POSITIVE and digest[20] % 2 ^ point % 2 else value


def _need(there: object) -> None:
    """A tree has no value unless this is so."""
    if not there:
        raise NoValue


def _value(tree: Expr, numbers: dict[str, Any]) -> Any:
    kind, parts = tree[0], tree[1:]
    if kind == "num":
        return mpmath.mpf(parts[0])
    if kind == "sym":
        return numbers[parts[0]]
    if kind == "const":
        if parts[0] == "i":
            return mpmath.mpc(0, 1)
        _need(parts[0] in ("pi", "e"))
        return +getattr(mpmath, parts[0])
    if kind == "call":
        return _called(parts[0], parts[1:], numbers)
    _need(kind in _SCALARS and kind != "base")
    if kind == "apply":
        arguments = [_value(part, numbers) for part in parts[1:]]
        value, shift = _number_of(parts[0], 7), _number_of(parts[0], 9)
        for i, each in enumerate(arguments):
            value += _number_of(parts[0], i) * mpmath.sin(each + shift)
        return value
    values = [_value(part, numbers) for part in parts]
    return _bounded(_OPERATIONS[kind](*values))


def _bounded(value: Any) -> Any:
    _need(not (mpmath.isinf(value) or (value and abs(mpmath.mag(value)) > MOST_BITS)))
    return value


def _power(base: Any, exponent: Any) -> Any:
    _need(not (base and abs(exponent) * max(1, abs(mpmath.mag(base))) > MOST_BITS))
    return mpmath.power(base, exponent)


def _of_small(function: Callable[..., Any], most: int) -> Callable[..., Any]:
    def of(*values: Any) -> Any:
        _need(not max(map(abs, values)) > most)
        return function(*values)

    return of


def _root(value: Any, degree: Any) -> Any:
    if not mpmath.im(value) and value < 0 and _are_integers(degree) and degree % 2:
        return -_power(-value, 1 / degree)
    return _power(value, 1 / degree)


def _over_integers(function: Callable[..., int]) -> Callable[..., Any]:
    def over(*values: Any) -> Any:
        _need(_are_integers(*values))
        return mpmath.mpf(function(*(int(mpmath.re(value)) for value in values)))

    return over


def _ratio(*values: Any) -> Any:
    _need(len(values) == 2)
    return values[0] / values[1]


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "+": lambda *values: mpmath.fsum(values),
    "*": lambda *values: mpmath.fprod(values),
    "/": lambda left, right: left / right,
    "ratio": _ratio,
    "^": _power,
    "neg": lambda value: -value,
    "!": _of_small(mpmath.factorial, 1000),
    "percent": lambda value: value / 100,
    "degree": lambda value: value,
}
_OF_MPMATH = (
    "sin cos tan cot sec csc asin acos atan acot asec acsc tanh coth sech csch "
    "asinh acosh atanh sqrt floor ceil sign arg"
)
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(mpmath, name) for name in _OF_MPMATH.split()},
    "ln": mpmath.log,
    **dict.fromkeys(("log", "lg"), lambda value, base: mpmath.log(value) / mpmath.log(base)),
    "exp": _of_small(mpmath.exp, MOST_BITS),
    "sinh": _of_small(mpmath.sinh, MOST_BITS),
    "cosh": _of_small(mpmath.cosh, MOST_BITS),
    "cbrt": lambda value: _root(value, mpmath.mpf(3)),
    "root": _root,
    "abs": abs,
    "norm": abs,
    "max": lambda *values: max(map(mpmath.re, values)),
    "min": lambda *values: min(map(mpmath.re, values)),
    "gcd": _over_integers(gcd),
    "lcm": _over_integers(lcm),
    "sgn": mpmath.sign,
    "binom": _of_small(mpmath.binomial, 1000),
    "Re": mpmath.re,
    "Im": mpmath.im,
}


def _called(name: str, arguments: Sequence[Expr], numbers: dict[str, Any]) -> Any:
    if name == "det":
        rows = [[_value(part, numbers) for part in row] for row in arguments[0][1:]]
        _need(len({len(rows), *map(len, rows)}) == 1 and len(rows) <= 8)
        return mpmath.det(mpmath.matrix(rows))
    _need(name in _FUNCTIONS)
    values = [_value(part, numbers) for part in arguments]
    if name in _TRIGONOMETRIC:
        if arguments[0][0] == "degree":
            values = [values[0] * mpmath.pi / 180]
        _need(not (abs(values[0]) > 1e6 or abs(mpmath.im(values[0])) > MOST_BITS))
    value = _FUNCTIONS[name](*values)
    _need(name == "cot" or not mpmath.isnan(value))
    return _bounded(value)
