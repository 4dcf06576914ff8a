"""Refusing arguments of a wrong type by their names."""

from __future__ import annotations

import inspect
from dataclasses import fields
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from ttc.errors import InvalidInput

PLAIN = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "True or False",
    NoneType: "None",
}
"""Types whose values are checked, and what they are called in a message."""

NUMBERS: dict[type, type] = {int: Integral, float: Real}
"""What counts as a number of these types, NumPy's too."""


def is_number(value: Any, kind: type = Real) -> bool:
    """Whether a value is a number of a kind. True and False are none, though Python counts them."""
    return isinstance(value, kind) and not isinstance(value, bool)


def check_kind(name: str, value: Any, fits: bool, right: str) -> None:
    """Raise InvalidInput for a class, and for a value that does not fit; `right` says what
    would."""
    if inspect.isclass(value):
        raise InvalidInput(
            f"{name}={value.__name__} is a class; give an object, as {value.__name__}()"
        )
    if not fits:
        raise InvalidInput(f"{name}={value!r:.80} is of type {type(value).__name__}; give {right}")


def check_is(name: str, value: Any, kind: Any, right: str) -> None:
    """Raise InvalidInput for a value that is no instance of `kind`; `right` says what would be."""
    check_kind(name, value, isinstance(value, kind), right)


def check_flag(name: str, value: Any) -> None:
    """Raise InvalidInput for what is neither True nor False."""
    check_is(name, value, bool, PLAIN[bool])


def check_whole(name: str, value: Any, least: int | None = None) -> int:
    """The number. Raises InvalidInput for no whole number, and for one below `least`."""
    check_kind(name, value, is_number(value, Integral), PLAIN[int])
    if least is not None and value < least:
        raise InvalidInput(f"{name}={value} must be at least {least}")
    return int(value)


def check_one_each(count: int, things: str, given: int, others: str, none: str = "") -> None:
    """Raise InvalidInput unless as many others were given as there are things. none: what stands
    for none of them."""
    if given != count:
        raise InvalidInput(
            f"{things}: {count}, {others}: {given}; give one each{none and ', '}{none}"
        )


def check_positive(settings: Any, prefix: str, *names: str) -> None:
    """Raise InvalidInput for a limit among these fields that is not above 0; None is no limit."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not value > 0:
            raise InvalidInput(f"{prefix}{name}={value} must be positive, or null for no limit")


def check_fields(settings: Any, prefix: str = "") -> None:
    """Raise InvalidInput for a field of a dataclass that does not hold its declared plain type.
    prefix: stands before a field's name in the message."""
    kind: Any = type(settings)
    for name, types in _plain_fields(kind):
        value = getattr(settings, name)
        fits = any(_holds(value, plain) for plain in types)
        check_kind(prefix + name, value, fits, " or ".join(PLAIN[plain] for plain in types))


def _holds(value: Any, plain: type) -> bool:
    if plain in NUMBERS:
        return is_number(value, NUMBERS[plain])
    return isinstance(value, plain)


@cache
def _plain_fields(kind: type) -> list[tuple[str, tuple[type, ...]]]:
    hints = get_type_hints(kind)
    declared = {f.name: _alternatives(hints[f.name]) for f in fields(kind) if f.init}
    return [(name, types) for name, types in declared.items() if set(types) <= PLAIN.keys()]


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
