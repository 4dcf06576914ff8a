"""Values of Python as JSON, between the process that asks and one in the sandbox."""

from typing import Any

PLAIN = (type(None), bool, int, float, str)


def encoded(value: Any) -> Any:
    """A value of Python's own types as what JSON can hold. Subclasses become what they inherit
    from. Raises TypeError for anything else."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, list):
        return [encoded(part) for part in value]
    if isinstance(value, dict):
        return {"dict": [[encoded(key), encoded(part)] for key, part in value.items()]}
    for kind in (tuple, set, frozenset):
        if isinstance(value, kind):
            return {kind.__name__: [encoded(part) for part in value]}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, bytes | bytearray):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, range):
        return [*value]
    for plain in PLAIN[1:]:
        if isinstance(value, plain):
            return plain(value)
    if callable(item := getattr(value, "item", None)):  # a number of NumPy
        return encoded(item())
    raise TypeError(f"a value of type {type(value).__name__} cannot be compared")


def decoded(value: Any) -> Any:
    """What `encoded` was given. Raises ValueError for what it never returns."""
    if isinstance(value, list):
        return [decoded(part) for part in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1:
        raise ValueError(f"{value!r:.60} is no encoded value")
    ((kind, parts),) = value.items()
    if kind == "dict":
        return {decoded(key): decoded(part) for key, part in parts}
    if kind == "complex":
        return complex(*parts)
    if kind == "bytes":
        return bytes.fromhex(parts)
    kinds: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}
    if kind not in kinds:
        raise ValueError(f"{kind!r:.60} is no kind of value")
    return kinds[kind](decoded(part) for part in parts)
