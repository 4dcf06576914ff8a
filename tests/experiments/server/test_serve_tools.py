"""The server and tools that its clients run: calls in replies, whole and streamed, and their
answers in what is sent back."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import Any

import openai
import pytest

from tests.helpers.call_syntaxes import CALLS
from tests.helpers.calling import WEATHER as LOOKING
from tests.helpers.calling import caller
from tests.helpers.chat_server import served, serving
from tests.helpers.parts import installed
from tests.helpers.thinking import thinker
from ttc import BeamGroups, BlockCache, Engine, Tool
from ttc.branch import Branch
from ttc.text.chat import chat_text
from ttc.text.prompt import PromptTemplate
from ttc.tools.base import Tools
from ttc.tools.chat import ToolChat

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
NAMED: Any = {"type": "function", "function": {"name": "weather"}}
TIME: Any = {"type": "function", "function": {"name": "time"}}
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
        calls, text, reason = calls_of(client, True)
    assert (text, reason, cities(calls)) == (said, "tool_calls", ["Rome"])


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
            for stream in (False, True):
                assert calls_of(client, stream, **options) == ([], said, "stop")


def calls_of(client: openai.OpenAI, stream: bool, **options: Any) -> tuple[Any, str, str]:
    """Of a chat's reply: its calls, its text, and why it ended."""
    reply = asked(client, stream=stream, **options)
    if not stream:
        message, reason = reply.choices[0].message, reply.choices[0].finish_reason
        return message.tool_calls or [], message.content or "", reason
    choices = [chunk.choices[0] for chunk in reply if chunk.choices]
    text = "".join(choice.delta.content or "" for choice in choices)
    made = [call for choice in choices for call in choice.delta.tool_calls or []]
    return made, text, choices[-1].finish_reason


def cities(calls: Any) -> list[str]:
    return [json.loads(made.function.arguments)["city"] for made in calls]


@pytest.mark.parametrize("stream", [False, True])
def test_a_turn_ends_with_its_first_call_where_the_client_wants_them_one_by_one(
    stream: bool,
) -> None:
    with served([f"So: {call('Rome')}{call('Oslo')}"] * 3, OWN) as client:
        both, text, reason = calls_of(client, stream)
        assert (cities(both), text, reason) == (["Rome", "Oslo"], "So: ", "tool_calls")
        one, text, reason = calls_of(client, stream, parallel_tool_calls=False)
        assert (cities(one), text, reason) == (["Rome"], "So: ", "tool_calls")
        reply = asked(client, parallel_tool_calls=False, n=2)
        assert [cities(choice.message.tool_calls) for choice in reply.choices] == [["Rome"]] * 2
        vote = {"search": {"name": "self_consistency", "tool_vote": "tool_args"}}
        voted = asked(client, parallel_tool_calls=False, extra_body=vote)
        assert voted.search["answer"] == 'weather({"city": "Rome"})'
        tool: Any = {"type": "function", "name": "weather", "parameters": CITY}
        response = client.responses.create(
            model="m", input="Rome?", tools=[tool], parallel_tool_calls=False
        )
        assert [item.type for item in response.output] == ["message", "function_call"]
        assert response.parallel_tool_calls is False


def test_calls_that_the_server_answers_are_not_its_clients() -> None:
    """Fields about tools also count for those that the server has."""

    def says(branch: Branch) -> str:
        begun = OWN.decode(branch.generated)
        if branch.tool_calls:
            return "Wet."
        return ' {"city": "Rome"}}</tool_call>' if begun else call("Rome") + call("Oslo")

    asked_for = list[str]()
    own = Tools([Tool(WEATHER, lambda city: asked_for.append(city) or "rain")])
    fields: list[tuple[Any, list[str]]] = [
        ({}, ["Rome", "Oslo"]),
        ({"tool_choice": "none"}, []),
        ({"tool_choice": NAMED}, ["Rome"]),
        ({"parallel_tool_calls": False}, ["Rome"]),
    ]
    with served(says, OWN, tools=own) as client:
        for more, expected in fields:
            asked_for.clear()
            choice = asked(client, tools=[], **more).choices[0]
            none = more.get("tool_choice") == "none"
            words = call("Rome") + call("Oslo") if none else "Wet."
            assert (choice.finish_reason, choice.message.content) == ("stop", words)
            assert choice.message.tool_calls is None and sorted(asked_for) == sorted(expected)


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_must_be_made_is_begun_for_the_model(choice: Any, stream: bool) -> None:
    """By the words that the chat template writes before its name, or before its arguments."""
    begun = list[str]()

    def says(branch: Branch) -> str:
        begun.append(OWN.decode(branch.generated))
        rest = '{"city": "Rome"}}</tool_call>'
        return f" {rest}" if choice is NAMED else f'weather", "arguments": {rest}'

    with served(says, OWN) as client:
        calls, text, reason = calls_of(client, stream, tool_choice=choice, tools=[WEATHER, TIME])
    opening = '<tool_call>{"name": "' + ('weather", "arguments":' if choice is NAMED else "")
    assert begun == [opening] and (text, reason) == ("", "tool_calls")
    assert ([made.function.name for made in calls], cities(calls)) == (["weather"], ["Rome"])


def test_calls_of_others_than_the_named_tool_are_none() -> None:
    other = '<tool_call>{"name": "time", "arguments": {}}</tool_call>'
    rest = f' {{"city": "Rome"}}}}</tool_call>{other}{call("Oslo")}'
    with served(lambda branch: rest, OWN) as client:
        calls, _, _ = calls_of(client, False, tool_choice=NAMED, tools=[WEATHER, TIME])
    assert cities(calls) == ["Rome", "Oslo"]


@pytest.mark.few(3)
@pytest.mark.parametrize("opens", [True, False])
@pytest.mark.parametrize("syntax", CALLS)
def test_a_call_that_must_be_made_begins_as_the_template_writes_it(
    syntax: str, opens: bool
) -> None:
    """Thoughts are left out, also where the prompt has opened one."""
    own, _ = caller(syntax, opens)
    wanted = {"city": "Rome", "days": 3}
    function = {"name": "weather", "arguments": wanted}
    chat = ToolChat.of(Tools([LOOKING], choice="weather"), PromptTemplate("{question}"), own)
    if chat.format.as_text:
        function["arguments"] = json.dumps(wanted)
    called = {"type": "function", "id": "call00000", "function": function}
    told: list[Any] = [*GO, {"role": "assistant", "content": "", "tool_calls": [called]}]
    whole = chat_text(told, own, {"tools": [LOOKING]}, begins_answer=False)
    assert whole.count(chat.opening) == 1 and len(chat.opening) > 3
    rest = whole.partition(chat.opening)[2].removesuffix("\n").removesuffix(str(own.eos_token))
    with served(lambda branch: rest, own) as client:
        for choice in ("required", NAMED):
            reply = asked(client, tools=[LOOKING], tool_choice=choice).choices[0]
            (made,) = reply.message.tool_calls
            assert json.loads(made.function.arguments) == wanted
            thought = (reply.message.model_extra or {}).get("reasoning_content")
            assert reply.finish_reason == "tool_calls" and not thought
        with pytest.raises(openai.BadRequestError, match="begins each answer with a call"):
            asked(client, tools=[LOOKING], tool_choice=choice, reasoning_effort="high")


def test_a_call_that_was_cut_off_is_text_with_its_length_as_the_reason() -> None:
    said = ' {"city": "Rome and all that lies around it'
    with served(lambda branch: said, OWN) as client:
        choice = asked(client, tool_choice=NAMED, max_tokens=8).choices[0]
    assert choice.finish_reason == "length" and choice.message.tool_calls is None
    assert choice.message.content.startswith('<tool_call>{"name": "weather", "arguments":')


def test_samples_vote_on_what_to_call() -> None:
    says = [call("Rome"), call("Oslo"), call("Oslo")]
    with served(says, OWN) as client:
        search = {"name": "self_consistency", "tool_vote": "tool_hierarchical"}
        message = asked(client, extra_body={"search": search}).choices[0].message
    assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Oslo"}


@pytest.mark.few(1)
@pytest.mark.parametrize(("syntax", "opens"), zip(CALLS, cycle([True, False])))
def test_replies_are_the_same_whole_streamed_and_beside_others(syntax: str, opens: bool) -> None:
    """Of a model that writes calls as its template does, whatever serves it."""
    own, model = caller(syntax, opens)

    def reply(client: openai.OpenAI, seed: int, stream: bool) -> Any:
        given: Any = {"seed": seed, "max_tokens": 60, "tools": [LOOKING]}
        calls, text, reason = calls_of(client, stream, **given)
        return text, [(made.function.name, made.function.arguments) for made in calls], reason

    with serving(Engine(model, own)) as client:
        alone = [reply(client, seed, False) for seed in range(4)]
    assert any(calls for _, calls, _ in alone)
    parts: dict[str, Any] = {"memory": BeamGroups(block_tokens=16), "cache": BlockCache(1)}
    for lookup in installed("speculation", "prompt_lookup"):
        parts["speculation"] = lookup()
    engine = Engine(caller(syntax, opens)[1], own, **parts)
    with serving(engine) as client, ThreadPoolExecutor(8) as threads:
        streamed = [False, True] * 2 + [True, False] * 2
        replies = list(threads.map(reply, [client] * 8, [*range(4)] * 2, streamed))
    assert replies == alone * 2


def test_responses_call_tools_too() -> None:
    seen = list[str]()
    tool: Any = {"type": "function", "name": "weather", "parameters": CITY}

    def says(branch: Any) -> str:
        seen.append(OWN.decode(branch.tokens[: branch.prompt_length]))
        return "Wet." if "rain" in seen[-1] else f"Let me look. {call('Rome')}"

    with served(says, OWN) as client:
        ask: Any = {"model": "m", "input": "Rome?", "tools": [tool]}
        whole = client.responses.create(**ask)
        message, made = whole.output
        assert message.type == "message" and whole.output_text == "Let me look. "
        assert made.type == "function_call" and json.loads(made.arguments) == {"city": "Rome"}
        events = list(client.responses.create(**ask, stream=True))
        done = [e for e in events if e.type == "response.function_call_arguments.done"]
        assert [json.loads(e.arguments) for e in done] == [{"city": "Rome"}]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        answer: Any = {"type": "function_call_output", "call_id": made.call_id, "output": "rain"}
        later: Any = [{"role": "user", "content": "Rome?"}, *whole.output, answer]
        reply = client.responses.create(model="m", input=later, tools=[tool])
        assert reply.output_text == "Wet." and "Let me look. <tool_call>" in seen[-1]
