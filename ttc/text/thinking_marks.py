"""Which part of a model's text is thought, and which is its answer.

A text is cut at marks, the strings with which a model begins and ends to think. The last of them
counts: what follows an end is the answer, and after a beginning there is none yet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ttc.checks import check_kind
from ttc.errors import InvalidInput


class Parted(NamedTuple):
    """A text in two. thought: what stands before the answer. answer: None while it is not begun."""

    thought: str
    answer: str | None


class Cut(NamedTuple):
    """A mark from `start` to `end` (excluded). thinks: whether a thought follows; None if it
    changes nothing."""

    start: int
    end: int
    thinks: bool | None


class TextSpan(NamedTuple):
    """What lies between two marks, from `start` to `end` (excluded)."""

    start: int
    end: int
    thought: bool


class Header(NamedTuple):
    """A mark with the model's words in it, as gpt-oss's
    `<|channel|>final <|constrain|>json<|message|>`: from `start` to the next `end`, which stands at
    most `HEADER_TOKENS` tokens or `HEADER_CHARS` characters later."""

    start: str
    end: str


HEADER_TOKENS, HEADER_CHARS = 20, 200
"""The first is that of vLLM's parser for gpt-oss."""

Mark = str | Header


@dataclass(frozen=True)
class ThinkingMarks:
    r"""The strings that part a model's thoughts from its answers.

    begin, end: any of `begin` opens a thought, any of `end` closes it. wraps: strings that belong
    to neither, as the tags around an answer. One string may be given for a tuple of one, and a
    `Header` for a string. closing: what is written to end a thought, by default the first of `end`.

    What follows the last end of thinking is the answer, whatever stands before: thoughts don't
    nest, and all before an end that nothing opened was thought. A text whose last mark opens a
    thought has no answer.
    Raises InvalidInput where `end` is empty, and for strings that are empty or both `begin` and
    `end`.
    """

    begin: Sequence[Mark]
    end: Sequence[Mark]
    wraps: Sequence[Mark] = ()
    closing: str = ""

    def __post_init__(self) -> None:
        for name in ("begin", "end", "wraps"):
            value = getattr(self, name)
            strings = (value,) if isinstance(value, Mark) else value
            listed = isinstance(strings, Sequence) and all(map(_is_mark, strings))
            check_kind(name, value, listed, "a string, or a list of strings that are not empty")
            object.__setattr__(self, name, tuple(strings))
        if not self.end:
            raise InvalidInput(
                "end is empty; name the string that ends the model's thoughts, as </think>"
            )
        if not self.closing:
            object.__setattr__(self, "closing", mark_text(self.end[0]))
        if both := set(self.begin) & set(self.end):
            raise InvalidInput(
                f"{min(both)!r} is among begin and end; a mark either opens a thought or closes it"
            )

    @cached_property
    def kinds(self) -> dict[Mark, bool | None]:
        return (
            dict.fromkeys(self.wraps, None)
            | dict.fromkeys(self.begin, True)
            | dict.fromkeys(self.end, False)
        )

    @cached_property
    def _ordered(self) -> list[Mark]:
        return sorted(self.kinds, key=lambda mark: len(mark_text(mark)), reverse=True)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        starts = "|".join(re.escape(_start(mark)) for mark in self._ordered)
        marks = "|".join(f"({_expression(mark, starts)})" for mark in self._ordered)
        # most places are passed by their first character
        first = "".join(sorted({re.escape(start[0]) for start in self._starts}))
        return re.compile(f"(?=[{first}])(?:{marks})", re.DOTALL)

    @cached_property
    def _starts(self) -> set[str]:
        return set(map(_start, self.kinds))

    def cuts(self, text: str) -> list[Cut]:
        if not any(start in text for start in self._starts):
            return []
        kinds = [self.kinds[mark] for mark in self._ordered]
        return [
            Cut(*match.span(), kinds[(match.lastindex or 1) - 1])
            for match in self.pattern.finditer(text)
        ]

    def unsettled(self, text: str) -> int:
        """How many characters at the end of a text may be the beginning of a mark."""
        count = max(overlap(text, mark_text(mark)) for mark in self.kinds)
        for mark in self.kinds:
            if isinstance(mark, Header):
                start = text.rfind(
                    mark.start, max(0, len(text) - HEADER_CHARS - len(mark_text(mark)))
                )
                if start >= 0 and mark.end not in text[start + len(mark.start) :]:
                    count = max(count, len(text) - start)
        return count

    def split(self, text: str, begun: bool = False) -> Parted:
        if cuts := self.cuts(text):
            return split_at(len(text), cuts, begun, lambda start, end: text[start:end])
        return Parted(text, None) if begun else Parted("", text)


def mark_text(mark: Mark) -> str:
    return mark if isinstance(mark, str) else mark.start + mark.end


def _is_mark(value: Any) -> bool:
    parts = value if isinstance(value, Header) else (value,)
    return all(isinstance(part, str) and part for part in parts)


def _start(mark: Mark) -> str:
    return mark if isinstance(mark, str) else mark.start


def _expression(mark: Mark, starts: str) -> str:
    """starts: an expression for what no header holds, the starts of all marks."""
    if isinstance(mark, str):
        return re.escape(mark)
    start, end = map(re.escape, mark)
    return f"{start}(?:(?!{starts}).){{0,{HEADER_CHARS}}}?{end}"


def pieces(length: int, cuts: Sequence[Cut], begun: bool) -> list[TextSpan]:
    """What lies between the marks of so many characters or tokens, empty pieces left out."""
    between = list[TextSpan]()
    start, thought = 0, begun
    for cut in (*cuts, Cut(length, length, None)):
        if cut.start > start:
            between.append(TextSpan(start, cut.start, thought))
        start = cut.end
        thought = thought if cut.thinks is None else cut.thinks
    return between


def split_at(
    length: int, cuts: Sequence[Cut], begun: bool, text: Callable[[int, int], str]
) -> Parted:
    """The thought and the answer, what follows the last end of thinking, of so many characters or
    tokens. text: gives that of a piece."""
    parts = pieces(length, cuts, begun)
    if ends_in_thought(cuts, begun):
        return Parted("".join(text(piece.start, piece.end) for piece in parts), None)
    end = max((cut.end for cut in cuts if cut.thinks is False), default=0)
    thought = [text(piece.start, piece.end) for piece in parts if piece.start < end]
    answer = [text(piece.start, piece.end) for piece in parts if piece.start >= end]
    return Parted("".join(thought), "".join(answer))


def ends_in_thought(cuts: Sequence[Cut], begun: bool) -> bool:
    return next((cut.thinks for cut in reversed(cuts) if cut.thinks is not None), begun)


def overlap(text: Sequence[Any], mark: Sequence[Any]) -> int:
    """How much of the end of `text` is the beginning of `mark`, but not all of it."""
    sizes = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text[len(text) - size :] == mark[:size]), 0)


def settled(text: str, ends: Sequence[str]) -> str:
    """The part of an unfinished text that stays: without half a character at its end, or what may
    begin one of `ends`."""
    text = text.rstrip("\ufffd")
    return text[: len(text) - max((overlap(text, end) for end in ends), default=0)]
