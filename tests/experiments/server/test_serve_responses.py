"""/v1/responses, by OpenAI's own client and by its wire format."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import httpx2
import openai
import pytest

from tests.helpers.chat_server import served
from tests.helpers.own_server import Running
from tests.helpers.thinking import OPENING, thinker

R1 = thinker(OPENING, plain=("<think>", "</think>"))


def events_of(found: Running, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, each under its own name."""
    reply = httpx2.post(
        f"{found.url}/v1/responses", json={"model": "tiny", "stream": True} | body, timeout=60
    )
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in reply.text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


@pytest.mark.parametrize("model", ["tiny", "tiny+best_of_n"])
@pytest.mark.parametrize(
    "given",
    [
        "12 + 3",
        [{"role": "user", "content": "12 + 3"}],
        [
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "12 + 3"}],
            }
        ],
    ],
    ids=["text", "messages", "parts"],
)
def test_a_response_is_the_answer_of_the_chat(shared: Running, model: str, given: Any) -> None:
    more: dict[str, Any] = {"seed": 4}
    chat = shared.chat("12 + 3", model, max_tokens=10, extra_body=more)
    reply = shared.client().responses.create(
        model=model, input=given, instructions="be kind", max_output_tokens=10, extra_body=more
    )
    assert reply.output_text == chat.choices[0].message.content
    assert reply.usage is not None
    assert reply.usage.input_tokens == chat.usage.prompt_tokens
    assert reply.usage.output_tokens == chat.usage.completion_tokens
    assert reply.usage.total_tokens == chat.usage.total_tokens
    assert reply.model_extra is not None
    assert reply.model_extra["search"] == chat.model_extra["search"]
    cut = chat.choices[0].finish_reason == "length"
    assert reply.status == ("incomplete" if cut else "completed")
    assert (reply.incomplete_details is not None) == cut


def test_a_stream_has_the_events_of_the_api_numbered_in_order(shared: Running) -> None:
    ask: dict[str, Any] = {"input": "go", "max_output_tokens": 12, "seed": 3}
    whole = shared.posted("responses", **ask)
    events = events_of(shared, **ask)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    first = kinds.index("output_text.delta")
    last = len(kinds) - kinds[::-1].index("output_text.delta")
    assert kinds[:first] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert set(kinds[first:last]) == {"output_text.delta"} and last - first > 3
    ended = ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert kinds[last:] == ended
    text = "".join(event["delta"] for event in events[first:last])
    response = events[-1]["response"]
    assert text == events[last]["text"] == whole["output"][0]["content"][0]["text"]
    assert response["output"][0] == events[last + 2]["item"]
    assert response["usage"] == whole["usage"] and response["status"] == "incomplete"
    assert {e["response"]["id"] for e in events if "response" in e} == {response["id"]}
    items = {event["item_id"] for event in events if "item_id" in event}
    assert items == {response["output"][0]["id"]}


def test_openais_stream_helper_reads_it(shared: Running) -> None:
    for seed in count():  # until an answer has an end of its own
        ask: Any = {"model": "tiny", "input": "go", "extra_body": {"seed": seed}}
        whole = shared.client().responses.create(**ask)
        if whole.status == "completed":
            break
    with shared.client().responses.stream(**ask) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == whole.output_text and final.usage == whole.usage


def test_the_stream_of_a_search_tells_its_progress(shared: Running) -> None:
    events = events_of(shared, model="tiny+beam_search", input="go", seed=1)
    told = [event["progress"]["did"] for event in events if "progress" in event]
    assert {"expanded", "rated"} <= set(told)
    whole = shared.posted("responses", model="tiny+beam_search", input="go", seed=1)
    assert events[-1]["response"]["search"] == whole["search"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_log_probabilities_are_told_where_they_are_asked_for(shared: Running) -> None:
    ask: dict[str, Any] = {"input": "go", "max_output_tokens": 9, "seed": 1, "top_logprobs": 2}
    ask["include"] = ["message.output_text.logprobs"]
    chat = shared.client().chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "go"}],
        max_tokens=9,
        seed=1,
        logprobs=True,
        top_logprobs=2,
    )
    assert chat.choices[0].logprobs is not None
    expected = [token.to_dict() for token in chat.choices[0].logprobs.content or []]
    whole = shared.posted("responses", **ask)
    assert whole["output"][0]["content"][0]["logprobs"] == expected
    events = events_of(shared, **ask)
    response = events[-1]["response"]
    assert response["output"][0]["content"][0]["logprobs"] == expected
    told = [t for e in events if e["type"].endswith("text.delta") for t in e["logprobs"]]
    assert told == expected[: len(told)]


def test_a_thought_is_an_item_of_its_own() -> None:
    with served(["Is it 12?\n</think>\n\nThe answer is 18."], R1) as client:
        whole = client.responses.create(model="m", input="go", max_output_tokens=90)
        thought, answer = whole.output
        assert thought.type == "reasoning" and thought.content is not None
        assert thought.content[0].text == "Is it 12?\n"
        assert answer.type == "message" and whole.output_text == "\n\nThe answer is 18."
        events = list(client.responses.create(model="m", input="go", stream=True))
        thoughts = [e.delta for e in events if e.type == "response.reasoning_text.delta"]
        words = [e.delta for e in events if e.type == "response.output_text.delta"]
        assert "".join(thoughts) == "Is it 12?\n" and "".join(words) == "\n\nThe answer is 18."
        ended = events[-1]
        assert ended.type == "response.completed"
        assert [item.type for item in ended.response.output] == ["reasoning", "message"]
        # sent back as it came
        again: Any = [{"role": "user", "content": "go"}, *whole.output]
        again.append({"role": "user", "content": "and?"})
        assert client.responses.create(model="m", input=again).output_text == whole.output_text


def test_a_response_that_fails_ends_with_that(shared: Running) -> None:
    client = shared.client()
    events = list(client.responses.create(model="tiny+broken", input="break", stream=True))
    assert events[-1].type == "response.failed" and events[-1].response.status == "failed"
    assert events[-1].response.error is not None
    with pytest.raises(openai.InternalServerError, match="a mistake in the search"):
        client.responses.create(model="tiny+broken", input="break")
