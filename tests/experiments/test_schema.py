"""Classes of the folders of choices, whatever they are made of: settings of Hydra's, or refused by
name, so that who has written one knows which it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hydra.core.config_store import ConfigStore

from experiments.runs import schema
from ttc import InvalidInput


class Calls:
    def __init__(self, judge=len):  # type: ignore[no-untyped-def]
        pass

    def rate(self, *given: Any) -> list[list[float]]:
        return []


@dataclass
class Unhinted:
    when: Nowhere = 3  # type: ignore[name-defined]  # noqa: F821


@dataclass
class Anything:
    of: object = len


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, type], None]]:
    """Makes a class the choice `odd` of a group, as one of its folder is."""

    def register(group: str, kind: type) -> None:
        monkeypatch.setitem(schema.GROUPS, group, schema.Group({"odd": kind}, None))
        schema.register.__wrapped__()  # each process does so once

    yield register
    for group in schema.GROUPS:
        for name in ("odd.yaml", "odd_schema.yaml"):
            ConfigStore.instance().repo.get(group, {}).pop(name, None)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Calls, "Value 'builtin_function_or_method' is not a supported primitive type"),
        (Unhinted, "name 'Nowhere' is not defined"),
        (Anything, "Unexpected type annotation: object"),
    ],
)
def test_a_class_whose_settings_cannot_be_read_is_named(
    kind: type, why: str, registered: Callable[[str, type], None]
) -> None:
    with pytest.raises(InvalidInput) as error:
        registered("verifier", kind)
    assert str(error.value) == (
        f"{__name__}.{kind.__name__} has a setting that cannot be read: {why}; give it a plain "
        "hint and default"
    )
