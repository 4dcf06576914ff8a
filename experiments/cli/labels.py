"""What rows are called: the values of the settings that tell them apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.cli.tables import as_typed
from ttc.errors import InvalidInput, number_of

KINDS = ("_target_", "name")
"""Settings that say what their group is, as `search._target_` and `model.name`."""
LONGEST_VALUE = 24

LabelSettings = Mapping[str, Any]


def telling_settings(rows: Sequence[LabelSettings]) -> list[str]:
    """The dotted keys that tell rows apart, those that name a class or a model first.

    Where two rows have another class in a group, the class tells them apart, and not its settings.
    """
    telling = [key for key in {key for row in rows for key in row} if _tells(key, rows)]
    return sorted(telling, key=lambda key: (not _names(key), key))


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Each dotted key's last part, where no other key ends alike."""
    last = {key: _group(key) if _is_kind(key) else key.rpartition(".")[2] for key in keys}
    repeated = [name for name in last.values() if list(last.values()).count(name) > 1]
    return {key: key if name in repeated else name for key, name in last.items()}


def short_value(key: str, value: Any) -> str:
    """A value in few characters: of a class or a path its last part."""
    text = "none" if value is None else str(value)
    if key.endswith("_target_"):
        text = text.rpartition(".")[2]
    elif _names(key):
        text = text.rstrip("/").rpartition("/")[2]
    text = str(as_typed(text))
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 3] + "..."


def labels(rows: Sequence[LabelSettings]) -> list[str]:
    """A label for each row, as `BestOfN n=4`. Rows that are all alike have none."""
    keys = telling_settings(rows)
    return [label(row, keys) for row in rows]


def label(row: LabelSettings, keys: Sequence[str]) -> str:
    parts = []
    for key, name in short_keys(keys).items():
        if key in row:
            value = short_value(key, row[key])
            bare = _names(key) and row[key] is not None
            parts.append(value if bare else f"{name}={value}")
    return " ".join(parts)


def checked_labels(names: Sequence[str], defaults: Sequence[str]) -> list[str]:
    """The labels that were typed for rows, one for each of those that were made.

    Raises InvalidInput where they do not fit the rows.
    """
    if len(names) != len(defaults) or len(set(names)) != len(names) or not all(names):
        raise InvalidInput(
            f"--labels={','.join(names)} has {number_of(len(names), 'label')} for "
            f"{number_of(len(defaults), 'row')}; give each row one of its own, in this order:\n"
            + "\n".join(f"  {name}" for name in defaults)
        )
    return list(names)


def typed_settings(overrides: Sequence[str]) -> dict[str, str]:
    """What was typed for a job, by its key: `search=greedy` and `+search.n=4` are groups and
    settings alike."""
    parts = (override.lstrip("+~").partition("=") for override in overrides)
    return {key.replace("/", "."): value for key, _, value in parts}


def _tells(key: str, rows: Sequence[LabelSettings]) -> bool:
    """Whether rows that are of one kind in all groups around a key differ in it."""
    values: dict[str, set[str]] = {}
    for row in rows:
        kind = repr([row.get(name) for name in _kinds_around(key)])
        values.setdefault(kind, set()).add(repr(row[key]) if key in row else "")
    return any(len(different) > 1 for different in values.values())


def _kinds_around(key: str) -> Iterator[str]:
    group = _group(_group(key) if _is_kind(key) else key)
    while group:
        yield group
        yield from (f"{group}.{kind}" for kind in KINDS)
        group = _group(group)


def _group(key: str) -> str:
    return key.rpartition(".")[0]


def _is_kind(key: str) -> bool:
    return key.rpartition(".")[2] in KINDS


def _names(key: str) -> bool:
    """Whether a value is understood without its key: it names a class or a model, or is a group's
    choice."""
    return _is_kind(key) or "." not in key
