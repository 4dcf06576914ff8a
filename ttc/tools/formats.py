"""How models write calls of tools: in which words, and how these are read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ttc.errors import InvalidInput
from ttc.tools.call import Written

Schema = Mapping[str, Any]
"""A tool as chat templates and OpenAI's API have it: {"type": "function", "function": {...}}."""


@dataclass(frozen=True)
class ToolFormat:
    """One way to write calls.

    begins: strings before which a text is no call; none where that is not known.
    ends: strings at which a call ends that goes without the end of the model's turn.
    inline: the answer stands in the middle of the model's own words.
    in_thoughts: calls may stand in thoughts.
    """

    begins: ClassVar[tuple[str, ...]] = ()
    ends: ClassVar[tuple[str, ...]] = ()
    inline: ClassVar[bool] = False
    in_thoughts: ClassVar[bool] = False

    def calls(self, text: str) -> list[Written]:
        """The calls in what a model has written in its turn, special tokens included."""
        raise NotImplementedError

    def answered(self, answer: str) -> str:
        return f"\n<tool_response>\n{answer}\n</tool_response>\n"


# ---------------------------------------------------------------- Hermes, Qwen, SmolLM3

DESCRIPTION = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""
"""What Hermes' and Qwen's chat templates say of tools, for templates that say nothing of them."""


def described(tools: Sequence[Schema]) -> str:
    lines = (json.dumps(tool, ensure_ascii=False) for tool in tools)
    return DESCRIPTION.format(tools="\n".join(lines))


class Hermes(ToolFormat):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, one or several."""

    begins = ("<tool_call>",)
    ends = ("</tool_call>",)

    def calls(self, text: str) -> list[Written]:
        calls = list[Written]()
        (begin,), (end,) = self.begins, self.ends
        start = text.find(begin)
        while start >= 0:
            said, _, _ = text[start + len(begin) :].partition(end)
            calls.append(from_json(said.strip(), start))
            start = text.find(begin, start + len(begin) + len(said))
        return calls


# ---------------------------------------------------------------- Llama 3.1 and later


class Llama(ToolFormat):
    """A turn that is nothing but `{"name": ..., "parameters": {...}}`, several parted by ";", each
    after `<|python_tag|>` or not; other words after that tag are a program for the tool `python`
    (Llama's `ipython`)."""

    tag = "<|python_tag|>"
    begins = (tag, "{")
    ends_of_turn = re.compile(r"(<\|eot_id\|>|<\|eom_id\|>)\s*$")

    def calls(self, text: str) -> list[Written]:
        text = self.ends_of_turn.sub("", text).rstrip()
        start = text.find(self.tag)
        tagged = start >= 0
        place = start + len(self.tag) if tagged else 0
        said = text[place:]
        if not said.lstrip().startswith("{"):
            code = said.strip()
            return [Written("python", {"code": code}, start)] if tagged and code else []
        calls = list[Written]()
        decoder = json.JSONDecoder()
        place = 0
        while place < len(said):
            place += len(said[place:]) - len(said[place:].lstrip(" \n;"))
            if place >= len(said):
                break
            try:
                _, end = decoder.raw_decode(said, place)
            except ValueError:
                if not tagged and '"name"' not in said:
                    return []  # an answer that is JSON
                end = len(said)
            calls.append(from_json(said[place:end], max(start, 0)))
            place = end
        return calls if tagged or all(call.name for call in calls) else []


# ---------------------------------------------------------------- gpt-oss


class Harmony(ToolFormat):
    """`<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>`."""

    in_thoughts = True
    pattern = re.compile(
        r"(?:<\|channel\|>\w{1,100})? ?to=(?:functions\.)?([\w.-]{1,200})(?![\w.-])"
    )

    def calls(self, text: str) -> list[Written]:
        calls, done = list[Written](), 0
        for match in self.pattern.finditer(text):
            if match.start() < done:
                continue  # words of a call's arguments
            begin = text.find("<|message|>", match.end())
            if begin < 0:
                break
            start = begin + len("<|message|>")
            end = text.find("<|call|>", start)
            done = len(text) if end < 0 else end
            calls.append(with_arguments(match[1], text[start:done].strip(), match.start()))
        return calls


# ---------------------------------------------------------------- whatever transformers can read


@dataclass(frozen=True)
class ResponseTemplate(ToolFormat):
    """The tokenizer's own `response_template`, by which transformers reads calls (see
    `tokenizer.parse_response`)."""

    template: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[Schema, ...] = ()
    in_thoughts = True

    def calls(self, text: str) -> list[Written]:
        from transformers.utils.chat_parsing import ResponseParser

        try:
            parser = ResponseParser(
                dict(self.template), prefix="", tools=list(map(dict, self.tools))
            )
            parser.feed(text)
            message, _ = parser.finalize()
        except Exception as error:  # parsers of others may raise anything at what a model writes
            said = f"{type(error).__name__}: {error}"
            return [Written("", {}, 0, f"the call cannot be read ({said})")]
        calls = list[Written]()
        for call in message.get("tool_calls") or []:
            function = call.get("function", call) if isinstance(call, Mapping) else None
            if not isinstance(function, Mapping):
                calls.append(Written("", {}, 0, f"the call {call!r:.80} names no function"))
                continue
            start = max(0, text.find(str(function.get("name"))))
            calls.append(_checked(function.get("name"), function.get("arguments"), start))
        return calls


# ---------------------------------------------------------------- GSM8K's calculator


class Calculator(ToolFormat):
    """`<<48/2=` is a call of the tool `calculator`, and its value is written after it: `24>>`, as
    the solutions of GSM8K have it (Cobbe et al., 2021, its annotations of calculations).

    Prompts show it by solved examples.
    """

    begins = ("<<",)
    ends = ("=",)
    inline = True
    in_thoughts = True
    pattern = re.compile(r"<<([^<>=]*)=\s*$")

    def calls(self, text: str) -> list[Written]:
        match = self.pattern.search(text)
        if match is None:
            return []
        return [Written("calculator", {"expression": match[1].strip()}, match.start())]

    def answered(self, answer: str) -> str:
        return f"{answer}>>"


# ---------------------------------------------------------------- which one

BY_NAME = {"hermes": Hermes, "llama": Llama, "gpt_oss": Harmony, "calculator": Calculator}
SIGNS = {"<|python_tag|>": "llama", "<|channel|>": "gpt_oss"}
"""What chat templates hold whose models write in this format."""

FORMATS = ("auto", *BY_NAME)


def format_of(name: str | ToolFormat, tokenizer: Any, tools: Sequence[Schema]) -> ToolFormat:
    """A format by its name. "auto": the tokenizer's `response_template`, else what its chat
    template shows, else that of Hermes and Qwen.

    Raises InvalidInput for an unknown name.
    """
    if isinstance(name, ToolFormat):
        return name
    if name in BY_NAME:
        return BY_NAME[name]()
    if name != "auto":
        raise InvalidInput(f"tools.format={name!r} is unknown; use {', '.join(FORMATS)}")
    response = getattr(tokenizer, "response_template", None)
    if isinstance(response, Mapping):
        return ResponseTemplate(response, tuple(tools))
    template = str(getattr(tokenizer, "chat_template", None) or "")
    if "<tool_call>" not in template:
        for sign, known in SIGNS.items():
            if sign in template:
                return BY_NAME[known]()
    return Hermes()


# ---------------------------------------------------------------- JSON


def from_json(text: str, start: int) -> Written:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Written("", {}, start, f"the call cannot be read as JSON ({error})")
    if not isinstance(given, Mapping):
        return Written("", {}, start, "the call must be a JSON object with name and arguments")
    return _checked(given.get("name"), given.get("arguments", given.get("parameters")), start)


def with_arguments(name: str, text: str, start: int) -> Written:
    try:
        return _checked(name, json.loads(text or "{}"), start)
    except (ValueError, RecursionError) as error:
        return Written(name, {}, start, f"the arguments cannot be read as JSON ({error})")


def _checked(name: Any, arguments: Any, start: int) -> Written:
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments or "{}")
    if not isinstance(name, str) or not name:
        return Written("", {}, start, "the call names no tool")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        return Written(name, {}, start, "the arguments must be a JSON object")
    return Written(name, dict(arguments), start)
