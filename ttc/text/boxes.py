"""What stands in the `\\boxed{...}` of a text."""

from __future__ import annotations

import re
from collections.abc import Iterator

_BRACE = re.compile(
    r"(?P<box>\\f?boxed\s*+\{|\\fbox\s*+\{)"
    r"|\\f?boxed\s*+(?P<bare>-?\d++(?:\.\d++)?+)"
    r"|[{}]"
)


def boxed(text: str) -> str | None:
    """The content of the last complete `\\boxed{...}` or `\\fbox{...}`, braces nested, or the
    number right after a `\\boxed` without braces.

    An empty box is passed over, as math-verify does: "" where no other is complete, None where none
    is. Every brace counts, escaped ones too, as in lm-evaluation-harness's
    `last_boxed_only_string`. Linear in the text.
    """
    content = None
    for start, end in sorted(_boxes(text), reverse=True):
        content = text[start:end]
        if content.strip():
            return content
    return None if content is None else ""


def _boxes(text: str) -> Iterator[tuple[int, int]]:
    # where a box's content begins, None for a brace of something else
    opened: list[int | None] = []
    for brace in _BRACE.finditer(text):
        if brace["bare"]:
            yield brace.span("bare")
        elif brace["box"]:
            opened.append(brace.end())
        elif brace.group() == "{":
            opened.append(None)
        elif opened and (start := opened.pop()) is not None:
            yield start, brace.start()
