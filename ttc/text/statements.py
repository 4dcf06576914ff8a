"""Where a text states its answer: the one grammar that every kind of answer is read by.

    statement = noun [of what] link [hedges] answer

as in "The answer to this question is clearly (B)", "**Answer:** 12", "La respuesta es B" or
"答案是18". The words come from `languages.toml`. `####` states too. What the answer is, and
where it ends, is up to its kind (`multiple_choice`, `number_answers`, `math_answers`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from operator import attrgetter
from typing import NamedTuple

from ttc.text.tables import LATIN, WORDS, Language, languages, longest_first

CLOSED_UP = frozenset({"zh", "ja", "th", "ko"})
"""Languages that part words by no blanks, or bind particles to them."""

_PREFIXED = frozenset({"ar", "he", "fa", "ur"})
"""Languages that bind articles and prepositions to a noun's beginning."""

CLOSED_SCRIPTS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
"""Thai, Lao, Burmese, Khmer, Japanese, Chinese and Korean: such letters may touch a number or a
choice."""

MARKS = "\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0900-\u0963\u0966-\u0dff\u0e31-\u0e4e"
"""Accents and vowels that belong to the letter before; some are no \\w to Python."""

_PLAIN = (
    {ord(zero) + digit: str(digit) for zero in WORDS["zeros"] for digit in range(10)}
    | {ord("Ａ") + place: letter for place, letter in enumerate(LATIN)}
    | {ord("ａ") + place: letter.lower() for place, letter in enumerate(LATIN)}
    | {
        ord(wide): narrow
        for wide, narrow in zip("：（）．％＝＄［］／＊＋－٫٬", ":().%=$[]/*+-.,", strict=True)
    }
)
"""Digits of all scripts, full-width letters and signs, one character for one."""

_NOT_PLAIN = re.compile(f"[{re.escape(''.join(map(chr, _PLAIN)))}]")

_LINKS = r":|\.(?=[*_]{2})|ঃ|=(?!=)|→|->|=>|⇒|[—–-](?=\s)"
_CLOSING = r"[ \t*_`~)}】\]\"'”’»]*+"
_MARKUP = r"[*_`~)}】\]\"'”’»]*+"
_LONGEST_DENIAL = 48
_HASHES = re.compile("####(?!#)(?<!#####)")


class Statement(NamedTuple):
    """start: where its noun or mark begins. place: where its answer does, with what markup it has.
    linked: whether a verb, a colon or a new line stands before the answer. corrects: whether it
    takes another one back, as in "Wait, that's wrong: it should be 12"."""

    start: int
    place: int
    language: Language
    linked: bool = True
    hashes: bool = False
    corrects: bool = False


def plain(text: str) -> str:
    """The text with digits, letters and signs in their narrow Latin forms, as long as it was."""
    return text.translate(_PLAIN) if _NOT_PLAIN.search(text) else text


Nouns = tuple[str, ...]
"""Columns of `languages.toml`."""
ANSWERS: Nouns = ("answer",)
CHOICES: Nouns = ("answer", "option")
RESULTS: Nouns = ("result",)


@lru_cache(maxsize=2)  # the readings of a text ask for them in turn
def statements(text: str, nouns: Nouns = ANSWERS) -> list[Statement]:
    """The statements of a text, which is `plain`, in their order."""
    marks = () if nouns == RESULTS else _HASHES.finditer(text)
    statements = [Statement(*mark.span(), languages()[0], hashes=True) for mark in marks]
    denied: set[int] = set()  # a noun of several languages is denied in any of them
    for language, first in _spoken(text, nouns):
        for head in _head(language, nouns).finditer(text, first):
            start, end = head.span()
            before = text[max(0, start - _LONGEST_DENIAL) : start]
            if _denied(language).search(before):
                denied.add(start)
            elif _states(before, head, language) and not _is_negated(head, language):
                linked = head["link"] is not None
                statements.append(Statement(start, end, language, linked))
    kept = [statement for statement in statements if statement.start not in denied]
    kept.sort(key=attrgetter("place"))
    if kept and nouns != RESULTS:
        kept += _corrections(text, kept[-1].place)
    return kept


def _corrections(text: str, start: int) -> Iterator[Statement]:
    for one in _CORRECTIONS.finditer(text, start):
        before = text[max(start, one.start() - 80) : one.start()]
        if not _IF.search(_SENTENCES.split(before)[-1]):
            yield Statement(*one.span(), languages()[0], corrects=True)


_IF = re.compile(rf"\b(?i:{WORDS['if']})\b")


_UP_TO = rf"(?:(?!\b(?:{WORDS['if']}|think|check)\b)[^\n?]){{0,120}}?"
_VALUE_HERE = r"[\s*_$(]*+(?:\d[\d.,]*+|[A-J](?!\w))"
_CORRECTIONS = re.compile(
    rf"(?i:(?<!\w)(?:(?:{WORDS['correction']})\s?:"
    rf"|(?:{WORDS['takes_back']})(?:{_UP_TO}(?<!\w)(?:{WORDS['instead']}):?|[,:.]?\s"
    rf"(?={_VALUE_HERE}[)*_$.!]*+(?:\n|$))|{_UP_TO}(?=\b[\d.,]+\s?(?:{WORDS['instead_behind']})))))"
    rf"(?={_VALUE_HERE}(?!\s(?:{WORDS['relates']})\b))"
)


def clause(text: str, place: int) -> str:
    """What stands at a place up to the end of its line, sentence or clause."""
    line = text[place : place + 400].lstrip(" \t\n*:").split("\n", 1)[0]
    end = _ends().search(_PAIR.sub(lambda pair: "_" * len(pair[0]), line))
    return line[: end.start()] if end else line


_PAIR = re.compile(r"[\[\](] ?[^\s\[\]();]{1,20} ?; ?[^\s\[\]();]{1,20} ?[\[\])]")
"""(1; 2), [1; 2[."""


def alternatives(words: Iterable[str]) -> str:
    """One pattern for words that are parted by |, the longest first."""
    parts = {part for word in words for part in _split(word)}
    return "|".join(sorted(parts, key=lambda part: (-len(part), part)))


def decimal_comma(text: str) -> bool:
    """Whether a text's language writes 2,5 for two and a half. English wins a draw."""
    if not _COMMA_OR_POINT.search(text):
        return False
    speakers = _speakers()
    words = _words_of(text[:4000].lower())
    counts = Counter(code for word in words for code in speakers.get(word, ()))
    english = counts.pop("en", 0)
    here = max(counts.values(), default=0)
    return here > english or (not english and _CYRILLIC_OR_GREEK.search(text) is not None)


_COMMA_OR_POINT = re.compile(r"\d(?:[.,]|\{,\})\d")
_WORD = re.compile(r"[^\W\d_]+")
_BETWEEN_WORDS = {code: " " for code in range(128) if not chr(code).isalpha()}


def _words_of(text: str) -> set[str]:
    return set(text.translate(_BETWEEN_WORDS).split() if text.isascii() else _WORD.findall(text))


_CYRILLIC_OR_GREEK = re.compile("[\u0370-\u03ff\u0400-\u04ff]{3}")


@cache
def _speakers() -> dict[str, list[str]]:
    """Frequent words, each with English and the languages with decimal commas that have it."""
    speakers: dict[str, list[str]] = {}
    for language in languages():
        if language.decimal_comma or language.is_english:
            for word in set(language.common.split("|")):
                speakers.setdefault(word, []).append(language.code)
    return speakers


def _spoken(text: str, nouns: Nouns) -> list[tuple[Language, int]]:
    """The languages that have a noun in the text, with the place of the first one."""
    spaced, joined = _table(nouns)
    found = [noun for word in spaced.keys() & _words_of(text) for noun in spaced[word]]
    if not text.isascii():
        found += [pair for sign in joined.keys() & set(text) for pair in joined[sign]]
    first: dict[int, int] = {}
    for noun, language in found:
        if (place := text.find(noun)) >= 0:
            first[language] = min(place, first.get(language, place))
    return [(languages()[each], first[each]) for each in sorted(first)]


@cache
def _table(nouns: Nouns) -> tuple[dict[str, list[_Noun]], dict[str, list[_Noun]]]:
    """The nouns of languages that part words, by their first letters that a mark or blank ends, and
    of the others by their first sign."""
    spaced: dict[str, list[_Noun]] = {}
    joined: dict[str, list[_Noun]] = {}
    for place, language in enumerate(languages()):
        for noun in _cased(_nouns(language, nouns)):
            if language.code in CLOSED_UP | _PREFIXED:
                joined.setdefault(noun[0], []).append((noun, place))
            elif begin := _WORD.match(noun):
                spaced.setdefault(begin.group(), []).append((noun, place))
    return spaced, joined


_Noun = tuple[str, int]
"""With the place of its language in the table."""


def _states(before: str, head: re.Match[str], language: Language) -> bool:
    """Whether the noun is a word, and one without a link is a heading."""
    if before[-1:].isalpha() and language.code not in CLOSED_UP | _PREFIXED:
        return False
    if language.is_english and _UNIT.search(before):
        return False
    if head["link"] is None and head["noun"].lower() in language.option.split("|"):
        return False
    heading = language.is_english if head["link"] is None else "\n" in head["link"]
    if heading:
        return _HEADING.fullmatch(before.rpartition("\n")[2]) is not None
    if language.is_english and head["what"] and head["sign"]:  # "to get the answer in cm: 3 * 4"
        return _HEADING.fullmatch(_SENTENCES.split(before)[-1]) is not None
    return True


def _is_negated(head: re.Match[str], language: Language) -> bool:
    """Whether a verb is denied, as in "la respuesta no es A"."""
    return not language.is_english and _NEGATION.search(head[0]) is not None


_NEGATION = re.compile(rf"(?:{WORDS['negation']})")
_UNIT = re.compile(r"\d [^\W\d_]{1,30}+(?:/| per )$")
"""What makes the noun a unit: "2 points/answer = 48"."""
_SENTENCES = re.compile(r"[.!?]\s|[。！？\n]")
_HEADING = re.compile(r"[\W\d]*+(?:[^\W\d_]++[\W]*+){0,3}")
"""What may stand before the noun of a heading."""


def _split(words: str) -> list[str]:
    """Parts of a pattern at each | outside brackets."""
    parts, depth, begin = [], 0, 0
    for place, sign in enumerate(words):
        depth += (sign == "(") - (sign == ")")
        if sign == "|" and depth == 0:
            parts.append(words[begin:place])
            begin = place + 1
    return [part for part in [*parts, words[begin:]] if part]


def _cased(words: str) -> list[str]:
    """Words as they are, with a capital, and in capitals."""
    return [form for word in words.split("|") if word for form in _forms(word)]


def _forms(word: str) -> list[str]:
    if len(word) == 1:
        return [word]
    return list(dict.fromkeys((word, word[0].upper() + word[1:], word.upper())))


def _nouns(language: Language, nouns: Nouns) -> str:
    return "|".join(filter(None, (getattr(language, column) for column in nouns)))


@cache
def _head(language: Language, nouns: Nouns) -> re.Pattern[str]:
    """A noun up to its answer. It begins with literals, which Python's engine searches fast."""
    spaced = _is_spaced(language)
    named = longest_first(_cased(_nouns(language, nouns)))
    end = r"(?![^\W\d_])" if spaced else ""
    kind = r"(?:\s(?i:choice|option|letter|key)(?![^\W\d_]))?+" if language.is_english else ""
    aside = rf"{_MARKUP}(?:\s?\([^()\n]{{0,60}}\))?+"
    if language.is_english:
        words = rf",?\s(?i:{WORDS['of_what']})\b(?:\s(?![A-J]\b)[^\s.:;?!=]{{1,30}}+){{0,8}}?"
        words = rf"(?P<what>{words})?,?"
    elif spaced:
        words = r"(?:\s(?![A-ZА-Я]\b)[^\W\d_]{1,30}+){0,6}?,?"
    else:
        words = r"[^\s\d.,:;!?A-Z()。，；！？]{0,16}?"
    verbs = rf"\s?(?i:{alternatives([language.link])}){end}" if language.link else r"(?!)"
    link = rf"{words}{_CLOSING}(?:{verbs}{_CLOSING}\s?+:?|(?P<sign>{_LINKS}))"
    new_line = r"[ \t]*+\n"
    joined = rf"(?P<link>{aside}{link}|{_CLOSING}{new_line})?"
    return re.compile(rf"(?P<noun>{named}){end}{kind}{joined}{_hedges(language, end, verbs)}")


def _hedges(language: Language, end: str, verbs: str) -> str:
    words = sorted(_cased(f"{language.hedge}|{language.option}"), key=len, reverse=True)
    if not words:
        return ""
    nouns = {*language.answer.split("|"), *language.option.split("|")}
    others = "|".join(word for word in words if word.lower() not in nouns).replace(r"\S", r"\s")
    named = "|".join(word for word in words if word.lower() in nouns) or "(?!)"
    states = rf"(?!{_CLOSING}(?:{verbs}|[:=]))"  # Answer: The answer is
    return rf"(?:[\s*_,]{{0,8}}+(?:(?:{named}){end}{states}|(?:{others}){end})[.,:]?){{0,4}}"


@cache
def _denied(language: Language) -> re.Pattern[str]:
    words = rf"(?:{alternatives([language.denied])})"
    if not _is_spaced(language):
        return re.compile(rf"{words}的?\s?$")
    between = r"(?:[ \t*_\"'(]+[^\W\d_]+){0,2}[ \t*_\"'(]+$"
    return re.compile(rf"(?:^|\W){words}{between}", re.IGNORECASE)


@cache
def _ends() -> re.Pattern[str]:
    return re.compile(
        rf"[.!?]\s+(?![a-z\d])|,?\s+or\s+(?:{WORDS['about']})\b|[。।؟！？；;]|{_before_reasons()}"
        rf"|\s*\((?=[a-z]{{2,}}\s)|,\s+(?!(?:{WORDS['joins']})\b)(?=[^\W\d_A-Z]{{2,}})"
    )


def _before_reasons() -> str:
    words = alternatives(language.ends for language in languages() if _is_spaced(language))
    closed = alternatives(language.ends for language in languages() if not _is_spaced(language))
    return rf",?\s+(?:{words})(?![\w'’])|[，、,]?(?:{closed})"


def is_explained(text: str) -> bool:
    """Whether nothing but a reason, an aside or a check follows a result, as far as digits go."""
    first, *others = _SENTENCES.split(text)
    if _DIGIT.search(first) and not _explains().match(first):
        return False
    return all(_ASIDE.match(one) for one in others if _DIGIT.search(one))


_DIGIT = re.compile(r"\d")
_ASIDE = re.compile(rf"[\s*_>-]*(?:\(|(?i:{WORDS['check']})\b)")


@cache
def _explains() -> re.Pattern[str]:
    return re.compile(rf"[\s*_]*(?:\(|{_before_reasons()})")


def _is_spaced(language: Language) -> bool:
    return language.code not in CLOSED_UP
