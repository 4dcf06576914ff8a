"""Values of Python as JSON, between the process that asks and one in the sandbox."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

PLAIN = (type(None), bool, int, float, str)

DEEPEST = 200
"""How deep lists, dictionaries and the like may lie in each other."""

LONG_BITS = 10_000
"""Longer integers are sent in hexadecimal: Python reads at most 4,300 decimal digits."""

SAME_HASH = 1000
"""Parts of a set, or keys, that may have one hash: n of them take n**2 comparisons."""


def encoded(value: Any, depth: int = 0) -> Any:
    """A value of Python's own types as JSON holds it; of a subclass as what it inherits from.
    Raises TypeError for anything else."""
    if depth > DEEPEST:
        raise TypeError(f"a value that is nested more than {DEEPEST} deep cannot be compared")
    if type(value) in PLAIN:
        is_long = type(value) is int and value.bit_length() > LONG_BITS
        return {"int": hex(value)} if is_long else value
    if isinstance(value, list):
        return [encoded(part, depth + 1) for part in value]
    if isinstance(value, dict):
        pairs = value.items()
        return {"dict": [[encoded(k, depth + 1), encoded(part, depth + 1)] for k, part in pairs]}
    for kind, parts_of in PARTS.items():
        if isinstance(value, kind):
            return {kind.__name__: [encoded(part, depth + 1) for part in parts_of(value)]}
    if isinstance(value, bytes | bytearray):
        return {"bytes": bytes(value).hex()}
    for plain in PLAIN[1:]:
        if isinstance(value, plain):
            return encoded(plain(value), depth + 1)
    if callable(item := getattr(value, "item", None)):  # a number of NumPy
        return encoded(item(), depth + 1)
    raise TypeError(f"a value of type {type(value).__name__} cannot be compared")


PARTS: dict[type, Callable[[Any], Iterable[Any]]] = {
    tuple: iter,
    set: iter,
    frozenset: iter,
    complex: lambda number: (number.real, number.imag),
    range: lambda numbers: (numbers.start, numbers.stop, numbers.step),
}
"""Types whose values are made again of these parts."""


def decoded(value: Any) -> Any:
    """What `encoded` was given. Raises ValueError for what it never returns."""
    try:
        return _decoded(value, 0)
    except (TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"it is no encoded value: {error}") from error


def _decoded(value: Any, depth: int) -> Any:
    if depth > DEEPEST:
        raise ValueError(f"it is nested more than {DEEPEST} deep")
    if isinstance(value, list):
        return [_decoded(part, depth + 1) for part in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1:
        raise ValueError(f"{value!r:.60} is no encoded value")
    ((kind, parts),) = value.items()
    if kind == "int":
        return int(parts, 16)
    if kind == "bytes":
        return bytes.fromhex(parts)
    if not isinstance(parts, list):
        raise ValueError(f"{value!r:.60} is no encoded value")
    if kind == "dict":
        pairs = [(_decoded(key, depth + 1), _decoded(part, depth + 1)) for key, part in parts]
        _check_hashes(key for key, _ in pairs)
        return dict(pairs)
    parts = [_decoded(part, depth + 1) for part in parts]
    if kind in ("set", "frozenset"):
        _check_hashes(parts)
    for type_ in PARTS:
        if kind == type_.__name__:
            return type_(parts) if PARTS[type_] is iter else type_(*parts)
    raise ValueError(f"{kind!r:.60} is no kind of value")


def _check_hashes(parts: Iterable[Any]) -> None:
    if max(Counter(map(hash, parts)).values(), default=0) > SAME_HASH:
        raise ValueError(f"more than {SAME_HASH} parts of a set or keys have the same hash")


def short_repr(value: Any, chars: int) -> str:
    """The beginning of a value as Python writes it."""
    try:
        return repr(value)[:chars]
    except ValueError:  # an integer in it has too many digits
        return f"a {type(value).__name__} with an integer of more than 4,300 digits"
