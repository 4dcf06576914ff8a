"""Numbers as people write them."""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

from ttc.text.tables import table

WORDS = table("words")
MAGNITUDES: dict[str, int] = WORDS["magnitudes"]
"""Words that multiply the number before them, with their powers of ten."""

_MYRIADS: dict[str, int] = WORDS["myriads"]
MAGNITUDE = rf"(?: (?i:{'|'.join(MAGNITUDES)})\b|[{''.join(_MYRIADS)}](?!\s?\d))"
"""What may follow a number: 1.5 million, 1.5万."""

MAX_CHARS = 1000
"""Longer answers are no numbers; Python refuses integers of 4,301 digits."""

MINUS = "−–\u2011\ufe63\uff0d"
"""What stands for a minus: its own sign, the en dash, and the no-break, small and full-width
hyphens."""

THOUSANDS = r"(?:,|['’]|\{,\}|,\\! ?|\\[,;: ]|[\u00a0\u2009\u202f])"
"""What parts thousands, in LaTeX too: 12,000, 12{,}000, 12\\,000, 12'000. Thin and no-break
blanks do; a common blank may also stand between two numbers."""

CURRENCIES = "$€£¥₹₩₱₽₺₫₴₦₪฿"

_EXPONENT = r"(?:\{ ?[-−–+]?\d{1,3} ?\}|[-−–+]?\d{1,3})"
POWER_OF_TEN = (
    r"(?:[eE][-−–+]?\d{1,3}"
    rf"| ?(?:[xX×*·]|\\times|\\cdot) ?10 ?(?:\^|\*\*) ?{_EXPONENT})"
)
"""What follows a number in scientific notation."""

_SIZES = re.compile(r"\\(?:left|right|displaystyle)\b\s*")
_SPACES = re.compile(r"\\[,;:! ]")

_SCIENTIFIC = re.compile(rf"(?P<digits>[-+]?[\d.,]+){POWER_OF_TEN}")
_LARGE = re.compile(rf"(?P<digits>.*\d)(?P<magnitude>{MAGNITUDE})")
_LAST_INTEGER = re.compile(r"[-+]?(?<!\d)\d++(?=[ }]*+$)")
_VULGAR = {
    ord(sign): " " + unicodedata.normalize("NFKC", sign).replace("⁄", "/")
    for sign in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒"
}
_NEGATIVE = re.compile(rf"\bnegative\s++(?=\\?[{CURRENCIES}]?\d)", re.IGNORECASE)
_AS_HYPHEN = str.maketrans(dict.fromkeys(MINUS, "-"))
_SIGNS = re.compile(rf"\\?[{CURRENCIES}%]|(?<=\d) ?(?:percent(?:age)?|pct)$")
_COMMA = re.compile(r"(?<=\d)\{,\}(?=\d+$)")
"""A decimal comma in LaTeX, where it parts no thousands: 2{,}5."""
_FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{\s*(-?\d+)\s*\}|(\d))\s*(?:\{\s*(\d+)\s*\}|(\d))")
_MIXED = re.compile(r"([-+]?)(\d+)\s+(\d+/\d+)")
_THOUSANDS = re.compile(rf"(?<=\d)(?:\s|{THOUSANDS})(?=\d{{3}}(?!\d))")


def as_number(answer: str) -> Fraction | None:
    """The value of a number as people write it ($1,200.50, 3/4, 1 1/2, 1½, 12%, –3, 3e8,
    \\frac{3}{4}, 1.5 million)."""
    if len(answer) > MAX_CHARS:
        return None
    plain = _SIGNS.sub("", hyphened(plain_numbers(answer))).strip().rstrip(".")
    plain = _FRACTION.sub(_slashed, plain).strip()
    if mixed := _MIXED.fullmatch(plain):
        sign, whole, part = mixed.groups()
        value = as_number(part)
        return None if value is None else (int(whole) + value) * (-1 if sign == "-" else 1)
    if scientific := _SCIENTIFIC.fullmatch(plain):
        value, exponent = as_number(scientific["digits"]), _LAST_INTEGER.search(plain)
        if value is None or exponent is None:
            return None
        return value * Fraction(10) ** int(exponent.group())
    if large := _LARGE.fullmatch(plain):
        value = as_number(large["digits"])
        power = (MAGNITUDES | _MYRIADS)[large["magnitude"].strip().lower()]
        return None if value is None else value * 10**power
    plain = _COMMA.sub(".", _THOUSANDS.sub("", re.sub(r"^([-+])\s+", r"\1", plain)))
    if "e" in plain.lower() or "_" in plain:  # exponents ask for any size; _ is Python's alone
        return None
    try:
        return Fraction(plain)
    except (ValueError, ZeroDivisionError):
        return None


def hyphened(answer: str) -> str:
    return answer.translate(_AS_HYPHEN)


def plain_numbers(text: str) -> str:
    """A text with 1 1/2 in the place of 1½, and -3 in that of negative 3."""
    if not text.isascii():
        text = text.translate(_VULGAR)
    return _NEGATIVE.sub("-", text) if "egative" in text or "EGATIVE" in text else text


def _slashed(fraction: re.Match[str]) -> str:
    return f" {fraction[1] or fraction[2]}/{fraction[3] or fraction[4]}"


def plain_spelling(answer: str) -> str:
    """An answer without what changes how a formula looks, not what it says."""
    sized = _SIZES.sub("", re.sub(r"\\[dt]frac\b", r"\\frac", answer))
    return " ".join(_SPACES.sub(" ", sized).split()).strip(" .")


# ---------------------------------------------------------------- in words

_TENS = WORDS["tens"].split()
_VALUES = {word: value for value, word in enumerate(WORDS["small"].split())} | {
    word: 10 * tens for tens, word in enumerate(_TENS, 2)
}
NUMBER_WORD = "|".join(_VALUES)
_PHRASE = "of|or|and|in|out|by|more|less|fewer|that|which|half|third|point"
_PART_OF_A_PHRASE = rf"(?! +(?:{_PHRASE}|{NUMBER_WORD})\b)"
"""One of them, one more, two and a half: such words are not the whole number."""

_MORE = rf"(?:-| +(?:and +)?)(?:{NUMBER_WORD}|{'|'.join(MAGNITUDES)})\b"
_WORDS_OF_A_NUMBER = re.compile(rf"(?i:(?:{NUMBER_WORD})\b(?:{_MORE})*+)")
_IN_WORDS = re.compile(
    rf"[\s*_`:({{]*+(?P<words>{_WORDS_OF_A_NUMBER.pattern})(?!-){_PART_OF_A_PHRASE}"
)


def number_in_words(text: str, start: int) -> str | None:
    """The number that stands at a place in words, behind blanks and markup, in digits ("3 million"
    for "three million", "125" for "one hundred and twenty-five"); None where there is none."""
    words = _IN_WORDS.match(text, start)
    return None if words is None else _value(words["words"])


def in_digits(words: str) -> str | None:
    """The number that words are as a whole, in digits."""
    return _value(words) if _WORDS_OF_A_NUMBER.fullmatch(words) else None


def _value(words: str) -> str | None:
    """Of words that count on (two hundred five) the number, of others (five six) None."""
    small, _, magnitude = words.lower().rpartition(" ")
    if magnitude in MAGNITUDES and not set(small.split()) & set(MAGNITUDES):
        number = _value(small)
        return number and f"{number} {magnitude}"
    total, part = 0, 0
    room, powers = 1000, 15  # what the next word's value, and power of ten, must be less than
    for word in re.findall("[a-z]+", words.lower()):
        if word in _VALUES and _VALUES[word] < room:
            part += _VALUES[word]
            room = 10 if word in _TENS else 1
        elif word == "hundred" and 0 < part < 100:
            part, room = part * 100, 100
        elif word in MAGNITUDES and part > 0 and 2 < MAGNITUDES[word] < powers:
            powers = MAGNITUDES[word]
            total, part, room = total + part * 10**powers, 0, 1000
        elif word != "and":
            return None
    return str(total + part)
