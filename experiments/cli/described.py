"""What the docstring of a dataclass says of each of its fields, for pages of help."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Mapping
from dataclasses import MISSING, fields
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

from ttc.checks import allowed, option_hints

HEAD = re.compile(r"(?:^|(?<=\. )|(?<=\) ))(\w+(?:, \w+)*): ")
"""What begins the description of a field, or of several."""


def described(kind: Any) -> dict[str, str]:
    """What follows `name: ` or `name, other: `, up to the next such words or a blank line."""
    words: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        for paragraph in inspect.cleandoc(base.__doc__ or "").split("\n\n"):
            _, *items = HEAD.split(" ".join(paragraph.split()))
            for names, text in zip(items[::2], items[1::2], strict=True):
                meaning = text.partition(". Raises ")[0].strip().removesuffix(".")
                words |= dict.fromkeys(names.split(", "), meaning)
    return words


def first_sentence(kind: type) -> str:
    """What the docstring begins with, without the full stop."""
    paragraph = " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.) (?!\d)", paragraph, maxsplit=1)[0].removesuffix(".")


def help_lines(
    group: str, kind: Any, defaults: Mapping[str, Any] = MappingProxyType({}), width: int = 120
) -> str:
    """A line for each field: how it is set, what it means and, in brackets, its default and its
    limit. defaults: others than those of the fields."""
    words, hints, limits = described(kind), get_type_hints(kind), option_hints(kind)
    lines = []
    for f in fields(kind):
        if not f.init:
            continue
        usual = defaults.get(f.name, f.default)
        types = {hints[f.name], *get_args(hints[f.name])}
        value = "N" if int in types else "X" if float in types else f.name.upper()
        default = f"{usual:g}" if isinstance(usual, float) else f"{usual}".replace("\n", "\\n")
        if bool in types:
            value, default = f"{usual is not True}".lower(), ""
        if usual in (None, "", "???", MISSING, ()) or isinstance(usual, list | dict):
            default = ""
        note = "; ".join(filter(None, (default, allowed(limits.get(f.name, Any)))))
        lines += textwrap.wrap(
            f"{words.get(f.name, '')} {note and f'({note})'}",
            width,
            initial_indent=f"  {f'{group}.{f.name}={value}':<27} ",
            subsequent_indent=" " * 30,
            break_on_hyphens=False,
        )
    return "\n".join(lines)
