"""What stands in the `\\boxed{...}` of a text."""

from __future__ import annotations

import re
from typing import NamedTuple

from ttc.text.tables import WORDS

_BRACE = re.compile(
    r"(?P<box>\\f?boxed\s*+\{|\\fbox\s*+\{)"
    r"|\\f?boxed\s*+(?P<bare>-?\d++(?:\.\d++)?+)"
    r"|[{}]"
)
_AND = WORDS["and"]
_BETWEEN = re.compile(
    r"(?:\n[-*•] |[\s$,;&，、；]|\\[()\[\],;:! \\]|\\q?quad\b"
    rf"|\\text ?\{{[\s,]*(?:{_AND})?[\s,]*\}}"
    rf"|(?:\\|\b)[A-Za-z]+(?:_\{{?\w\}}?)?(?:(?:\\left)?\([^()=]{{1,30}}\))? ?=|\b(?:{_AND})\b)*+"
)
"""What parts boxes that are one answer together, as in $x=\\boxed{1}$ and $x=\\boxed{2}$."""

_AND_SIGN = re.compile(rf"[,;&，、；]|\\\\|\n[-*•] |\b(?:{_AND})\b")

_OPENING = re.compile(r"(?:\\left ?)?(?P<sign>\(|\[|\\\{)[\s$]*$")
_CLOSING = re.compile(r"[\s$]*(?:\\right ?)?(?P<sign>\)|\]|\\\})")
_MINUS = re.compile(r"(?:[=≈$(\[]|\\approx|\bis)\s*[-−]\s*\\?$")
"""A sign before the box, as in $x = -\\boxed{3}$. A minus between two terms is none."""


class Box(NamedTuple):
    """A complete box: where it begins, what it holds, and where it ends."""

    start: int
    content: str
    end: int


def boxed(text: str) -> str | None:
    """The content of the last complete `\\boxed{...}` or `\\fbox{...}`, or the number right after a
    `\\boxed` without braces; of boxes that are one answer together, all of them ("1, -2").

    An empty box is passed over: "" where no other is complete. None where none is, and where a
    later box has no end: the text was cut while it gave another answer. Every brace counts, escaped
    ones too. Linear in the text.
    """
    box = last_box(text)
    return None if box is None else box.content


def last_box(text: str) -> Box | None:
    """What `boxed` reads, with its place."""
    boxes, cut = _boxes(text)
    filled = [box for box in boxes if box.content.strip()]
    if cut is not None or not filled:
        return boxes[-1] if boxes and cut is None else None
    together = [filled[-1]]
    for box in reversed(filled[:-1]):
        first = together[0]
        between = text[box.end : first.start]
        if box.end > first.start or not _are_one(between):
            break
        together.insert(0, box)
    return _as_one(text, together)


def _are_one(between: str) -> bool:
    return len(between) <= 60 and bool(_AND_SIGN.search(between) and _BETWEEN.fullmatch(between))


def after_cut(text: str) -> str:
    """The text, or what follows the beginning of a last box without an end: what such a text has
    answered before, it was about to take back."""
    cut = _boxes(text)[1]
    return text if cut is None else text[cut:]


def _as_one(text: str, together: list[Box]) -> Box:
    start, end = together[0].start, together[-1].end
    contents = list(dict.fromkeys(box.content.strip() for box in together))
    if len(together) == 1 and _MINUS.search(text[max(0, start - 20) : start]):
        several = re.search("[-+−,]", contents[0])
        return Box(start, f"-({contents[0]})" if several else f"-{contents[0]}", end)
    if len(contents) == 1:
        return Box(start, together[-1].content, end)
    joined = ", ".join(contents)
    opening = _OPENING.search(text[max(0, start - 10) : start])
    closing = _CLOSING.match(text, end)
    if opening and closing and not text[: start - 1].endswith("\\"):
        joined = f"{opening['sign']}{joined}{closing['sign']}"
    return Box(start, joined, end)


def _boxes(text: str) -> tuple[list[Box], int | None]:
    """The complete boxes by their beginnings, and where a box after all of them begins that has no
    end."""
    boxes: list[Box] = []
    if "box" not in text:
        return boxes, None
    opened: list[tuple[int, int] | None] = []  # a box and its content, None for another brace
    for brace in _BRACE.finditer(text):
        if brace["bare"]:
            boxes.append(Box(brace.start(), brace["bare"], brace.end()))
        elif brace["box"]:
            opened.append((brace.start(), brace.end()))
        elif brace.group() == "{":
            opened.append(None)
        elif opened and (box := opened.pop()) is not None:
            boxes.append(Box(box[0], text[box[1] : brace.start()], brace.end()))
    boxes.sort()
    last = max((box.end for box in boxes), default=0)
    cut = next((box[1] for box in reversed(opened) if box is not None), None)
    return boxes, cut if cut is not None and cut > last else None
