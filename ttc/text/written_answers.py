"""Answers in words, dates and times of day, in one form for all that say the same."""

from __future__ import annotations

import re

from ttc.text.number_words import in_digits
from ttc.text.numbers import MAX_CHARS, hyphened
from ttc.text.tables import AROUND_WORDS, WORDS

_TEXT = re.compile(rf"{AROUND_WORDS}\*?\s*\{{([^{{}}]*)\}}")
_BLANKS = re.compile(r"(?:\s|~|\\[,;:! ]|\\q?quad(?![A-Za-z]))+")
_MEANINGS: dict[str, str] = WORDS["meanings"]
_ENDINGS = {1: "st", 2: "nd", 3: "rd"}
_ORDINALS = {
    word: f"{number}{_ENDINGS.get(number, 'th')}"
    for number, word in enumerate(WORDS["ordinals"].split(), 1)
}
_WEEKDAYS = {name[:length]: name for name in WORDS["weekdays"].split() for length in (3, 4, 5)}
_WEEKDAY = re.compile(rf"^({'|'.join(_WEEKDAYS)})\.?$")
_MONTHS = {
    name[:length]: number
    for number, name in enumerate(WORDS["months"].split(), 1)
    for length in (3, 4, len(name))
}
_MONTH = "|".join(sorted(_MONTHS, key=len, reverse=True))
_DATES = (
    re.compile(
        rf"(?P<month>{_MONTH})\.? (?:the )?(?P<day>\d{{1,2}})(?:st|nd|rd|th)?"
        r"(?:,? (?P<year>\d{4}))?"
    ),
    re.compile(
        rf"(?:the )?(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? (?P<month>{_MONTH})\.?"
        r"(?:,? (?P<year>\d{4}))?"
    ),
    re.compile(r"(?P<year>\d{4})-(?P<month>\d{2})-(?P<day>\d{2})"),
)
_TIME = re.compile(
    r"(?P<hour>\d{1,2})(?::(?P<minute>[0-5]\d))?(?::(?P<second>[0-5]\d))? ?"
    r"(?P<half>a\.? ?m\.?|p\.? ?m\.?|noon|midnight|in the (?:morning|afternoon|evening))?"
)


def unwrapped(answer: str) -> str:
    """An answer without what stands around words in LaTeX, and with single blanks."""
    plain = answer
    for _ in range(3):
        plain = _TEXT.sub(r"\1", plain)
    plain = plain.replace("\\$", "$").replace("$", "") if plain.count("$") > 1 else plain
    return _BLANKS.sub(" ", plain).strip(" .*`\"'")


def in_signs(answer: str) -> str:
    """An answer whose words say one value (no solution, two thirds, twenty-five) in signs; any
    other one as it is."""
    if answer.strip(" $") in ("{}", r"\{\}"):
        return r"\emptyset"
    if len(answer) > MAX_CHARS or not re.search("[A-Za-z]{3}|[一-鿿]", answer):
        return answer
    words = unwrapped(answer).lower()
    words = re.sub("^(?:the|there (?:is|are)) ", "", words)
    if words in _MEANINGS:
        return _MEANINGS[words]
    return in_digits(words) or answer


def in_words(answer: str) -> str:
    """An answer in words, in one form: without capitals, quotation marks, an article before it."""
    words = hyphened(unwrapped(answer)).lower()
    words = re.sub(r"[\"'“”‘’{}]| (?=\\)", "", words).replace("-", " ")
    words = re.sub(r"\b(?:a|p)\. ?m\b\.?", lambda half: half[0][0] + "m", words)
    words = re.sub(r"^(?:the|an?) (?=[a-z]{2})", "", words)
    words = re.sub(r"[a-z]+", lambda word: _ORDINALS.get(word[0], word[0]), words)
    words = _WEEKDAY.sub(lambda day: _WEEKDAYS[day[1]], words)
    words = re.sub(r"(?<=\d) ?\^ ?(?=st|nd|rd|th)", "", words)
    several = [part.strip() for part in re.split(r",| and |;|&", words)]
    kept = [part.removeprefix("and ") for part in several if part]
    return " ".join(", ".join(sorted(kept)).split())


def date_of(answer: str) -> tuple[int, int, int] | None:
    """(year or 0, month, day) of an answer that is a date."""
    if len(answer) > 60:
        return None
    plain = unwrapped(answer).lower()
    for form in _DATES:
        if match := form.fullmatch(plain):
            month = match["month"]
            number = int(month) if month.isdigit() else _MONTHS[month]
            return int(match["year"] or 0), number, int(match["day"])
    return None


def same_dates(left: tuple[int, int, int], right: tuple[int, int, int]) -> bool:
    return left[1:] == right[1:] and (left[0] == right[0] or 0 in (left[0], right[0]))


def time_of(answer: str) -> tuple[int, int, bool] | None:
    """(seconds since the day, or noon, began, ..., whether it says which half of the day)."""
    if len(answer) > 60:
        return None
    plain = unwrapped(answer).lower()
    plain = {"noon": "12 noon", "midnight": "12 midnight"}.get(plain, plain)
    match = _TIME.fullmatch(plain)
    if match is None or (match["minute"] is None and match["half"] is None):
        return None
    hour, half = int(match["hour"]), (match["half"] or "").replace(".", "").replace(" ", "")
    if hour > 24 or (half and not 1 <= hour <= 12):
        return None
    seconds = int(match["minute"] or 0) * 60 + int(match["second"] or 0)
    if not half:
        return hour, seconds, hour > 12 or hour == 0
    late = half in ("pm", "noon") or half.endswith(("afternoon", "evening"))
    return hour % 12 + 12 * late, seconds, True


def same_times(left: tuple[int, int, bool], right: tuple[int, int, bool]) -> bool:
    """A time that does not say which half of the day it is in may be in either."""
    if left[1] != right[1]:
        return False
    if left[2] and right[2]:
        return left[0] == right[0]
    return left[0] % 12 == right[0] % 12
