"""Numbers that are written as words: three, twenty-five, two million."""

from __future__ import annotations

import re

MAGNITUDES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
"""Words that multiply the number before them, with their powers of ten."""

MAGNITUDE = rf"(?: (?i:{'|'.join(MAGNITUDES)})\b)"
"""What may follow a number: 1.5 million."""

_SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
    "nineteen",
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_VALUES = {word: value for value, word in enumerate(_SMALL)} | {
    word: 10 * tens for tens, word in enumerate(_TENS, 2)
}
_WORD = "|".join(_VALUES)
_PHRASE = "of|or|and|in|out|by|more|less|fewer|that|which|half|third|point"
_PART_OF_A_PHRASE = rf"(?! +(?:{_PHRASE}|{_WORD})\b)"
"""One of them, one more, two and a half, two hundred five: such words are not the whole number."""

_WORDS = re.compile(
    rf"[\s*_`:({{]*+(?i:(?P<tens>{'|'.join(_TENS)})(?:[- ](?P<unit>{'|'.join(_SMALL[1:10])}))?"
    rf"|(?P<small>{'|'.join(_SMALL)}))\b(?!-)(?P<magnitude>{MAGNITUDE})?+{_PART_OF_A_PHRASE}"
)


def number_in_words(text: str, start: int) -> str | None:
    """The number that stands at a place in words, behind blanks and markup, in digits ("3 million"
    for "three million"); None where there is none."""
    words = _WORDS.match(text, start)
    if words is None:
        return None
    parts = [words[name].lower() for name in ("tens", "unit", "small") if words[name]]
    return f"{sum(_VALUES[part] for part in parts)}{(words['magnitude'] or '').lower()}"
