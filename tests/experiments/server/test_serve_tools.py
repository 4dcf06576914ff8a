"""The server and tools that its clients run: calls in replies, whole and streamed, and their
answers in what is sent back."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("openai")

from concurrent.futures import ThreadPoolExecutor

import openai

from tests.helpers.call_syntaxes import CALLS
from tests.helpers.calling import WEATHER as LOOKING
from tests.helpers.calling import caller
from tests.helpers.chat_server import served, serving
from tests.helpers.parts import installed
from tests.helpers.thinking import thinker
from ttc import BeamGroups, BlockCache, Engine
from ttc.branch import Branch

TEMPLATE = (
    "{% if tools %}<turn>tools\n{{ tools | tojson }}<eos>{% endif %}"
    "{% for m in messages %}<turn>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    '<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "</tool_call>{% endfor %}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
)
OWN = thinker(TEMPLATE)
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
GO: list[Any] = [{"role": "user", "content": "Rome?"}]


def call(city: str) -> str:
    return f'<tool_call>{{"name": "weather", "arguments": {{"city": "{city}"}}}}</tool_call>'


def asked(client: openai.OpenAI, **options: Any) -> Any:
    given: Any = {"model": "m", "messages": GO, "max_tokens": 200, "tools": [WEATHER]} | options
    return client.chat.completions.create(**given)


def test_a_call_comes_back_and_its_answer_is_taken() -> None:
    prompts = list[str]()

    def says(branch: Branch) -> str:
        prompts.append(OWN.decode(branch.tokens[: branch.prompt_length]))
        return "Wet." if "<turn>tool\n" in prompts[-1] else f"Let me look. {call('Rome')}"

    with served(says, OWN) as client:
        choice = asked(client).choices[0]
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me look. ")
        (made,) = choice.message.tool_calls
        assert made.function.name == "weather"
        assert json.loads(made.function.arguments) == {"city": "Rome"}
        answer = {"role": "tool", "tool_call_id": made.id, "content": "rain"}
        choice = asked(client, messages=[*GO, choice.message, answer]).choices[0]
        assert (choice.finish_reason, choice.message.content) == ("stop", "Wet.")
        assert choice.message.tool_calls is None
    assert prompts[1] == OWN.apply_chat_template(
        [
            GO[0],
            {
                "role": "assistant",
                "content": "Let me look. ",
                "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Rome"}}}],
            },
            {"role": "tool", "content": "rain"},
        ],
        tools=[WEATHER],
        add_generation_prompt=True,
        tokenize=False,
    )


@pytest.mark.parametrize("said", ["Let me look. ", ""])
def test_a_streamed_call_is_a_delta_of_its_own(said: str) -> None:
    with served([said + call("Rome")], OWN) as client:
        text, calls, reasons = "", list[Any](), list[str]()
        for chunk in asked(client, stream=True):
            delta = chunk.choices[0].delta
            text += delta.content or ""
            calls += delta.tool_calls or []
            reasons += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
    assert (text, reasons) == (said, ["tool_calls"])
    assert [json.loads(made.function.arguments) for made in calls] == [{"city": "Rome"}]


def test_what_only_looks_like_a_call_is_text() -> None:
    """Also where no tools are offered, or none is to be called."""
    says = [""]
    with served(says, OWN) as client:
        for said, options in [
            ("2 <tool_c", {}),
            (call("Rome"), {"tools": []}),
            (call("Rome"), {"tool_choice": "none"}),
            (call("Rome").replace("weather", "time"), {}),
        ]:
            says[0] = said
            choice = asked(client, **options).choices[0]
            assert (choice.message.content, choice.finish_reason) == (said, "stop")
            chunks = list(asked(client, stream=True, **options))
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == said


def test_two_calls_are_one_where_the_client_wants_them_one_by_one() -> None:
    with served([call("Rome") + call("Oslo")], OWN) as client:
        assert len(asked(client).choices[0].message.tool_calls) == 2
        one = asked(client, parallel_tool_calls=False).choices[0].message.tool_calls
        assert [json.loads(made.function.arguments)["city"] for made in one] == ["Rome"]


def test_samples_vote_on_what_to_call() -> None:
    says = [call("Rome"), call("Oslo"), call("Oslo")]
    with served(says, OWN) as client:
        search = {"name": "self_consistency", "tool_vote": "tool_hierarchical"}
        message = asked(client, extra_body={"search": search}).choices[0].message
    assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Oslo"}


@pytest.mark.few(1)
@pytest.mark.parametrize("opens", [True, False])
@pytest.mark.parametrize("syntax", CALLS)
def test_replies_are_the_same_whole_streamed_and_beside_others(syntax: str, opens: bool) -> None:
    """Of a model that writes calls as its template does, whatever serves it."""
    own, model = caller(syntax, opens)

    def reply(client: openai.OpenAI, seed: int, stream: bool) -> Any:
        given: Any = {"seed": seed, "max_tokens": 60, "tools": [LOOKING]}
        if not stream:
            choice = asked(client, **given).choices[0]
            made = choice.message.tool_calls or []
            said, reason = choice.message.content or "", choice.finish_reason
        else:
            chunks = [chunk.choices[0] for chunk in asked(client, stream=True, **given)]
            made = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
            said = "".join(chunk.delta.content or "" for chunk in chunks)
            reason = next(chunk.finish_reason for chunk in chunks if chunk.finish_reason)
        return said, [(call.function.name, call.function.arguments) for call in made], reason

    with serving(Engine(model, own)) as client:
        alone = [reply(client, seed, False) for seed in range(4)]
    assert any(calls for _, calls, _ in alone)
    parts: list[Any] = [{"memory": BeamGroups(block_tokens=16), "cache": BlockCache(1)}]
    parts += [{"speculation": lookup()} for lookup in installed("speculation", "prompt_lookup")]
    for part in parts:
        engine = Engine(caller(syntax, opens)[1], own, **part)
        with serving(engine) as client, ThreadPoolExecutor(8) as threads:
            replies = list(threads.map(reply, [client] * 8, [*range(4)] * 2, [False, True] * 4))
        assert replies == alone * 2
