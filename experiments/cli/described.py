"""What the docstring of a dataclass says of each of its fields, for pages of help."""

from __future__ import annotations

import inspect
import re
import textwrap
from dataclasses import MISSING, fields
from typing import Any, get_args, get_type_hints

HEAD = re.compile(r"(?:^|(?<=\. )|(?<=\) ))(\w+(?:, \w+)*): ")
"""What begins the description of a field, or of several."""


def described(kind: Any) -> dict[str, str]:
    """What follows `name: ` or `name, other: `, up to the next such words or a blank line."""
    words: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        for paragraph in inspect.cleandoc(base.__doc__ or "").split("\n\n"):
            _, *found = HEAD.split(" ".join(paragraph.split()))
            for names, text in zip(found[::2], found[1::2], strict=True):
                words |= dict.fromkeys(names.split(", "), text.strip().removesuffix("."))
    return words


def help_lines(group: str, kind: Any, width: int = 120) -> str:
    """A line for each field: how it is set, what it means and, in brackets, its default."""
    words, hints = described(kind), get_type_hints(kind)
    lines = []
    for f in fields(kind):
        types = {hints[f.name], *get_args(hints[f.name])}
        value = "N" if int in types else "X" if float in types else f.name.upper()
        default = f"({f.default})".replace("\n", "\\n")
        if bool in types:
            value, default = "true", ""
        if f.default in (None, "", "???", MISSING):
            default = ""
        lines += textwrap.wrap(
            f"{words[f.name]} {default}",
            width,
            initial_indent=f"  {f'{group}.{f.name}={value}':<27} ",
            subsequent_indent=" " * 30,
            break_on_hyphens=False,
        )
    return "\n".join(lines)
