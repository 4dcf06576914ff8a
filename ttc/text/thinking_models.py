"""The thinking marks of models: of known ones (`thinking_models.toml`), and as a chat template
writes a thought."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain
from typing import Any, NamedTuple

from ttc.errors import InvalidInput
from ttc.text.chat import (
    ANSWER,
    QUESTION,
    chat_text,
    common_start,
    is_token,
    template_text,
)
from ttc.text.tables import table
from ttc.text.thinking_marks import Header, ThinkingMarks


class Family(NamedTuple):
    """Models that think alike; see the head of `thinking_models.toml`."""

    marks: ThinkingMarks
    signs: list[str]
    written: bool


def _family(row: Mapping[str, Any]) -> Family:
    begin, end, wraps = (
        [mark if isinstance(mark, str) else Header(**mark) for mark in row.get(name, ())]
        for name in ("begin", "end", "wraps")
    )
    marks = ThinkingMarks(begin, end, wraps, row.get("closing", ""))
    return Family(marks, row.get("signs") or row["end"][-1:], row.get("written", False))


FAMILIES = tuple(map(_family, table("thinking_models")["family"]))


def _all_tags() -> ThinkingMarks:
    tagged = [family.marks for family in FAMILIES if not family.written]

    def all_of(name: str) -> tuple[str, ...]:
        marks = chain.from_iterable(getattr(each, name) for each in tagged)
        return tuple(dict.fromkeys(marks))

    return ThinkingMarks(all_of("begin"), all_of("end"), all_of("wraps"))


ANY = _all_tags()
"""The marks of all known models that no other text holds, for texts of an unknown model."""


def ends_some_thought(text: str | None) -> bool:
    """Whether a text holds a mark with which some known model ends a thought."""
    return any(cut.thinks is False for cut in ANY.cuts(text or ""))


def marks_of(tokenizer: Any) -> ThinkingMarks | None:
    """The marks of a tokenizer's model: of a known family by its chat template, else as the
    template writes a thought, else by the vocabulary, else by the tag that a prompt opens; None for
    none."""
    template = template_text(tokenizer)
    for family in FAMILIES:
        if all(sign in template for sign in family.signs):
            return family.marks
    if any(key in template for key in THOUGHT_KEYS):
        learned = _written_marks(tokenizer)
        if learned is not None:
            return learned
    for family in FAMILIES:
        if not family.written and all(is_token(sign, tokenizer) for sign in family.signs):
            return family.marks
    return _opened_marks(tokenizer) if template else None


THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking")
"""Where chat templates look for the thought of a message."""

THOUGHT = "THE-THOUGHT"


def _written_marks(tokenizer: Any) -> ThinkingMarks | None:
    """What a chat template writes around the thought of a message; None where it writes none."""
    answer = {"role": "assistant", "content": ANSWER}
    try:
        prompt = chat_text(QUESTION, tokenizer)
        plain = chat_text([*QUESTION, answer], tokenizer, begins_answer=False)
        thought = {**answer, **dict.fromkeys(THOUGHT_KEYS, THOUGHT)}
        text = chat_text([*QUESTION, thought], tokenizer, begins_answer=False)
    except InvalidInput:
        return None
    before, written, after = text.partition(THOUGHT)
    end, answered, rest = after.partition(ANSWER)
    if not written or not answered or not end.strip():
        return None
    head = plain.removeprefix(prompt).partition(ANSWER)[0].strip()
    end = end.strip()
    tag = _CLOSING_TAG.match(end)
    if tag is not None and before.rstrip().endswith(f"<{tag[1]}>"):
        return ThinkingMarks(f"<{tag[1]}>", tag[0], _tags_around(end[tag.end() :], rest))
    shared = prompt if before.startswith(prompt) else common_start(before, plain)
    begin = before.removeprefix(shared).strip()
    wraps = (head,) if plain.startswith(prompt) and head not in ("", begin, end) else ()
    vague = [mark for mark in (begin, end) if mark and _in_any_text(mark)]
    if vague or begin == end:
        place = f"{vague[0]!r} around" if begin != end else f"{begin!r} before and after"
        raise InvalidInput(
            f"the chat template writes {place} a thought, which may hold it too; name marks with "
            "thinking_marks, or false for none"
        )
    return ThinkingMarks((begin,) if begin else (), end, wraps)


def _tags_around(before: str, after: str) -> tuple[str, ...]:
    """The tag that an answer stands in, by what is written before it and after it."""
    tag, closing = _OPENING_TAG.search(before), _CLOSING_TAG.match(after.lstrip())
    return (f"<{tag[1]}>", closing[0]) if tag and closing and tag[1] == closing[1] else ()


def _in_any_text(mark: str) -> bool:
    """Whether a mark is one or two plain words, or signs alone, as those of a fence."""
    words = re.findall(r"[^\W_]+", mark)
    tagged = re.search(r"[<\[{]|[^\W_](_|[^\w\s'.,-])[^\W_]|[^\w\0-\x7f]", mark)
    return (not words and mark.isascii()) or (len(words) < 3 and not tagged)


def _opened_marks(tokenizer: Any) -> ThinkingMarks | None:
    """The tag that a prompt ends with, where it stands before no answer of the past and is no name
    of an answer; None where it ends with none."""
    try:
        prompt = chat_text(QUESTION, tokenizer)
        answer = {"role": "assistant", "content": ANSWER}
        past = chat_text([*QUESTION, answer], tokenizer, begins_answer=False)
    except InvalidInput:
        return None
    tag = _OPENING_TAG.search(prompt)
    if tag is None or tag[1].lower() in _OF_ANSWERS or tag[0].strip() in past:
        return None
    return ThinkingMarks(f"<{tag[1]}>", f"</{tag[1]}>")


_OF_ANSWERS = ("ai", "answer", "assistant", "bot", "model", "output", "response", "solution")
_OPENING_TAG = re.compile(r"<([^</>\s|]+)>\s*\Z")
_CLOSING_TAG = re.compile(r"</([^<>\s]+)>")
