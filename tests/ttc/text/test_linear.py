"""Reading takes time linear in the text, whatever a pattern of the room could go over again.

The texts repeat what each pattern repeats: all patterns of the modules of `ttc.text`, and those
that are made while the texts of `tests/data` are read.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import ttc.text
from tests.helpers import tiers
from ttc.text.answers import extract_answer

FILE = Path(__file__).parents[2] / "data" / "readings.jsonl"
KINDS = ("number", "choice", "math", "text")
CHARS = 4000
QUICK_S = 0.02
"""Quadratic work on so many characters takes longer."""

parser = importlib.import_module("re._parser")
SIGNS = "a1 A.,-=(){}[]$\\*:_\n\"'éB答"
"""Of a set that is told by what it has not, the first of these that it has."""


@cache
def patterns() -> set[tuple[str, int]]:
    """The patterns of the room with their flags."""
    modules = [
        importlib.import_module(module.name)
        for module in pkgutil.iter_modules(ttc.text.__path__, "ttc.text.")
    ]
    found = set[tuple[str, int]]()
    for value in [value for module in modules for value in vars(module).values()]:
        if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
            found.add((value.pattern, value.flags))
        elif hasattr(value, "cache_clear"):
            value.cache_clear()
    compiled = getattr(re, COMPILE)

    def recorded(pattern: Any, flags: Any = 0) -> Any:
        made = compiled(pattern, flags)
        if isinstance(made, re.Pattern) and isinstance(made.pattern, str):
            found.add((made.pattern, made.flags))
        return made

    re.purge()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(re, COMPILE, recorded)
        rows = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
        kinds_of_texts = {(row["language"], row["kind"], row["form"]): row["text"] for row in rows}
        for text in kinds_of_texts.values():
            for kind in KINDS:
                extract_answer(text, kind)
    return found


COMPILE = "_compile"
"""What all of `re`'s functions get their patterns from."""


def example(parts: Any) -> str:
    """A text that parts of a pattern match, but for what they look ahead and back for."""
    return "".join(map(example_of, parts))


def example_of(part: Any) -> str:
    name, value = str(part[0]), part[1]
    if name == "LITERAL":
        return chr(value)
    if name == "IN":
        fits = re.compile(str_of_set(value))
        return next((sign for sign in (*first_of_set(value), *SIGNS) if fits.match(sign)), "")
    if name in ("ANY", "NOT_LITERAL"):
        return "a" if value != ord("a") else "b"
    if name == "BRANCH":
        return example(value[1][0])
    if name == "SUBPATTERN":
        return example(value[3])
    if name == "ATOMIC_GROUP":
        return example(value)
    return example(value[2]) * max(value[0], 1) if name.endswith("REPEAT") else ""


def first_of_set(items: Any) -> Iterator[str]:
    for name, value in items:
        if str(name) in ("LITERAL", "RANGE"):
            yield chr(value if str(name) == "LITERAL" else value[0])


CATEGORIES = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}


def str_of_set(items: Any) -> str:
    inside = ""
    for name, value in items:
        if str(name) == "NEGATE":
            inside += "^"
        elif str(name) == "CATEGORY":
            _, _, category = str(value).partition("CATEGORY_")
            sign = CATEGORIES[category.removeprefix("NOT_")]
            inside += sign.upper() if category.startswith("NOT_") else sign
        else:
            ends = (value, value) if str(name) == "LITERAL" else value
            inside += "-".join(re.escape(chr(end)) for end in ends)
    return f"[{inside}]"


def repeats(parts: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """What stands before each part that may come often, and what it is."""
    for part in parts:
        name, value = str(part[0]), part[1]
        if name.endswith("REPEAT"):
            if value[1] > 8:
                yield before, example(value[2])
            yield from repeats(value[2], before)
        elif name == "BRANCH":
            for branch in value[1]:
                yield from repeats(branch, before)
        elif name in ("SUBPATTERN", "ATOMIC_GROUP", "ASSERT", "ASSERT_NOT"):
            inner = {"SUBPATTERN": 3, "ATOMIC_GROUP": None}.get(name, 1)
            yield from repeats(value if inner is None else value[inner], before)
        before += example_of(part)


@cache
def attacks() -> list[tuple[str, str]]:
    """How a text begins, and what it goes on with again and again."""
    found = dict[tuple[str, str], None]()
    for pattern, flags in sorted(patterns()):
        for before, part in repeats(parser.parse(pattern, flags)):
            for begin, again in ((before, part), ("", before + part), ("", part)):
                if again:
                    lead = "The answer is " if len(found) % 2 else ""
                    found[lead + begin, again] = None
    return list(found)


def seconds(begin: str, again: str, chars: int, kind: str) -> float:
    text = (begin + again * (chars // len(again) + 1))[:chars] + "\x01"
    started = time.process_time()
    extract_answer(text, kind)
    return time.process_time() - started


def is_linear(begin: str, again: str, kind: str) -> bool:
    """Four times the size takes some four times the time, and quadratic work 16 times; a measure on
    a busy machine is taken again."""
    if seconds(begin, again, CHARS, kind) < QUICK_S:
        return True
    return any(
        seconds(begin, again, 4 * CHARS, kind)
        < 9 * max(QUICK_S, seconds(begin, again, CHARS, kind))
        for _ in range(4)
    )


def test_the_patterns_are_all_of_the_room() -> None:
    assert len(patterns()) > 300 and len(attacks()) > 1000


@pytest.mark.parametrize("kind", KINDS)
def test_no_repetition_of_any_pattern_is_read_over_and_over(kind: str) -> None:
    """A number in groups of two (1,11,11,...) was tried at each of its digits, and each of many
    statements without a number was asked for the language of the whole text."""
    step = 512 if tiers.IS_FAST else len(KINDS)
    mine = attacks()[KINDS.index(kind) :: step]
    slow = [attack for attack in mine if not is_linear(*attack, kind)]
    assert not slow
