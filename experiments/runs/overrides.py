"""The settings of a command line, one word each, as Hydra reads them and as it is given them."""

from __future__ import annotations

import re
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.errors import HydraException


def read(word: str) -> Override | None:
    """The override that a word stands for; None for an option, and for what Hydra refuses."""
    if "=" not in word or word.startswith("-"):
        return None
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException:
        return None


def values(override: Override) -> list[Any]:
    """The value of an override, or the listed ones of a sweep; none of another sweep."""
    if not override.is_sweep_override():
        return [override.value()]
    if not isinstance(override.value(), ChoiceSweep):
        return []
    parser = OverridesParser.create()
    listed = override.sweep_string_iterator()
    return [parser.parse_override(f"{override.key_or_group}={text}").value() for text in listed]


def as_override(value: Any) -> str:
    """A value as Hydra reads it on a command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # only backslashes before a quote, or at the end, count twice
        escaped = re.sub(r"(?<!\\)(\\*+)'", r"\1\1\\'", value)
        return "'" + re.sub(r"(?<!\\)(\\++)$", r"\1\1", escaped) + "'"
    if isinstance(value, list):
        return "[" + ",".join(map(as_override, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{as_override(item)}" for key, item in value.items()) + "}"
    return str(value)
