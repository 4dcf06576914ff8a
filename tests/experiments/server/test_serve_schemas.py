"""Answers by a schema from the server: whole and streamed, by searches, beside other requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from pydantic import BaseModel, Field

from tests.helpers.chat_server import serving
from tests.helpers.engines import bytes_engine
from tests.helpers.schemas import PERSON
from tests.helpers.thinking import OPENING, TURNS, thinker

GO: list[Any] = [{"role": "user", "content": "Who?"}]
BY_SCHEMA = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with serving(bytes_engine(thinker(TURNS))) as client:
        yield client


def asked(client: openai.OpenAI, **options: Any) -> Any:
    given: Any = {"model": "m", "messages": GO, "max_tokens": 150, "seed": 7} | options
    return client.chat.completions.create(**given)


def check(text: str) -> None:
    person = json.loads(text)
    assert list(person) == ["name", "age", "tags"] and 0 <= person["age"] <= 99


def test_answers_keep_to_the_schema_whole_and_streamed(client: openai.OpenAI) -> None:
    reply = asked(client, response_format=BY_SCHEMA, n=4)
    texts = [choice.message.content for choice in reply.choices if choice.finish_reason == "stop"]
    assert len(texts) > 1
    for text in texts:
        check(text)
    whole = asked(client, response_format=BY_SCHEMA)
    stream = asked(client, response_format=BY_SCHEMA, stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content


def test_json_object_is_any_object_and_text_is_any_text(client: openai.OpenAI) -> None:
    schema = {"type": "json_object"}
    reply = asked(client, response_format=schema, n=6, max_tokens=190)
    ended = [c.message.content for c in reply.choices if c.finish_reason == "stop"]
    assert all(isinstance(json.loads(text), dict) for text in ended)
    assert all(choice.message.content.startswith("{") for choice in reply.choices)
    free = asked(client, response_format={"type": "text"}).choices[0].message.content
    assert free == asked(client).choices[0].message.content and not free.startswith("{")


def test_searches_and_completions_take_it_too(client: openai.OpenAI) -> None:
    reply: Any = asked(
        client, model="m+self_consistency", response_format=BY_SCHEMA, max_tokens=150
    )
    check(reply.choices[0].message.content)
    assert json.loads(reply.search["answer"]) == json.loads(reply.choices[0].message.content)
    texts = client.completions.create(
        model="m",
        prompt="Who?",
        max_tokens=150,
        n=3,
        extra_body={"response_format": BY_SCHEMA},
    )
    for choice in texts.choices:
        if choice.finish_reason == "stop":
            check(choice.text)


def test_requests_at_once_each_keep_to_their_own(client: openai.OpenAI) -> None:
    formats: list[Any] = [
        BY_SCHEMA,
        None,
        {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["yes", "no"]}}},
        {"type": "json_object"},
    ] * 3
    options = [{} if given is None else {"response_format": given} for given in formats]
    alone = [asked(client, **given).choices[0].message.content for given in options[:4]]
    with ThreadPoolExecutor(12) as pool:
        replies = list(pool.map(lambda given: asked(client, **given), options))
    assert [reply.choices[0].message.content for reply in replies] == alone * 3
    assert alone[2] in ('"yes"', '"no"')


def test_parse_gives_an_object(client: openai.OpenAI) -> None:
    class Point(BaseModel):
        x: int = Field(ge=0, le=9)
        label: str = Field(max_length=3)

    reply = client.chat.completions.parse(
        model="m", messages=GO, response_format=Point, max_tokens=190, seed=3
    )
    point = reply.choices[0].message.parsed
    assert isinstance(point, Point) and 0 <= point.x <= 9


def test_a_thought_is_free_and_the_answer_is_json() -> None:
    with serving(bytes_engine(thinker(OPENING, special=("<think>", "</think>")))) as client:
        reply = asked(
            client,
            response_format=BY_SCHEMA,
            max_tokens=190,
            extra_body={"thinking_token_budget": 9},
        )
        (choice,) = reply.choices
        assert choice.message.reasoning_content and choice.finish_reason == "stop"
        check(choice.message.content)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"stop": ["}"]}, "stop=('}',) and a schema", "stop"),
    (
        {"response_format": {"type": "json_schema"}},
        "give json_schema with type=json_schema",
        "response_format",
    ),
    ({"response_format": {"type": "yaml"}}, "response_format.type='yaml'", "response_format.type"),
    (
        {"response_format": {"type": "json_object", "json_schema": {"name": "x"}}},
        "with no other",
        "response_format",
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"not": {}}},
            }
        },
        'cannot be kept to: failed to compile JSON schema: Unimplemented keys: ["not"]',
        "response_format",
    ),
    (
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        "and a schema or grammar: such an answer ends where it is complete",
        "tools",
    ),
]


@pytest.mark.parametrize(("options", "message", "param"), REFUSED)
def test_what_is_not_offered_is_refused_by_name(
    client: openai.OpenAI, options: dict[str, Any], message: str, param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        asked(client, **{"response_format": BY_SCHEMA} | options)
    assert message in str(refused.value) and refused.value.param == param


def test_responses_keep_to_a_schema_too(client: openai.OpenAI) -> None:
    form: Any = {"format": {"type": "json_schema", "name": "person", "schema": PERSON}}
    for seed in range(20):  # until an answer comes to its end
        given: Any = {"model": "m", "input": "Who?", "text": form, "extra_body": {"seed": seed}}
        whole = client.responses.create(**given, max_output_tokens=190)
        if whole.status == "completed":
            break
    check(whole.output_text)
    events = list(client.responses.create(**given, max_output_tokens=190, stream=True))
    words = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(words) == whole.output_text
