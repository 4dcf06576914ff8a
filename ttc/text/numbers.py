"""Numbers as people write them."""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

from ttc.text.number_words import MAGNITUDES, without_signs
from ttc.text.tables import WORDS

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
VULGAR = {
    ord(sign): " " + unicodedata.normalize("NFKC", sign).replace("⁄", "/")
    for sign in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒"
}
"""Fractions of one sign, as 1/2."""
_DIGITS_FOLLOW = rf"(?=\\?[{CURRENCIES}]?\d)"
_NEGATIVE = re.compile(
    rf"(?:\b(?i:negative)\s++|(?<![正\d])(?:负|負|マイナス|마이너스)\s?){_DIGITS_FOLLOW}"
)
_MINUS = re.compile(rf"\b(?i:{WORDS['minus']})\s++{_DIGITS_FOLLOW}")
_MINUS_WORDS = [
    word if len(word) < 4 else word[1:]  # the first letter may be a capital
    for word in (*WORDS["minus"].split("|"), "NEGATIVE", "MINUS")
]
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
        text = _POWER.sub(_typed_power, text.translate(VULGAR))
        text = without_signs(text)
    text = _AMOUNT.sub(lambda amount: f"{amount[1]} {_SCALES[amount[2].lower()]}", text)
    text = _MAGNITUDE_IN_TEX.sub(r" \1", text)
    text = _HALF.sub(".5", text) if " half" in text else text
    if any(word in text for word in _MINUS_WORDS):
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
