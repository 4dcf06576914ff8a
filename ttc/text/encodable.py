"""Half of a surrogate pair, which can stand in a Python string and in JSON, but is no character: no
tokenizer, file or terminal takes it.

One rule, where text comes in: what a user gives is refused by name, and what others have written
(a tool, a server, an older record) gets U+FFFD in its place, as bytes do that are no UTF-8.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

from ttc.errors import InvalidInput

T = TypeVar("T")


def lone_surrogate(text: str) -> int | None:
    """The place of the first half of a pair, None in text that can be encoded."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return error.start
    return None


def check_encodable(text: str, what: str) -> None:
    """Raise InvalidInput for text of a user that holds half of a pair."""
    place = lone_surrogate(text)
    if place is not None:
        raise InvalidInput(
            f"{what} holds {text[place]!a} at character {place}, half of a pair that stands for "
            "one sign (a lone surrogate); the text was cut or decoded wrongly, so make it again"
        )


def encodable(value: T) -> T:
    """A value as JSON has them, U+FFFD for each half of a pair in its texts and names."""
    changed: Any = value
    if isinstance(value, str):
        if lone_surrogate(value) is not None:
            # two halves that belong together become their sign
            changed = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    elif isinstance(value, dict):
        changed = {encodable(name): encodable(inner) for name, inner in value.items()}
    elif isinstance(value, list):
        changed = [encodable(inner) for inner in value]
    return cast(T, changed)
