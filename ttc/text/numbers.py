"""Numbers as people write them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from fractions import Fraction

from ttc.text.tables import WORDS

MAGNITUDES: dict[str, int] = WORDS["magnitudes"]
"""Words that multiply the number before them, with their powers of ten."""

MAGNITUDE = rf" (?i:{'|'.join(MAGNITUDES)})\b"
"""What may follow a number: 1.5 million."""

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
_DIGITS_FOLLOW = rf"(?=\\?[{CURRENCIES}]?\d)"
_NEGATIVE = re.compile(
    rf"(?:\b(?i:negative)\s++|(?<![正\d])(?:负|負|マイナス|마이너스)\s?){_DIGITS_FOLLOW}"
)
_MINUS = re.compile(rf"\b(?i:{WORDS['minus']})\s++{_DIGITS_FOLLOW}")
_MINUS_WORDS = [
    word if len(word) < 4 else word[1:]  # the first letter may be a capital
    for word in (*WORDS["minus"].split("|"), "NEGATIVE", "MINUS")
]
_ASCII_MINUS_WORDS = [word for word in _MINUS_WORDS if word.isascii()]
"""A text that holds none of them is not searched for negative numbers, which takes longer."""
_MAGNITUDE_IN_TEX = re.compile(rf"\\text ?\{{ ?({'|'.join(MAGNITUDES)}) ?\}}")
_HALF = re.compile(r"(?<=\d) and a half\b")
_POWER = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿˣ]+")
BREAKS_OFF = r"(?![\w$]|\s?(?:[-+/^=_\\]|\*(?!\*))"
_SCALES = {"k": "thousand", "m": "million", "b": "billion", "t": "trillion"}
_AMOUNT = re.compile(
    rf"([{CURRENCIES}] ?\d[\d,.]*)(?i:([kmbt])n?){BREAKS_OFF}(?!\s?[{CURRENCIES}]))"
)
"""$1.5M, €3bn; no product of letters, as in $2k$ and $2k + 1$."""
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
        power = MAGNITUDES[large["magnitude"].strip().lower()]
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
    """A text with 1 1/2 for 1½, -3 for negative 3, 10^{6} for 10⁶, 35000 for 3.5万, $2 million for
    $2M."""
    if not text.isascii():
        text = _POWER.sub(_typed_power, text.translate(_VULGAR))
        text = _EASTERN_DIGITS.sub(lambda number: _value(number[0]) or number[0], text)
    text = _AMOUNT.sub(lambda amount: f"{amount[1]} {_SCALES[amount[2].lower()]}", text)
    text = _MAGNITUDE_IN_TEX.sub(r" \1", text)
    text = _HALF.sub(".5", text) if " half" in text else text
    words = _ASCII_MINUS_WORDS if text.isascii() else _MINUS_WORDS
    if any(word in text for word in words):
        text = _MINUS.sub("- ", _NEGATIVE.sub("-", text))
    return text


def _typed_power(power: re.Match[str]) -> str:
    return f"^{{{hyphened(unicodedata.normalize('NFKC', power[0]))}}}"


def _slashed(fraction: re.Match[str]) -> str:
    return f" {fraction[1] or fraction[2]}/{fraction[3] or fraction[4]}"


def plain_spelling(answer: str) -> str:
    """An answer without what changes how a formula looks, not what it says."""
    sized = _SIZES.sub("", re.sub(r"\\[dt]frac\b", r"\\frac", answer))
    return " ".join(_SPACES.sub(" ", sized).split()).strip(" .")


# ---------------------------------------------------------------- in words

_TENS = WORDS["tens"].split()
_EASTERN = {sign: int(size) for size, signs in WORDS["eastern"].items() for sign in signs}
_VALUES = (
    {word: value for value, word in enumerate(WORDS["small"].split())}
    | {word: 10 * tens for tens, word in enumerate(_TENS, 2)}
    | {sign: size for sign, size in _EASTERN.items() if size < 10}
)
_SIZES_OF = {word: 10**power for word, power in MAGNITUDES.items()} | {
    sign: size for sign, size in _EASTERN.items() if size > 9
}
NUMBER_WORD = "|".join(word for word in _VALUES if word not in _EASTERN)
_PART_OF_A_PHRASE = rf"(?! +(?:{WORDS['phrase']}|{NUMBER_WORD})\b)"
"""One of them, one more: such words are not the whole number."""

_MORE = rf"(?:-| +(?:and +)?)(?:{NUMBER_WORD}|{'|'.join(MAGNITUDES)}|a half)\b"
_SIGNED = rf"[\s*_`:({{「]*+(?P<minus>(?i:{WORDS['minus']})\s*+)?+(?P<words>"
_SHARES: dict[str, str] = {
    words: value for words, value in WORDS["meanings"].items() if value[0].isdigit()
}
_SIGN = f"[{''.join(_EASTERN)}]"
_SHARE = re.compile(
    rf"{_SIGNED}(?i:{'|'.join(_SHARES).replace(' ', '[ -]')}))(?=[ *_`)}}]*+(?:[.,!\n]|$))"
)
_SPELT = re.compile(rf"{_SIGNED}(?i:(?:{NUMBER_WORD})\b(?:{_MORE})*+))(?!-){_PART_OF_A_PHRASE}")
_EASTERN_HERE = re.compile(
    rf"{_SIGNED}{_SIGN}++分之{_SIGN}++|{_SIGN}{{2,20}}+|(?!一[个個人]){_SIGN}"
    r"(?=\s*+(?:[^\w\s]|$)|です|입니다|[元円个個人岁]))"
)
"""One sign alone is a number before a few words only: 一样 is "the same"."""
_UNIT = r"(?:千(?![克米瓦卡])|百(?!分)|[백천万萬만亿億억])"
_EASTERN_DIGITS = re.compile(
    rf"\d(?<![\d.]\d)[\d,]*+(?:\.\d++)?+ ?{_UNIT}(?:(?: ?\d++)?+ ?{_UNIT})*+(?:\d{{2,4}})?+(?!\d)"
)
"""3.5万, 3만 5천; not 3千克, kilograms."""
_EASTERN_WORDS = re.compile(
    rf"(?<!{_SIGN})(?![万亿百千零〇])(?:(?=[一-鿿]){_SIGN}){{2,}}+(?![分月日])"
)
_PART = re.compile(r"[a-z]+|[\d.]+|[^\s,-]")


def number_in_words(text: str, start: int) -> str | None:
    """The number that stands at a place in words, behind blanks and markup, in digits ("125" for
    "one hundred and twenty-five", "35" for 三十五); None where there is none."""
    return _first_value(
        (_SHARE.match(text, start), _SPELT.match(text, start), _EASTERN_HERE.match(text, start))
    )


def in_digits(words: str) -> str | None:
    """The number that words are as a whole, in digits."""
    return _first_value(
        (_SHARE.fullmatch(words), _SPELT.fullmatch(words), _EASTERN_HERE.fullmatch(words))
    )


def last_in_signs(text: str) -> str | None:
    """The last number in signs of Chinese, Japanese or Korean that says a size, as 十 does."""
    return _first_value(reversed(list(_EASTERN_WORDS.finditer(text))))


def _first_value(numbers: Iterable[re.Match[str] | None]) -> str | None:
    for number in filter(None, numbers):
        if value := _value(number.groupdict().get("words") or number[0]):
            return f"-{value}" if number.groupdict().get("minus") else value
    return None


def _value(words: str) -> str | None:
    """Of words that count on (two hundred five) the number, of others (five six) None."""
    words, half, _ = words.lower().partition(" and a half")
    if share := _SHARES.get(words.replace("-", " ")):
        return share
    below, _, above = words.rpartition("分之")
    if below:
        top, bottom = _value(above), _value(below)
        return top and bottom and (f"{top}%" if below == "百" else f"{top}/{bottom}")
    parts = [part for part in _PART.findall(words.replace(",", "")) if part != "and"]
    value = _counted(parts) if len(parts) < 30 else None
    return None if value is None else f"{value}{half and '.5'}"


def _counted(parts: Sequence[str]) -> Fraction | None:
    """The number of words or signs: what stands before the largest size times that, and what stands
    behind it. None where they count nothing."""
    sizes = [_SIZES_OF.get(part, 0) for part in parts]
    if size := max(sizes, default=0):
        place = sizes.index(size)
        left, right = parts[:place], parts[place + 1 :]
        many = _counted(left) if left or parts[0] in MAGNITUDES else Fraction(size < 10_000)
        rest = _counted(right) if right else Fraction(0)
        if not many or rest is None or rest >= size:
            return None
        if len(right) == 1 and rest < 10 < size and right[0] not in NUMBER_WORD:
            return None  # 一百五 is 150 in China, 105 in Japan
        return many * size + rest
    if len(parts) == 2 and parts[0] in (*_TENS, *"〇零"):
        one, other = map(_counted, ([parts[0]], [parts[1]]))
        return one + other if one is not None and other is not None and other < 10 else None
    if len(parts) != 1:
        return None
    return Fraction(_VALUES.get(parts[0], parts[0]))
