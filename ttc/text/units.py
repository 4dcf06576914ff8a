"""Units behind a number, and before it ($5): the answer without them, and whether two agree."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from ttc.text.number_words import MAGNITUDES
from ttc.text.numbers import CURRENCIES, MAX_CHARS, plain_numbers
from ttc.text.tables import AROUND_WORDS, table

_TABLE = table("units")
_SIZES = _TABLE["size"] | {words.split()[0]: {words: 1} for words in _TABLE["alone"]}
_UNITS = {
    word: (name, Fraction(size))
    for name, sizes in _SIZES.items()
    for words, size in sizes.items()
    for word in words.split()
}
_SHORT, _SIGNS, _POWERS = _TABLE["short"], _TABLE["sign"], _TABLE["power"]
_ANY, _NO_UNIT = (frozenset(_TABLE["words"][name].split()) for name in ("any", "no_unit"))
_NO_UNIT |= MAGNITUDES.keys()

# Every quantifier has a limit, which makes every pattern linear.
_TEXT = rf"{AROUND_WORDS}\s{{0,3}}\{{([^{{}}]{{0,80}})\}}"
_AT_END = re.compile(
    rf"(?:\s|\\[,;:! ]|~){{0,20}}(?:{_TEXT}"
    r"|(?<=[\d.)}\s])(?<!_)(?<!\\)\b([A-Za-z][A-Za-z./ -]{0,80})"
    r"|(?:(?<=\d)|(?<=[}\d]\s))([a-z]{2,12}(?:/[a-z]{1,6})?))"
    r"(?:\s{0,3}\^\s{0,3}\{?\s{0,3}(\d|-1)\s{0,3}\}?)?\s{0,3}\.?$"
)
_FEET = re.compile(r"(\d{1,9})\s?['′’]\s?(\d{1,2})\s?(?:''|′′|[\"″”])")
_DEGREE = re.compile(
    r"\s{0,3}(?:°|º|\^\s{0,3}\{?\s{0,3}\\circ\s{0,3}\}?|\\degree(?![A-Za-z]))\s{0,3}"
    rf"(?:{_TEXT}|([CF]))?\s{{0,3}}\.?$"
)
_ORDINAL = re.compile(
    r"(?<=\d)\s{0,3}\^?\s{0,3}\{?\s{0,3}(?:\\(?:text|mathrm|textrm)\s{0,3}\{)?(st|nd|rd|th)\}{0,2}$"
)
_MONEY = re.compile(
    rf"^(-?)\s{{0,3}}(?:\\?([{CURRENCIES}])|\\text\s{{0,3}}\{{\s{{0,3}}\\?\$\s{{0,3}}\}}"
    r"|(?:(USD|EUR|Rs|INR|GBP|JPY|CHF)\.?))\s{0,3}(?=[-\d.\\(])"
)
_MONEY_BEHIND = re.compile(rf"(?<=\d)\s{{0,3}}(\\?[{CURRENCIES}])\s{{0,3}}$")
_PI = re.compile(rf"(?:pi|(?i:{'|'.join(MAGNITUDES)}))\s{{1,3}}(?=[A-Za-z]{{2}})")
_NUMERIC = re.compile(r"\d|\\pi|π|\bpi\b|\\sqrt|\\frac")


@dataclass(frozen=True)
class MeasureUnit:
    """dimensions: of a known one, ((name, power), ...), and how many of them it is. words: those
    that it is written in, in the singular."""

    words: frozenset[str]
    dimensions: tuple[tuple[str, int], ...] | None = None
    size: Fraction = Fraction(1)

    def __str__(self) -> str:
        if self.dimensions is None:
            return " ".join(sorted(self.words))
        size = "" if self.size == 1 else f"{self.size} "
        return size + " ".join(f"{name}^{power}" for name, power in self.dimensions)


PERCENT = MeasureUnit(frozenset({"percent"}))


@lru_cache(maxsize=2**14)
def split_unit(answer: str) -> tuple[str, MeasureUnit | None]:
    """An answer without its unit, and the unit. An answer without a number has none."""
    feet = _FEET.sub(r"\1 ft \2 in", answer.strip().rstrip("."))
    plain = added_up(plain_numbers(feet))
    if len(plain) > MAX_CHARS or not _NUMERIC.search(plain):
        return answer, None
    if ordinal := _ORDINAL.search(plain):
        return plain[: ordinal.start()].strip(), MeasureUnit(frozenset({"th"}))
    parted = _without_money(plain) or _without_degrees(plain) or _without_words(plain)
    return parted or (answer, None)


def added_up(text: str) -> str:
    """A text with one quantity for two of a kind: 2.5 hours for 2 hours 30 minutes."""
    return _TWO.sub(_sum, text)


_IN_TEX = r"(?:\\[,;: ]|[ ~-]|\\(?:text|mathrm) ?\{){0,3}+"
_TWO = re.compile(
    rf"(\d(?<![\d.,:/^]\d)\d{{0,8}}+){_IN_TEX}([a-z]{{1,12}}+) ?\}}?,?{_IN_TEX}(?:and ?\}}? ?)?"
    rf"(\d{{1,9}}){_IN_TEX}([a-z]{{1,12}})(?![\w^²³/])(?: ?\}})?"
)


def _sum(both: re.Match[str]) -> str:
    part = Fraction(both[3]) * (conversion(unit_of(both[4]), unit_of(both[2])) or 0)
    return rf"{int(both[1]) + part} \text{{{both[2]}}}" if 0 < part < 1 else both[0]


def _without_money(plain: str) -> tuple[str, MeasureUnit | None] | None:
    if money := _MONEY.match(plain):
        rest = money[1] + plain[money.end() :]
        sign = money[2] or money[3] or "$"
        if "$" in rest:
            return None
        bare, behind = split_unit(rest)
        return bare, behind or unit_of(_SIGNS.get(sign, sign))
    money = _MONEY_BEHIND.search(plain)
    if money is None or "$" in plain[: money.start()]:
        return None
    return plain[: money.start()].strip(), unit_of(_SIGNS[money[1].lstrip("\\")])


def _without_degrees(plain: str) -> tuple[str, MeasureUnit | None] | None:
    degree = _DEGREE.search(plain)
    if degree is None or not (before := plain[: degree.start()].strip()):
        return None
    if re.search(r"(?:sin|cos|tan|cot|sec|csc)[^=,]{0,80}$", before):
        return None  # the sine of 30 degrees is not that of 30
    return before, unit_of(f"degree {(degree[1] or degree[2] or '').strip()}")


def _without_words(plain: str) -> tuple[str, MeasureUnit | None] | None:
    match = _AT_END.search(plain)
    if match and match[2] and (pi := _PI.match(plain, match.start(2))):
        match = _AT_END.search(plain, pi.end())
    if match is None:
        return None
    before = re.sub(r"(?:\\[,;:! ]|~|\s){1,20}$", "", plain[: match.start()])
    written = match[1] if match[1] is not None else match[2] or match[3]
    unit = unit_of(f"{written.strip()}^{match[4]}" if match[4] else written.strip())
    if not _NUMERIC.search(before) or unit is None or before[-1] in "=+-*/^_({,<>&|":
        return None
    if match[1] is not None:
        return before, unit
    letter = len(written) == 1  # 5 m may be five times m
    named = unit.dimensions is not None or _is_phrase(written, before)
    return (before, unit) if named and not letter else None


def _is_phrase(written: str, before: str) -> bool:
    """Whether plain words name what is counted: 12 red apples."""
    from ttc.text.formulas import is_word

    words = [word for word in re.split(r"[ ./-]+", written) if word]
    if not re.search(rf"\d$|\b(?:pi|(?i:{'|'.join(MAGNITUDES)}))$", before) or len(words) > 4:
        return False
    return all(is_word(word.lower()) or word.lower() in _UNITS or word in ("of",) for word in words)


@lru_cache(maxsize=4096)
def unit_of(written: str) -> MeasureUnit | None:
    """The unit that words name; None where they say more than a unit does."""
    small = written.lower().replace(".", "").replace("\\", "").strip()
    small = _SHORT.get(small, small)
    words = [_singular(word) for word in re.findall(r"[a-z]+", small)]
    dimensions = _dimensions(small)
    if not words or (dimensions is None and not _NO_UNIT.isdisjoint([*words, *small.split()])):
        return None
    if len(words) == 1 and len(words[0]) == 1 and words[0] not in _UNITS:
        return None
    kept = frozenset(word for word in words if word not in _POWERS and word not in _ANY)
    return MeasureUnit(kept) if dimensions is None else MeasureUnit(kept, *dimensions)


def _dimensions(written: str) -> tuple[tuple[tuple[str, int], ...], Fraction] | None:
    powers: dict[str, int] = {}
    size = Fraction(1)
    for place, part in enumerate(re.split(r"\s{1,3}per\s{1,3}|\s{0,3}/\s{0,3}", written)):
        sign = -1 if place else 1
        factor = 1
        base = None
        for word, index in re.findall(r"([a-z]+)\s*(?:\^\s*\{?(-?\d))?", part):
            if word in _POWERS:
                factor *= _POWERS[word]
                continue
            if base is not None:
                return None
            base = _UNITS.get(word) or _UNITS.get(_singular(word))
            if base is None:
                return None
            factor *= int(index or 1)
        if base is None:
            return None
        powers[base[0]] = powers.get(base[0], 0) + sign * factor
        size *= base[1] ** (sign * factor)
    return tuple(sorted(powers.items())), size


def _singular(word: str) -> str:
    if word in _UNITS or word in _POWERS:
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    return word[:-1] if word.endswith("s") and not word.endswith("ss") and len(word) > 2 else word


def conversion(left: MeasureUnit | None, right: MeasureUnit | None) -> Fraction | None:
    """How many of the right unit one of the left is; None where they are of other things. A unit
    that is not written may be any."""
    if left is None or right is None or not left.words or not right.words:
        return Fraction(1)
    if left.dimensions is not None and right.dimensions is not None:
        return left.size / right.size if left.dimensions == right.dimensions else None
    return Fraction(1) if left.words <= right.words or right.words <= left.words else None
