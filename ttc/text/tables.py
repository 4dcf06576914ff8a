"""The tables of words and signs that texts are read by: TOML files beside this module."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
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


def longest_first(words: Iterable[str]) -> str:
    """A pattern for any of the words."""
    return "|".join(sorted(words, key=len, reverse=True))


AROUND_WORDS = rf"\\(?:{longest_first(WORDS['around_words'].split())})"
"""Commands of LaTeX that stand around words."""


def by_word(rows: Mapping[str, str]) -> dict[str, str]:
    """Each word of a table's values, with its name there."""
    return {word: name for name, words in rows.items() for word in words.split()}


LATIN = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, eq=False)
class Language:
    """A row of `languages.toml`, which says what its fields are. code: ISO 639-1."""

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
