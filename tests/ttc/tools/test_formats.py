"""Calls of tools in the formats of published models: read, answered, and told as transformers tells
them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from search import BeamSearch, Greedy, solve
from tests.helpers.chats import tokenizer
from tests.helpers.searches import Costly
from tests.helpers.thinking import Thinking
from tests.helpers.tools import tool
from ttc import CalculatorTools, Tool, ToolError
from ttc.text.prompt import PromptTemplate
from ttc.tools.base import Tools
from ttc.tools.choice import format_of
from ttc.tools.formats import HERMES, Calculator, Harmony, Llama, Marked

TOOL = tool(lambda city: f"rain in {city}", "weather", city="string")
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}


def said_of(city: str) -> str:
    """With signs that JSON writes in another way."""
    return f'"{city}":\n\train'


QWEN = (
    "{% if tools %}<|im_start|>system\n<tools>{% for t in tools %}\n{{ t | tojson }}{% endfor %}\n"
    "</tools><|im_end|>\n{% endif %}{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% elif m.tool_calls %}<|im_start|>assistant\n{% for c in m.tool_calls %}"
    "{% if not loop.first %}\n{% endif %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""What Qwen 2.5's and Qwen 3's templates write of tools."""

LLAMA = (
    "{% if tools %}<|start_header_id|>system<|end_header_id|>\n\nEnvironment: ipython"
    "{% for t in tools %}\n{{ t | tojson }}{% endfor %}<|eot_id|>{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>"
    "\n\n{{ m.content | tojson }}<|eot_id|>{% elif m.tool_calls %}"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
    '{"name": "{{ m.tool_calls[0].function.name }}", '
    '"parameters": {{ m.tool_calls[0].function.arguments | tojson }}}<|eot_id|>'
    "{% else %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}"
    "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}{# <|python_tag|> #}"
)
"""What Llama 3.1's template writes of tools."""

HARMONY = (
    "{% if tools %}<|start|>developer<|message|>{% for t in tools %}{{ t | tojson }}{% endfor %}"
    "<|end|>{% endif %}{% for m in messages %}{% if m.role == 'tool' %}"
    "<|start|>functions.{{ m.name }} to=assistant<|channel|>commentary<|message|>"
    "{{ m.content | tojson }}<|end|>{% elif m.tool_calls %}<|start|>assistant"
    "<|channel|>commentary to=functions.{{ m.tool_calls[0].function.name }} <|constrain|>json"
    "<|message|>{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
"""What gpt-oss' template writes of tools."""

MODELS: dict[str, tuple[str, tuple[str, ...], str, str]] = {
    "qwen": (
        QWEN,
        ("<|im_start|>",),
        "<|im_end|>",
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>',
    ),
    "llama": (
        LLAMA,
        ("<|start_header_id|>", "<|end_header_id|>"),
        "<|eot_id|>",
        '{"name": "weather", "parameters": {"city": "Rome"}}',
    ),
    "gpt_oss": (
        HARMONY,
        ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"),
        "<|call|>",
        '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Rome"}',
    ),
}
"""For each the template, special tokens, the end of a turn, and what it writes to call `TOOL`."""


@pytest.mark.parametrize("name", MODELS)
def test_a_branch_with_a_tools_answer_has_the_tokens_of_transformers(name: str) -> None:
    """Those of the whole chat: question, call, answer, and what the model says then."""
    template, special, eos, said = MODELS[name]
    own = tokenizer(special, "bytes", None, eos, template=template)
    backend = Thinking(lambda branch: "It rains." if branch.tool_calls else said, own)
    result = solve(
        Greedy(max_tokens=400),
        problem="How is it in Rome?",
        engine=backend,
        tools=[tool(said_of, "weather", city="string")],
        template=PromptTemplate("{question}"),
        extract=lambda text: text,
        thinking_marks=False,
    )
    (branch,) = result.branches
    assert not backend.live and branch.finish_reason == "eos"
    chat = [
        {"role": "user", "content": "How is it in Rome?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "name": "weather", "content": said_of("Rome")},
    ]
    whole = own.apply_chat_template(
        chat, tools=[TOOL.schema], add_generation_prompt=True, tokenize=False
    )
    assert own.decode(branch.tokens) == whole + "It rains." + eos
    assert branch.tokens == own.encode(whole + "It rains." + eos)
    assert result.answer == "It rains." and branch.tool_calls[0].answer == said_of("Rome")


def test_thoughts_before_and_after_a_call_stay_thoughts() -> None:
    """And a call that is only thought of is none."""
    template, _, eos, said = MODELS["qwen"]
    own = tokenizer(("<|im_start|>", "<think>", "</think>"), "bytes", None, eos, template=template)
    first = f"<think>I may say {said}</think>{said}"
    backend = Thinking(lambda branch: "<think>So</think>wet" if branch.tool_calls else first, own)
    search = Greedy(max_tokens=400)
    result = solve(search, problem="q", engine=backend, tools=[TOOL], extract=lambda text: text)
    (branch,) = result.branches
    assert result.usage.tool_calls == 1 and result.answer == "wet"
    assert "So" in branch.thought and "rain" not in branch.thought
    thought = f"I may say {said}</think>" + "So</think>"
    assert branch.thinking_tokens == len(own.encode(thought))


def test_a_call_that_ends_the_turn_in_an_open_thought_is_one() -> None:
    """As Qwen3.5 writes them; one that is followed by more thought is none."""
    template, _, eos, said = MODELS["qwen"]
    own = tokenizer(("<|im_start|>", "<think>", "</think>"), "bytes", None, eos, template=template)
    for first, calls in [(f"<think>I look: {said}", 1), (f"<think>{said}, or not?", 0)]:

        def says(branch: Any, first: str = first) -> str:
            return "<think>So</think>wet" if branch.tool_calls else first

        search = Greedy(max_tokens=400)
        result = solve(
            search, problem="q", engine=Thinking(says, own), tools=[TOOL], extract=lambda text: text
        )
        (branch,) = result.branches
        assert result.usage.tool_calls == calls
        assert branch.answer_text == ("wet" if calls else None)
        assert not calls or ("I look" in branch.thought and "Rome" not in branch.thought)


@pytest.mark.parametrize("part", [None, 5, "paragraph"])
def test_a_limit_of_thoughts_that_falls_into_a_call_lets_it_end(part: Any) -> None:
    template, _, eos, said = MODELS["qwen"]
    own = tokenizer(("<|im_start|>", "<think>", "</think>"), "bytes", None, eos, template=template)
    before = len(own.encode("I look: "))
    whole = before + len(own.encode(said))
    for limit in (before - 1, before + len("<tool_call>"), whole - 15, whole - 1, whole):

        def says(branch: Any) -> str:
            written = own.decode(branch.generated)
            thought = f"<think>I look: {said}"
            rest = thought.removeprefix(written) if thought.startswith(written) else said
            return "wet" if branch.tool_calls else rest

        backend = Thinking(says, own)
        search = BeamSearch(
            beam_size=1, beam_width=1, thinking_step=part, thinking_tokens=limit, step_tokens=90,
            max_steps=40,
        )  # fmt: skip
        result = solve(
            search, problem="q", engine=backend, tools=[TOOL], verifier=Costly(1),
            extract=lambda text: text,
        )  # fmt: skip
        (branch,) = result.branches
        assert result.usage.tool_calls == 1 and result.answer is not None
        assert result.answer.endswith("wet")
        if limit > before:
            assert "I look" in branch.thought and branch.thought_closed is None
            assert whole <= branch.thinking_tokens <= whole + 1
        else:  # the call is written in the answer
            assert branch.thinking_tokens == limit and branch.thought_closed == "limit"


def test_a_call_that_never_ends_takes_512_tokens_beyond_the_limit() -> None:
    template, _, eos, _ = MODELS["qwen"]
    own = tokenizer(("<|im_start|>", "<think>", "</think>"), "bytes", None, eos, template=template)
    endless = "<think><tool_call>" + "xy, " * 500
    for budget in ({}, {"max_generated_tokens": 100}):
        result = solve(
            Greedy(max_tokens=9, thinking_tokens=20),
            problem="q",
            engine=Thinking(lambda branch: endless if "Final" not in branch.text else "7", own),
            tools=[TOOL],
            **budget,
        )
        (branch,) = result.branches
        assert result.usage.tool_calls == 0 and result.usage.generated_tokens <= 600
        if budget:
            assert result.usage.generated_tokens <= 100
        else:
            assert branch.thinking_tokens == 20 + 512 and result.answer == "7"
            assert branch.thought_closed == "limit"


@pytest.mark.parametrize(
    ("form", "text", "open_"),
    [
        (HERMES, "<tool_call>a</tool_call>, and <tool_call>b", True),
        (Llama(), 'so \\frac{1}{2} {"name"', False),
        (Llama(), '<|python_tag|>{"name"', True),
        (Harmony(), "<|channel|>commentary to=functions.a <|message|>{", True),
        (Harmony(), "<|channel|>analysis<|message|>so", False),
        (Calculator(), "it is <<48/2", True),
    ],
)
def test_whether_a_text_ends_in_a_call(form: Any, text: str, open_: bool) -> None:
    assert form.in_call(text) is open_


def test_several_calls_of_one_turn_are_answered_together() -> None:
    template, special, eos, said = MODELS["qwen"]
    own = tokenizer(special, "bytes", None, eos, template=template)
    both = f"{said}\n{said.replace('Rome', 'Oslo')}"
    backend = Thinking(lambda branch: "ok" if branch.tool_calls else both, own)
    result = solve(Greedy(max_tokens=400), problem="q", engine=backend, tools=[TOOL])
    (branch,) = result.branches
    assert [call.answer for call in branch.tool_calls] == ["rain in Rome", "rain in Oslo"]
    assert branch.text.count("<tool_response>") == 2


@pytest.mark.parametrize("begins", ["{% if add_generation_prompt %}", "{% if true %}"])
@pytest.mark.parametrize("refuses", ["", "m.role == 'tool'", "m.tool_calls"])
def test_a_template_without_tools_is_told_of_them_in_a_system_message(
    begins: str, refuses: str
) -> None:
    """One that refuses calls or the role of a tool gets what it says as the user's words."""
    refusal = f"{{% if {refuses} %}}{{{{ raise_exception('no tools') }}}}{{% endif %}}"
    plain = (
        f"{{% for m in messages %}}{refusal if refuses else ''}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        f"{begins}<|im_start|>assistant\n{{% endif %}}"
    )
    _, special, eos, said = MODELS["qwen"]
    own = tokenizer(special, "bytes", None, eos, template=plain)
    backend = Thinking(lambda branch: "ok" if branch.tool_calls else said, own)
    result = solve(Greedy(max_tokens=400), problem="q", engine=backend, tools=[TOOL])
    text = own.decode(result.branches[0].tokens)
    assert text.startswith("<|im_start|>system\n# Tools") and json.dumps(TOOL.schema) in text
    told = "<|im_start|>tool\nrain in Rome<|im_end|>"
    if refuses:
        told = "<|im_start|>user\n<tool_response>\nrain in Rome\n</tool_response><|im_end|>"
    assert text.endswith(f"{said}<|im_end|>\n{told}\n<|im_start|>assistant\nok<|im_end|>")


# ---------------------------------------------------------------- reading calls


@pytest.mark.parametrize(
    ("form", "text", "calls"),
    [
        (HERMES, 'a <tool_call>{"name": "f", "arguments": {"x": 1}}', [("f", {"x": 1}, 2, "")]),
        (HERMES, '<tool_call>{"name": "f"}</tool_call>', [("f", {}, 0, "")]),
        (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}', [("f", {"x": 1}, 0, "")]),
        (HERMES, "<tool_call>[1]</tool_call>", [("", {}, 0, "JSON object with name")]),
        (HERMES, "<tool_call>{</tool_call>", [("", {}, 0, "cannot be read as JSON")]),
        (HERMES, '<tool_call>{"name": "f", "arguments": 3}', [("f", {}, 0, "a JSON object")]),
        (HERMES, '<tool_call>{"arguments": {}}', [("", {}, 0, "names no tool")]),
        (HERMES, "[" * 9000 + "<tool_call>" + "[" * 9000, [("", {}, 9000, "cannot be read")]),
        (Llama(), '{"name": "f", "parameters": {}}<|eot_id|>', [("f", {}, 0, "")]),
        (Llama(), '{"name": "f"}; {"name": "g"}', [("f", {}, 0, ""), ("g", {}, 0, "")]),
        (Llama(), '{"colour": "red"}', []),
        (Llama(), '{"name": "Rome", "population": 3}', []),
        (Llama(), '{"name": "f", "parameters": {}} {"name": "Rome", "people": 3}', []),
        (Llama(), '{"name": "f", "parameters": {}} 5', []),
        (Llama(), '{"type": "function", "name": "f"}', [("f", {}, 0, "")]),
        (Llama(), "It is warm.", []),
        (
            Llama(),
            "Look: <|python_tag|>print(1)<|eom_id|>",
            [("python", {"code": "print(1)"}, 6, "")],
        ),
        (
            Harmony(),
            " to=functions.f<|channel|>commentary json<|message|>{}<|call|>",
            [("f", {}, 0, "")],
        ),
        (Harmony(), "<|channel|>final<|message|>ok", []),
        (Calculator(), "so 2*3 = <<2*3=", [("calculator", {"expression": "2*3"}, 9, "")]),
        (Calculator(), "so 2*3 =", []),
        (Calculator(), "<<2*3=6>>6 and x =", []),
    ],
)
def test_calls_are_read(form: Any, text: str, calls: list[tuple[Any, ...]]) -> None:
    found = form.calls(text)
    assert [call[:3] for call in found] == [call[:3] for call in calls]
    for call, (*_, error) in zip(found, calls, strict=True):
        assert error in call.error and bool(error) == bool(call.error)


def test_a_format_is_read_off_the_tokenizer() -> None:
    for name, kind in [("qwen", Marked), ("llama", Llama), ("gpt_oss", Harmony)]:
        template, special, eos, _ = MODELS[name]
        own = tokenizer(special, "bytes", None, eos, template=template)
        assert isinstance(format_of(Tools([TOOL]), own, {}), kind)
    own.response_template = {
        "defaults": {"role": "assistant"},
        "fields": {
            "content": {},
            "tool_calls": {
                "open": "<call>",
                "close": "</call>",
                "content": "json",
                "repeats": True,
                "transform": {"type": "function", "function": "{content}"},
            },
        },
        "start_anchor": "<|start|>assistant",
    }
    form = format_of(Tools([TOOL]), own, {})
    (call,) = form.calls('hm <call>{"name": "weather", "arguments": {"city": "Rome"}}</call>')
    assert (call.name, call.arguments, call.error) == ("weather", {"city": "Rome"}, "")
    assert form.calls("hm") == []


# ---------------------------------------------------------------- the project's own tools


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("3*(4+5)", "27"),
        ("48/2", "24"),
        ("1/3", "0.3333333333"),
        ("$1,200 - 20%", "1199.8"),
        ("-7 // 2", "-4"),
        ("2 × 3 ÷ 4", "1.5"),
        ("9**9**9", None),
        ("1/0", None),
        ("x+1", None),
        ("", None),
        ("(" * 5000, None),
        ("9" * 400, None),
        ("1e300*1e300", None),
        ("True + 1", None),
    ],
)
def test_the_calculator_computes_arithmetic_and_nothing_else(
    expression: str, value: str | None
) -> None:
    (calculator,) = CalculatorTools().tools
    if value is None:
        with pytest.raises(ToolError):
            calculator.answer({"expression": expression})
    else:
        assert calculator.answer({"expression": expression}) == value


def test_wrong_types_are_told_to_the_model() -> None:
    adds = tool(lambda x, on: x, "add", x="integer", on="boolean")
    assert adds.answer({"x": 1, "on": True}) == "1"
    for arguments, words in [
        ({"x": "1", "on": True}, "x='1' must be of type integer"),
        ({"x": True, "on": True}, "x=True must be of type integer"),
        ({"x": 1, "on": 0}, "on=0 must be of type boolean"),
        ({"x": 1, "on": True, "y": 2}, "no argument y; add takes x, on"),
        ({"x": 1}, "on is missing"),
    ]:
        with pytest.raises(ToolError, match=words):
            adds.answer(arguments)


def test_values_that_a_schema_does_not_list_are_told_to_the_model() -> None:
    of: dict[str, Any] = {
        "unit": {"type": "string", "enum": ["C", "F"]},
        "level": {"enum": [1, "top"], "nullable": True},
        "kind": {"anyOf": [{"const": "a"}, {"enum": ["b"]}, {"type": "null"}]},
        "free": {"anyOf": [{"enum": ["b"]}, {"type": "integer"}]},
        "name": {"type": "string", "nullable": True},
    }
    function = {"name": "f", "parameters": {"type": "object", "properties": of}}
    takes = Tool({"type": "function", "function": function}, lambda **given: "taken")
    for arguments in [
        {"unit": "C", "level": 1, "kind": "b", "free": 7, "name": None},
        {"level": None, "kind": None},
        {"level": "top", "kind": "a", "free": "b", "name": "x"},
    ]:
        assert takes.answer(arguments) == "taken"
    for arguments, words in [
        ({"unit": "K"}, "unit='K' must be one of 'C', 'F'"),
        ({"level": True}, "level=True must be of type string"),
        ({"level": 2}, "level=2 must be one of 1, 'top', None"),
        ({"kind": "c"}, "kind='c' must be one of 'a', 'b', None"),
        ({"name": 3}, "name=3 must be of type string or null"),
    ]:
        with pytest.raises(ToolError, match=words):
            takes.answer(arguments)
