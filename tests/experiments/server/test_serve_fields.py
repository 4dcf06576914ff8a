"""The fields that requests may have: docs/serving.md lists them, and each is taken or refused by
name."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from experiments.server.refusal import Refusal
from experiments.server.requests import ChatBody, Common, CompletionBody, read
from experiments.server.responses_request import ResponsesBody

PAGE = (Path(__file__).parents[3] / "docs" / "serving.md").read_text()


def test_the_table_has_every_field_that_does_something() -> None:
    table = PAGE.partition("| field | meaning |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.strip().splitlines()[1:]]
    told = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert len(told) == len(set(told))
    fields = {name for kind in LEAST for name in kind.model_fields}
    assert set(told) == fields - {"previous_response_id"}


def test_the_list_has_every_field_that_is_taken_with_one_value_and_that_value() -> None:
    listed = PAGE.partition("asks for nothing, and else refused:")[2].partition("\n\n")[0]
    told = {name: json.loads(value) for name, value in re.findall(r"`(\w+): ([^`]+)`", listed)}
    assert told == ChatBody.nothing | {"previous_response_id": None}
    assert CompletionBody.nothing == ChatBody.nothing | {"add_special_tokens": True}


# ---------------------------------------------------------------- fields by themselves

LEAST: dict[type[Common], dict[str, Any]] = {
    ChatBody: {"model": "m", "messages": [{"role": "user", "content": "go"}]},
    CompletionBody: {"model": "m", "prompt": "go"},
    ResponsesBody: {"model": "m", "input": "go"},
}


def read_as(kind: type[Common], ignore_unknown: bool = False, **fields: Any) -> Common:
    return read(kind, json.dumps(LEAST[kind] | fields).encode(), ignore_unknown)


def refused(kind: type[Common], **fields: Any) -> Refusal:
    with pytest.raises(Refusal) as error:
        read_as(kind, **fields)
    return error.value


@pytest.mark.parametrize("kind", LEAST)
def test_what_asks_for_nothing_passes_at_each_path_and_what_asks_is_refused_by_name(
    kind: type[Common],
) -> None:
    for name, value in (kind.nothing | {"previous_response_id": None}).items():
        assert read_as(kind, **{name: value}) == read_as(kind, **{name: None}) == read_as(kind)
        for other in (["zebra"], not value if isinstance(value, int) else True):
            error = refused(kind, **{name: other})
            assert error.param == name and error.message.startswith(f"{name}=")


@pytest.mark.parametrize("kind", LEAST)
@pytest.mark.parametrize("name", ["message", "str", "function_call_output", "ChatBody", "zebra"])
def test_an_unknown_field_is_named_whatever_its_name(kind: type[Common], name: str) -> None:
    error = refused(kind, **{name: 1})
    assert error.param == name and error.message.startswith(f"{name} is not offered")
    assert read_as(kind, **{name: None})


@pytest.mark.parametrize(
    ("kind", "fields", "inside"),
    [
        (ChatBody, {"response_format": {"type": "text"}}, "response_format"),
        (ChatBody, {"stream_options": {"include_usage": True}}, "stream_options"),
        (ResponsesBody, {"reasoning": {"effort": "low"}}, "reasoning"),
        (ResponsesBody, {"text": {"format": {"type": "text"}}}, "text"),
    ],
)
def test_fields_within_fields_are_refused_or_passed_over_with_a_line_in_the_log(
    kind: type[Common], fields: dict[str, Any], inside: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ttc.serve")
    more = {inside: fields[inside] | {"zebra": 1}}
    assert refused(kind, **more).param == f"{inside}.zebra"
    assert read_as(kind, True, **more, yak=None) == read_as(kind, **fields)
    (line,) = caplog.messages
    assert "passed over" in line and "zebra" in line and "yak" not in line


def nulls(kind: type[Common]) -> list[dict[str, Any]]:
    """Requests with null in all places of a kind where clients may put it."""
    function = {"name": "f", "description": None, "parameters": None, "strict": None}
    if kind is ResponsesBody:
        return [
            {"text": {"format": None, "verbosity": None}},
            {"reasoning": {"effort": None, "summary": None}},
            {"tools": [{"type": "function", **function}], "tool_choice": None},
            {"input": [{"type": None, "role": "user", "content": "go", "id": None}]},
        ]
    every = [{"stream_options": {"include_usage": None}}, {"stop": None, "n": None}]
    named = {"name": None, "schema": {"enum": [None]}, "strict": None, "description": None}
    every += [
        {"response_format": {"type": "json_object", "json_schema": None}},
        {"response_format": {"type": "json_schema", "json_schema": named}},
    ]
    if kind is CompletionBody:
        return every
    return [
        *every,
        {"tools": [{"type": "function", "function": function}]},
        {"messages": [{"role": "user", "content": "go", "name": None, "tool_calls": None}]},
    ]


@pytest.mark.parametrize("kind", LEAST)
def test_null_is_as_good_as_nothing_wherever_it_stands(kind: type[Common]) -> None:
    def without(given: Any) -> Any:
        if isinstance(given, list):
            return list(map(without, given))
        if not isinstance(given, dict) or "enum" in given:
            return given
        return {name: without(value) for name, value in given.items() if value is not None}

    for fields in nulls(kind):
        assert read_as(kind, **fields) == read_as(kind, **without(fields))


def said(**fields: Any) -> dict[str, Any]:
    """A chat in which the assistant has said this."""
    user = {"role": "user", "content": "go"}
    return {"messages": [{"role": "assistant", "content": "x"} | fields, user]}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stop": ["a"] * 17}, "at most 16 items"),
        ({"stop": ["a", 5]}, "stop.1=5"),
        ({"stop": 5}, "valid string"),
        ({"stream_options": {"continuous_usage_stats": True}}, "not offered here"),
        ({"logit_bias": {"5": 1}}, "logit_bias={'5': 1}: not offered here"),
        (said(function_call={"name": "f"}), "messages.0.function_call={'name': 'f'}: not offered"),
        (said(audio={"id": "a"}), "messages.0.audio={'id': 'a'}: not offered"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"type": "object"}}},
            "json_schema holds no schema",
        ),
    ],
)
def test_a_refusal_says_what_is_wrong(fields: dict[str, Any], message: str) -> None:
    assert message in refused(ChatBody, **fields).message


REFUSAL = {"type": "refusal", "refusal": "No."}


def test_what_the_assistant_has_refused_are_its_words() -> None:
    words: list[tuple[Any, Any]] = [
        ({"content": [REFUSAL]}, [{"type": "text", "text": "No."}]),
        ({"content": None, "refusal": "No.", "function_call": None}, "No."),
        ({"content": "Yes.", "refusal": None, "audio": None}, "Yes."),
    ]
    for fields, content in words:
        body = read_as(ChatBody, **said(**fields))
        assert isinstance(body, ChatBody)
        assert body.messages[0].as_message() == {"role": "assistant", "content": content}
    before = {"type": "message", "role": "assistant", "content": [REFUSAL]}
    response = read_as(ResponsesBody, input=[before, {"role": "user", "content": "go"}])
    assert isinstance(response, ResponsesBody)
    assert response.as_chat().messages[0].content == "No."


def test_a_part_of_a_message_may_have_marks_for_caches() -> None:
    part = {"type": "text", "text": "go", "cache_control": {"type": "ephemeral"}}
    assert read_as(ChatBody, messages=[{"role": "user", "content": [part]}])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input": []}, "at least 1 item"),
        ({"input": [{"type": "item_reference"}]}, "input.0.type='item_reference' is not taken"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format={'type': 'json_schema'}: "),
        ({"top_logprobs": 2}, "top_logprobs=2 needs include=['message.output_text.logprobs']"),
    ],
)
def test_a_response_that_is_refused_says_what_is_wrong(
    fields: dict[str, Any], message: str
) -> None:
    assert message in refused(ResponsesBody, **fields).message
