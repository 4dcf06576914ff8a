"""Texts as models write them, in many languages, each with its right reading.

`tests/data/readings.jsonl` has a text a line: what is read (`answer`, null for nothing), its kind
(with `-strict` for the form that a prompt asks for), the form of its statement, its language,
where the form comes from, whether an obvious rule (the last number or letter, the first "answer",
the last box) goes wrong on it (`trap`), and whether it is read letter by letter (`exact`).
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.clocks import assert_linear
from ttc.text.answers import extract_answer
from ttc.text.equality import same_answer
from ttc.text.statements import statements
from ttc.text.tables import languages

FILE = Path(__file__).parents[2] / "data" / "readings.jsonl"
ROWS: list[dict[str, Any]] = [
    json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()
]
KINDS = sorted({row["kind"] for row in ROWS})


def read(row: dict[str, Any]) -> str | None:
    kind, _, strict = row["kind"].partition("-")
    return extract_answer(row["text"], kind, strict=strict == "strict")


def is_right(row: dict[str, Any]) -> bool:
    answer, kind = row["answer"], row["kind"].partition("-")[0]
    if answer is None or row.get("exact"):
        return read(row) == answer
    return same_answer(answer, read(row), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_every_text_is_read_as_people_read_it(kind: str) -> None:
    wrong = [
        f"{row['language']}: {row['answer']!r} is read as {read(row)!r} in {row['text']!r}"
        for row in ROWS
        if row["kind"] == kind and not is_right(row)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("form", ["{}: 5", "x **{}:** 5", "({}: 5)", "{}: 5, 7 x"])
def test_every_noun_of_every_language_is_found(form: str) -> None:
    """What is looked for first, to pass other texts fast, passes none of them."""
    for language in languages():
        for noun in language.answer.split("|"):
            for word in {noun, noun[0].upper() + noun[1:], noun.upper()}:
                found = statements(form.format(word))
                assert language in [one.language for one in found], word


def test_the_texts_are_many_and_hard() -> None:
    assert len(ROWS) >= 1000
    assert sum(row["trap"] for row in ROWS) >= len(ROWS) / 2
    assert len({row["language"] for row in ROWS}) >= 25
    assert max(Counter((row["kind"], row["text"]) for row in ROWS).values()) == 1


@pytest.mark.parametrize("kind", ["number", "choice", "math", "text"])
def test_reading_takes_time_linear_in_the_text(kind: str) -> None:
    """Of every text that states something, many times over."""
    whole = "\n".join(row["text"] for row in ROWS)

    def grow(chars: int) -> None:
        text = whole * (chars // len(whole) + 1)
        extract_answer(text[:chars], kind)

    assert_linear(grow, 400_000)
