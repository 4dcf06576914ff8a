"""docs/serving.md lists the fields that requests may have, and no others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from pydantic import AfterValidator
from pydantic.fields import FieldInfo

from experiments.server.requests import ChatBody, CompletionBody, Only
from experiments.server.responses_request import ResponsesBody

PAGE = (Path(__file__).parents[3] / "docs" / "serving.md").read_text()
FIELDS: dict[str, list[FieldInfo]] = {}
for kind in (CompletionBody, ChatBody, ResponsesBody):
    for name, field in kind.model_fields.items():
        FIELDS.setdefault(name, []).append(field)


def asks_for_nothing(field: FieldInfo) -> list[Any]:
    """The value with which alone a field is taken, as JSON; [] for other fields."""
    given = [part.func for part in field.metadata if isinstance(part, AfterValidator)]
    return [json.dumps(rule.value) for rule in given if isinstance(rule, Only)]


def test_the_table_has_every_field_that_does_something() -> None:
    table = PAGE.partition("| field | meaning |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.strip().splitlines()[1:]]
    told = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert len(told) == len(set(told))
    served = {name for name, of in FIELDS.items() if not any(map(asks_for_nothing, of))}
    assert set(told) == served - {"logit_bias"}


def test_the_list_has_every_field_that_is_taken_with_one_value_and_that_value() -> None:
    listed = PAGE.partition("asks for nothing, and else refused:")[2].partition("\n\n")[0]
    told = dict(re.findall(r"`(\w+): ([^`]+)`", listed))
    assert told.pop("logit_bias") == "{}"
    values = {name: asks_for_nothing(of[-1]) for name, of in FIELDS.items()}
    expected = {name: value for name, (value,) in ((n, v) for n, v in values.items() if v)}
    assert told == expected
    (of_completions, of_chats) = map(asks_for_nothing, FIELDS["add_special_tokens"])
    assert (of_completions, of_chats) == (["true"], ["false"])
