"""The tables of words and signs that texts are read by: TOML files beside this module."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


def table(name: str) -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))


WORDS: dict[str, Any] = {
    name: words.replace("\n", "") if isinstance(words, str) and "|" in words else words
    for name, words in table("words").items()
}


def by_word(rows: Mapping[str, str]) -> dict[str, str]:
    """Each word of a table's values, with its name there."""
    return {word: name for name, words in rows.items() for word in words.split()}


LATIN = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, eq=False)
class Language:
    """Words of one language, parted by `|`, in small letters: those with a capital, and in
    capitals, are found by them. All but nouns may be patterns.

    code: ISO 639-1.
    answer: nouns for an answer. A text without any of them states nothing here.
    option: nouns for one of several choices.
    result: nouns for a result, which may be that of one step.
    link: what stands between the noun and the answer. A colon or = always may.
    bare: whether nothing need stand between, as where the verb comes last.
    hedge: what may stand behind the link: adverbs, doubts, articles.
    right: what follows a choice that is claimed to be right. choose: what stands before it.
    wrong: what follows a choice that is said to be wrong.
    denied: what stands before a noun of which nothing is stated (another, a wrong answer).
    ends: where a sentence goes on without its answer (because, when).
    letters: series of the script's own choice letters, in the order of A, B, C; _ for none. Letters
        that look like A, B, C come first: the problem shows Latin ones.
    decimal_comma: whether 2,5 is two and a half, and 1.234 more than a thousand.
    common: frequent words, which tell texts with decimal commas from others.
    """

    code: str
    answer: str
    option: str = ""
    result: str = ""
    link: str = ""
    bare: bool = False
    hedge: str = ""
    right: str = ""
    choose: str = ""
    wrong: str = ""
    denied: str = ""
    ends: str = ""
    letters: tuple[str, ...] = ()
    decimal_comma: bool = False
    common: str = ""

    @property
    def is_english(self) -> bool:
        return self.code == "en"


@cache
def languages() -> tuple[Language, ...]:
    """English, which reads texts in other ways too, and all others."""

    def value(entry: Any) -> Any:
        if isinstance(entry, str):
            return entry.replace("\n", "")
        return tuple(entry) if isinstance(entry, list) else entry

    return tuple(
        Language(code, **{name: value(entry) for name, entry in row.items()})
        for code, row in table("languages").items()
    )
