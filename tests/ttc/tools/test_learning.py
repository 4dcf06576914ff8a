"""Formats of calls that are learned from chat templates: what a template writes is read back."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search import Greedy, solve
from tests.helpers.call_syntaxes import ASKING, CALLS, EACH, STRIPPED
from tests.helpers.chats import tokenizer
from tests.helpers.thinking import Thinking
from tests.helpers.tiers import examples
from tests.helpers.tools import tool
from ttc import InvalidInput, Tool
from ttc.text.chat import chat_text, common_start
from ttc.text.prompt import PromptTemplate
from ttc.tools.base import Tools
from ttc.tools.chat import ToolChat

KINDS = {
    "city": "string",
    "days": "integer",
    "share": "number",
    "now": "boolean",
    "names": "array",
    "more": "object",
}


def a_tool(name: str) -> Tool:
    properties = {key: {"type": kind, "description": key} for key, kind in KINDS.items()}
    parameters = {"type": "object", "properties": properties, "required": []}
    function = {"name": name, "description": name, "parameters": parameters}
    return Tool({"type": "function", "function": function}, lambda **values: "sunny")


TOOLS = Tools([a_tool("get_weather"), a_tool("files.read-all")])


def chat_of(name: str) -> tuple[ToolChat, Any]:
    own = tokenizer((), "bytes", None, "<end>", template=ASKING.replace("CALLS", CALLS[name]))
    return ToolChat.of(TOOLS, PromptTemplate("{question}"), own), own


def written(
    chat: ToolChat, own: Any, calls: Sequence[tuple[str, Mapping[str, Any]]], said: str = ""
) -> str:
    """What the template writes of these calls in the model's turn."""
    as_text = chat.format.as_text
    asked = [
        {
            "type": "function",
            "id": f"call0000{place}",
            "function": {"name": name, "arguments": json.dumps(a) if as_text else dict(a)},
        }
        for place, (name, a) in enumerate(calls)
    ]
    user = {"role": "user", "content": "?"}
    told = {"role": "assistant", "content": said, "tool_calls": asked}
    text = chat_text([user, told], own, chat.template.options, begins_answer=False)
    prompt = chat_text([user], own, chat.template.options)
    return text.removeprefix(common_start(text, prompt))


def read(chat: ToolChat, text: str) -> list[tuple[str, Mapping[str, Any]]]:
    calls = chat.calls(text)
    assert not any(call.error for call in calls), calls
    return [(call.name, call.arguments) for call in calls]


NESTED = {"days": -3, "share": 2.5, "now": True, "names": ["a", "b, c"], "more": {"k": [1, None]}}
TEXTS = (
    "Rome",
    "",
    "3",
    "true",
    'He said "hi"',
    "it's\ntwo lines",
    "a < b & c > d",
    "Zürich, 東京",
    "{'x': [1]}",
    "what does </tool_call> mean",
    "f(x)=1, g(y)",
)


@pytest.mark.parametrize("name", CALLS)
def test_what_a_template_writes_is_read_back(name: str) -> None:
    chat, own = chat_of(name)
    lists = [[("get_weather", {"city": city})] for city in TEXTS]
    lists += [
        [("get_weather", NESTED | {"city": "Rome"})],
        [("get_weather", {"city": "Rome", "days": 3}), ("files.read-all", {"city": "Oslo"})],
        [("get_weather", {})],
        [("get_weather", {"now": False})],
    ]
    for calls in lists:
        if name.startswith("python"):
            calls = [(tool.replace("-", "_"), arguments) for tool, arguments in calls]
        for said in ("", "I look it up. <b>"):
            text = written(chat, own, calls, said)
            assert read(chat, text) == calls
            assert chat.calls(text)[0].start <= text.index(calls[0][0])
            assert text[: chat.calls(text)[0].start].strip() == said.strip()


@settings(max_examples=examples(100))
@given(
    name=st.sampled_from(sorted(CALLS)),
    city=st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=30),
    days=st.integers(-(10**9), 10**9),
)
def test_any_text_comes_back(name: str, city: str, days: int) -> None:
    chat, own = chat_of(name)
    if name in STRIPPED:
        city = city.strip()
    calls = [("get_weather", {"city": city, "days": days})]
    if not any(mark in city for mark in ("<q>", "CDATA")):
        assert read(chat, written(chat, own, calls)) == calls


@pytest.mark.parametrize("end", ["<end>", ""])
@pytest.mark.parametrize("name", CALLS)
def test_where_calls_begin_and_end_is_seen_whatever_closes_them(name: str, end: str) -> None:
    """So that a call in an open thought is one, and a limit of thoughts lets it end."""
    asking = ASKING.replace("CALLS<end>", "CALLS" + end)
    template = asking.replace("CALLS", CALLS[name])
    own = tokenizer((), "bytes", None, "<end>", template=template)
    chat = ToolChat.of(TOOLS, PromptTemplate("{question}"), own)
    calls: list[tuple[str, Mapping[str, Any]]] = [("get_weather", {"city": "Rome", "days": 3})]
    for asked in (calls, calls * 2):
        text = written(chat, own, asked, "I look: ").removesuffix("\n").removesuffix(end)
        form = chat.format
        for ended in (text, f"{text}<end>", f"{text}\n<end>"):
            assert form.ends_with_call(ended), ended
        assert not form.ends_with_call(f"{text} or not?<end>")
        assert not form.in_call(f"{text}\nor not?") and not form.in_call("I look: ")
        first = len("I look: ") + len(text.partition("I look: ")[2].partition("get_")[0])
        for cut in range(first, len(text) + 1):
            assert form.in_call(text[:cut]), text[:cut]


@pytest.mark.parametrize("name", ["an id before the name", "a section with ids", "json"])
def test_a_call_begins_with_its_own_mark_where_the_first_one_was_only_thought(name: str) -> None:
    chat, own = chat_of(name)
    calls: list[tuple[str, Mapping[str, Any]]] = [("get_weather", {"city": "Rome"})]
    both = written(chat, own, calls * 2)
    second = both[both.rindex(chat.format.begins[-1]) :]
    (call,) = chat.calls(f"So. {second}")
    assert call.start == len("So. ") and call.arguments == {"city": "Rome"}


@pytest.mark.parametrize("name", CALLS)
def test_answers_are_told_back_as_the_template_tells_them(name: str) -> None:
    """The branch's tokens are those of the whole chat."""
    chat, own = chat_of(name)
    call = ("get_weather", {"city": "Rome", "days": 3})
    said = written(chat, own, [call]).rpartition("<end>")[0]
    backend = Thinking(lambda branch: "Dry." if branch.tool_calls else said, own)
    result = solve(
        Greedy(max_tokens=400),
        problem="?",
        engine=backend,
        tools=TOOLS,
        template=PromptTemplate("{question}"),
        extract=lambda text: text,
        thinking_marks=False,
    )
    (branch,) = result.branches
    question = chat_text([{"role": "user", "content": "?"}], own, chat.template.options)
    told = f"{question}{said}<end>\n<result>sunny<end>\n<model>\nDry.<end>"
    assert own.decode(branch.tokens) == told
    assert branch.tool_calls[0].arguments == call[1] and result.answer == "Dry."


CALL = '{"name": "get_weather", "arguments": {"city": "Rome"}}'
PAIR = "<arg_key>city</arg_key><arg_value>Rome</arg_value>"
ELEMENT = "<function=get_weather><parameter=city>Rome</parameter></function>"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("keys and values", f"<tool_call>get_weather{PAIR}</tool_call>"),
        ("json", f"<tool_call>\n```json\n{CALL}\n```\n</tool_call>"),
        ("json", f'<tool_call>{{"type": "function", "function": {CALL}}}</tool_call>'),
        ("json", f"With `<tool_call>`: <tool_call>{CALL}"),
        ("json", "<tool_call>" + CALL.replace('{"city": "Rome"}', r'"{\"city\": \"Rome\"}"')),
        ("elements", f"<tool_call>{ELEMENT}</tool_call>"),
        ("elements", f"I look it up.\n{ELEMENT}\n</tool_call>"),
        ("elements", ELEMENT),
    ],
)
def test_a_call_is_read_also_where_its_model_writes_it_a_little_otherwise(
    name: str, text: str
) -> None:
    """Without the template's blanks or first mark, in a fence, or wrapped as OpenAI's API has
    it."""
    chat, _ = chat_of(name)
    assert read(chat, text) == [("get_weather", {"city": "Rome"})]


@pytest.mark.parametrize(
    "text",
    [
        "The tag `<tool_call>` begins a call, and `</tool_call>` ends it.",
        "A <tool_call> tag begins a call; here none is needed, and the answer is 4.",
        "Calls stand between <tool_call> and </tool_call>.",
        "I could write a <tool_call>, but I know it.",
    ],
)
def test_a_mark_that_is_only_spoken_of_is_no_call(text: str) -> None:
    chat, _ = chat_of("json")
    assert chat.calls(text) == [] and not chat.format.in_call(text)
    after = text + '\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}'
    assert read(chat, after) == [("get_weather", {"city": "Rome"})]


def test_a_call_that_cannot_be_read_is_told_to_the_model() -> None:
    for name, text in [
        ("json", '<tool_call>\n{"name": </tool_call>'),
        ("json", "<tool_call>\nget_weather(city=1)</tool_call>"),
        ("elements", "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome"),
        ("a name, then json", "[CALL]get_weather[ID]1[ARGS]Rome"),
        ("bare keys", "<|call>call:get_weather{city:<q>Rome}"),
        ("python", "<|call_start|>[get_weather('Rome')]<|call_end|>"),
        ("python", "<|call_start|>get_weather<|call_end|>"),
    ]:
        chat, _ = chat_of(name)
        (call,) = chat.calls(text)
        assert call.error, name


def test_types_follow_the_schema() -> None:
    chat, _ = chat_of("json")
    texts = {"city": "3", "days": "3", "share": "2.5", "now": "True", "names": '["a"]'}
    text = json.dumps({"name": "get_weather", "arguments": texts})
    (call,) = chat.calls(f"<tool_call>{text}</tool_call>")
    expected = {"city": "3", "days": 3, "share": 2.5, "now": True, "names": ["a"]}
    assert call.arguments == expected
    either = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    optional = tool(lambda days: days, "f", days="string")
    optional.schema["function"]["parameters"]["properties"]["days"] = either
    assert optional.typed({"days": "3"}) == {"days": 3}
    assert optional.typed({"days": "null"}) == {"days": None}
    assert optional.typed({"days": "soon"}) == {"days": "soon"}
    for schema, text, value in [
        ({"enum": [1, 2]}, "2", 2),
        ({"enum": [0.5, 1]}, "0.5", 0.5),
        ({"enum": ["1", "2"]}, "2", "2"),
        ({"enum": ["a", None]}, "null", None),
        ({"const": True}, "true", True),
        ({"type": ["string", "null"]}, "None", None),
        ({"type": ["string", "null"]}, "Rome", "Rome"),
        ({"type": "object"}, '{"a": [1]}', {"a": [1]}),
        ({}, "3", "3"),
    ]:
        optional.schema["function"]["parameters"]["properties"]["days"] = schema
        assert optional.typed({"days": text}) == {"days": value}, schema


KEYS_AND_VALUES = (
    EACH
    + "<fn>{{ f.name }} [{% for k, v in f.arguments.items() %}"
    + '{"key": {{ k | tojson }}, "value": {{ v | tojson }}}{% if not loop.last %}, {% endif %}'
    + "{% endfor %}]</fn>{% endfor %}"
)
PRINTED = (
    EACH
    + "<code>print({{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}={{ v | tojson }}"
    + "{% if not loop.last %}, {% endif %}{% endfor %}))</code>{% endfor %}"
)
NAMED = (
    EACH
    + "<{{ f.name }}>{% for k, v in f.arguments.items() %}<{{ k }}>{{ v }}</{{ k }}>{% endfor %}"
    + "</{{ f.name }}>{% endfor %}"
)
LINES = (
    EACH
    + "@@call {{ f.name }}\n{% for k, v in f.arguments.items() %}{{ loop.index }} {{ k }}\n"
    + "{{ v }}\n{% endfor %}@@end\n{% endfor %}"
)
"""Calls that no reader here reads as they are written."""


def test_a_template_that_tells_of_tools_and_shows_no_call_is_refused() -> None:
    """By name, with the way out, before anything is run."""
    for calls, reason in [
        ("", "does not show how the model calls them"),
        ("{# <|tool_calls_begin|> #}", r"its marks are <\|tool_calls_begin\|>; name the format"),
        ("{% if m.tool_calls %}{{ raise_exception('not today') }}{% endif %}", "not today"),
        (PRINTED, r"not known: <code>print\(FUNCTION"),
        (NAMED, r"not known: <FUNCTION><ARGUMENT1>VALUE1"),
        (KEYS_AND_VALUES, r"not known: <fn>FUNCTION \[.*; name the format"),
        (LINES + "{# <tool_call> #}", "not known: @@call FUNCTION\n1 ARGUMENT1\nVALUE1"),
    ]:
        own = tokenizer((), "bytes", None, "<end>", template=ASKING.replace("CALLS", calls))
        with pytest.raises(InvalidInput, match=reason):
            ToolChat.of(TOOLS, PromptTemplate("{question}"), own)
        named = Tools(TOOLS.tools, format="hermes")
        assert ToolChat.of(named, PromptTemplate("{question}"), own).format.begins


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("List of tools: [", "<|tool_call_start|>[get_weather(city='Rome')]<|tool_call_end|>"),
        ("<|tool_call|>", '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Rome"}}]'),
        ("<tool_call>", '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}'),
        ("<|python_tag|>", '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Rome"}}'),
    ],
)
def test_formats_that_no_template_shows_are_known_by_a_sign(words: str, text: str) -> None:
    template = words + ASKING.replace("CALLS", "")
    own = tokenizer((), "bytes", None, "<end>", template=template)
    chat = ToolChat.of(TOOLS, PromptTemplate("{question}"), own)
    assert read(chat, f"Look. {text}") == [("get_weather", {"city": "Rome"})]


def test_a_template_without_tools_is_told_in_its_own_syntax() -> None:
    """What a system message says of calls is how the template writes them."""
    silent = ASKING.partition("{% endif %}")[2].replace("CALLS", CALLS["elements"])
    silent = silent.replace(
        "{% elif m.role == 'tool' %}",
        "{% elif m.role == 'system' %}<sys>{{ m.content }}</sys>{% elif m.role == 'tool' %}",
    )
    own = tokenizer((), "bytes", None, "<end>", template=silent)
    chat = ToolChat.of(TOOLS, PromptTemplate("{question}"), own)
    prompt = chat.template.text("?", own)
    assert "<tool_call>\n<function=FUNCTION>\n<parameter=ARGUMENT1>\nVALUE1" in prompt
    assert '"name": "get_weather"' in prompt


def test_a_template_that_writes_nothing_without_tools_is_served() -> None:
    """As those that Hermes 2 and 3 and Command R+ have for tools."""
    needs = ASKING.replace("{% if tools %}<sys>", "<sys>").replace("</sys>{% endif %}", "</sys>")
    own = tokenizer((), "bytes", None, "<end>", template=needs.replace("CALLS", CALLS["json"]))
    with pytest.raises(InvalidInput):
        PromptTemplate("{question}").text("?", own)
    chat = ToolChat.of(TOOLS, PromptTemplate("{question}"), own)
    calls = [("get_weather", {"city": "Rome"})]
    assert read(chat, written(chat, own, calls)) == calls


def test_several_calls_are_answered_where_the_template_writes_one() -> None:
    one = "{% if m.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}"
    template = ASKING.replace("CALLS", one + CALLS["json"])
    own = tokenizer((), "bytes", None, "<end>", template=template)
    chat = ToolChat.of(TOOLS, PromptTemplate("{question}"), own)
    calls = chat.calls('<tool_call>{"name": "get_weather"}</tool_call>' * 2)
    after = chat.after(calls, ["wet", "dry"], "<end>")
    assert after == "\n<result>wet<end>\n<result>dry<end>\n<model>\n"


FOLDER = os.environ.get("TTC_CHAT_TEMPLATES", "")


BLUNT = (
    "{% macro kind(s) %}{% if s.type == 'object' %}map of {{ kind(s.additionalProperties) }}"
    "{% elif s.type is string %}{{ {'string': 'str'}.get(s.type) + '' if s.type == 'string' else "
    "raise_exception('the type ' + s.type) if s.type == 'null' else s.type }}"
    "{% else %}{% for t in s.type %}{{ kind({'type': t}) }}{% endfor %}{% endif %}{% endmacro %}"
    "{% for t in tools or [] %}{% set f = t.function %}"
    "{{ f.name + ': ' + f.description + f.parameters.required | tojson }}"
    "{% for k, v in f.parameters.properties | items %}{{ k + ' ' + v.description + kind(v) }}"
    "{% endfor %}{% endfor %}"
)
"""Reads a tool's schema without asking what it holds, as Command R+, Seed-OSS and Hermes 2 do."""
SPARSE = {
    "name alone": {},
    "no parameters": {"description": "Looks up."},
    "null": {"description": None, "parameters": None},
    "no properties": {"parameters": {"type": "object"}},
    "null in parameters": {"parameters": {"type": "object", "properties": None, "required": None}},
    "a type alone": {"parameters": {"properties": {"city": {"type": "string"}}}},
    "a null": {"parameters": {"properties": {"a": {"type": "string", "description": None}}}},
    "any object": {"parameters": {"properties": {"more": {"type": "object"}}}},
    "a type or null": {"parameters": {"properties": {"city": {"type": ["string", "null"]}}}},
}


def told(template: str, about: Mapping[str, Any]) -> PromptTemplate:
    function = {"name": "look_up", **about}
    tools = Tools([Tool({"type": "function", "function": function})])
    own = tokenizer((), "bytes", "", "", template=template + ASKING.replace("CALLS", CALLS["json"]))
    chat = ToolChat.of(tools, PromptTemplate("{question}"), own)
    assert "look_up" in chat.template.text("?", own)
    return chat.template


@pytest.mark.parametrize("about", SPARSE.values(), ids=SPARSE)
def test_what_a_schema_leaves_out_is_told_to_templates_that_do_not_ask(about: Any) -> None:
    (completed,) = told(BLUNT, about).options["tools"]
    assert completed["function"]["parameters"]["required"] == []
    (given,) = told("", about).options["tools"]  # nothing is added where it is not needed
    assert given["function"] == {"name": "look_up", **about}


def test_a_tool_that_a_template_cannot_tell_of_is_named() -> None:
    nothing = {"parameters": {"properties": {"b": {"type": "null"}}}}
    with pytest.raises(
        InvalidInput, match=r"cannot tell .* of look_up \(the type null\); give each"
    ):
        told(BLUNT, nothing)


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER, reason="TTC_CHAT_TEMPLATES names no folder of chat templates")
def test_published_templates_are_served_or_refused_by_name() -> None:
    served, refused = list[str](), list[str]()
    for file in sorted(Path(FOLDER).glob("*.jinja")):
        own = tokenizer((), "bytes", "<s>", "</s>", template=file.read_text())
        calls = [("get_weather", {"city": 'say "hi", <b>it\'s</b>\nso', "days": 3})]
        try:
            chat = ToolChat.of(TOOLS, PromptTemplate("{question}"), own)
            text = written(chat, own, calls)
        except InvalidInput as error:
            refused.append(f"{file.stem}: {error}")
            continue
        if "get_weather" in text:  # else it writes no calls, and its format is known by a sign
            assert read(chat, text) == calls, file.stem
            served.append(file.stem)
    print(f"{len(served)} served, {len(refused)} refused:", *refused, sep="\n")
    assert len(served) > 4 * len(refused)
