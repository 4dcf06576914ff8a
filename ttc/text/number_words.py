"""Numbers in words, of the languages of `number_words.toml`, and in signs of East Asia."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from typing import NamedTuple

from ttc.text.tables import WORDS, longest_first, table

MAGNITUDES: dict[str, int] = WORDS["magnitudes"]
"""Words that multiply the number before them, in digits too, with their powers of ten."""


_TABLE = table("number_words")
_SIGNED = rf"[\s*_`:({{「]*+(?P<minus>(?i:{WORDS['minus']})\s*+)?+(?P<words>"
_PARTICLE = WORDS["particle"]
_END = r"[ *_`)}]*+(?:[.,;:!?(\n。！।۔]|$)"
_PHRASE = rf"(?:{WORDS['phrase']})(?!\w)"
"""Behind one of them, one more, the words are not the whole number."""


class _Part(NamedTuple):
    """A word of a number. multiplies: what stands before it."""

    value: Fraction
    multiplies: bool = False


class _Words(NamedTuple):
    """A language's words for numbers. here: finds a number. token: finds its parts, and "and"."""

    here: re.Pattern[str]
    token: re.Pattern[str]
    parts: dict[str, _Part]


@cache
def _words(language: str) -> _Words | None:
    row = _TABLE.get(language)
    if row is None:
        return None
    parts = {word: _Part(Fraction(value)) for word, value in _plain_values(row)}
    for size in row.get("sizes", "").split():
        word, _, value = size.partition("=")
        parts[word] = _Part(Fraction(value), multiplies=True)
    words = longest_first(parts)
    joins, alone = (longest_first(row.get(name, "").split()) or "(?!)" for name in ("and", "alone"))
    join = rf"(?:-| ++)?+(?:(?:{joins})(?:-| ++)?+)?+"
    spelt = rf"(?:{words})(?:{join}(?:{words}))*+(?: and a half)?+"
    follows = rf"(?! +{_PHRASE})"
    if language != "en":  # not all phrases are known, so that only a word may follow
        spelt = rf"(?!(?:{alone}) (?!{words})[^\W\d_]){spelt}"
        follows = rf"(?=[*_]*+(?: (?!{_PHRASE})[^\s\d.,;:!?()।]++)?+(?:{_PARTICLE})?+{_END})"
    ends = rf"(?:(?![\w-])|(?=(?:{_PARTICLE}){_END}))"
    here = rf"{_SIGNED}(?i:{spelt}){ends}){follows}"
    return _Words(re.compile(here), re.compile(rf"{words}|{joins}"), parts)


def _plain_values(row: dict[str, str]) -> Iterator[tuple[str, int]]:
    """The words that do not multiply, with their values."""
    for name, step in (("small", 1), ("tens", 10), ("hundreds", 100)):
        for place, words in enumerate(row.get(name, "").split()):
            for word in words.replace("_", " ").split("/"):
                yield word, (place + (step > 1)) * step


NUMBER_WORD = longest_first(word for word, _ in _plain_values(_TABLE["en"]))
_SHARES = {words: value for words, value in WORDS["meanings"].items() if value[0].isdigit()}
_SHARE = re.compile(rf"{_SIGNED}(?i:{longest_first(_SHARES).replace(' ', '[ -]')}))(?={_END})")


def number_in_words(text: str, start: int, language: str = "en") -> str | None:
    """The number that stands at a place in words, behind blanks and markup, in digits ("125" for
    "one hundred and twenty-five", "35" for 三十五); None where there is none.

    language: whose words are read beside English ones and signs.
    """
    found = _read(text, start, language)
    return found and found[0]


def in_digits(words: str) -> str | None:
    """The number that English words or signs are as a whole, in digits."""
    found = _read(words, 0, "en")
    return found[0] if found and found[1] == len(words) else None


def _read(text: str, start: int, language: str) -> tuple[str, int] | None:
    """A number in digits, and where its words end."""
    if number := _SHARE.match(text, start):
        return _signed(number, _SHARES[number["words"].lower().replace("-", " ")])
    for code in dict.fromkeys((language, "en")):
        words = _words(code)
        number = words.here.match(text, start) if words else None
        if words and number and (value := _value(number["words"].lower(), words)):
            return _signed(number, value)
    number = _SIGNS_HERE.match(text, start)
    value = _value_of_signs(number["words"]) if number else None
    return _signed(number, value) if number and value else None


def _signed(number: re.Match[str], value: str) -> tuple[str, int]:
    return f"-{value}" if number["minus"] else value, number.end()


def _value(written: str, words: _Words) -> str | None:
    """Of words that count on (two hundred five) the number, of others (five six) None."""
    written, half, _ = written.partition(" and a half")
    parts = list[_Part]()
    joined = False
    for token in words.token.findall(written):
        part = words.parts.get(token)
        if joined and part and parts and parts[-1].value < 10 < part.value < 100:
            parts[-1] = _Part(parts[-1].value + part.value)  # zweiundvierzig
        elif part:
            parts.append(part)
        joined = part is None
    value = _counted(parts) if len(parts) < 30 else None
    return None if value is None else f"{value}{half and '.5'}"


def _counted(parts: Sequence[_Part]) -> Fraction | None:
    """The number of words or signs: what stands before the largest size times that, and what stands
    behind it. None where they count nothing."""
    sizes = [part.value if part.multiplies else Fraction(0) for part in parts]
    if size := max(sizes, default=Fraction(0)):
        place = sizes.index(size)
        left, right = parts[:place], parts[place + 1 :]
        many = _counted(left) if left else Fraction(size < 10_000)
        rest = _counted(right) if right else Fraction(0)
        return many * size + rest if many and rest is not None and rest < size else None
    total = parts[0].value if parts else None
    for part in parts[1:]:
        total = total + part.value if total is not None and _goes_on(total, part.value) else None
    return total


def _goes_on(total: Fraction, value: Fraction) -> bool:
    """Whether a number follows another one as in forty-two, ciento doce, soixante-douze."""
    room = next(size for size in (100, 10, 1) if total % size == 0)
    return value < room or (total in (60, 80) and 10 < value < 17)


# ---------------------------------------------------------------- in signs

_SIGNS = {
    sign: _Part(Fraction(size), int(size) > 9)
    for size, signs in WORDS["eastern"].items()
    for sign in signs
}
_SIGN = f"[{''.join(_SIGNS)}]"
_SIGNS_HERE = re.compile(
    rf"{_SIGNED}{_SIGN}++分之{_SIGN}++|{_SIGN}{{2,20}}+|(?!一[个個人]){_SIGN}"
    r"(?=\s*+(?:[^\w\s]|$)|です|입니다|[元円个個人岁]))"
)
"""One sign alone is a number before a few words only: 一样 is "the same"."""
_SIZE = r"(?:千(?![克米瓦卡])|百(?!分)|[백천万萬만亿億억])"
_DIGITS_AND_SIGNS = re.compile(
    rf"\d(?<![\d.]\d)[\d,]*+(?:\.\d++)?+ ?{_SIZE}(?:(?: ?\d++)?+ ?{_SIZE})*+(?:\d{{2,4}})?+(?!\d)"
)
"""3.5万, 3만 5천; not 3千克, kilograms."""
_LAST_SIGNS = re.compile(
    rf"(?<!{_SIGN})(?![万亿百千零〇])(?:(?=[一-鿿]){_SIGN}){{2,}}+(?![分月日])"
)
_SIGNS_PART = re.compile(r"[\d.]+|[^\s,]")


def last_in_signs(text: str) -> str | None:
    """The last number in signs of Chinese, Japanese or Korean that says a size, as 十 does."""
    values = (_value_of_signs(number[0]) for number in _LAST_SIGNS.finditer(text))
    return next(filter(None, reversed(list(values))), None)


def without_signs(text: str) -> str:
    """A text with 35000 for 3.5万."""
    return _DIGITS_AND_SIGNS.sub(lambda number: _value_of_signs(number[0]) or number[0], text)


def _value_of_signs(signs: str) -> str | None:
    below, _, above = signs.rpartition("分之")
    if below:
        top, bottom = _value_of_signs(above), _value_of_signs(below)
        return top and bottom and (f"{top}%" if below == "百" else f"{top}/{bottom}")
    parts = [_SIGNS.get(part) or _Part(Fraction(part)) for part in _SIGNS_PART.findall(signs)]
    if len(parts) > 30 or _is_ambiguous(parts):
        return None
    value = _counted(parts)
    return None if value is None else str(value)


def _is_ambiguous(parts: Sequence[_Part]) -> bool:
    """一百五 is 150 in China, 105 in Japan."""
    before, last = parts[-2:] if len(parts) > 1 else (parts[0], parts[0])
    return before.multiplies and before.value > 10 and not last.multiplies and last.value < 10
