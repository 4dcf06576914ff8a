"""How models write calls of tools: in which words, and how these are read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

from ttc.text.thinking_marks import overlap
from ttc.tool_calls import JsonCall, Written
from ttc.tools.arguments import KEY, Arguments, Pairs, PythonCalls, Reading, WholeJson, checked

Schema = Mapping[str, Any]
"""A tool as chat templates and OpenAI's API have it: {"type": "function", "function": {...}}."""


HERMES_EXAMPLE = """<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""
"""How Hermes' and Qwen's chat templates show a call."""


class ToolFormat:
    """One way to write calls.

    begins: strings before which a text is no call; none where that is not known.
    ends: strings at which a call ends that goes without the end of the model's turn.
    inline: the answer stands in the middle of the model's own words.
    in_thoughts: calls may stand in thoughts.
    as_text: the chat template takes the arguments of a call as JSON text.
    example: a call, to tell a model that hears of tools in a system message.
    """

    begins: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    inline: bool = False
    in_thoughts: bool = False
    as_text: bool = False
    example: str = HERMES_EXAMPLE

    def calls(self, text: str) -> list[Written]:
        """The calls in what a model has written in its turn, special tokens included."""
        raise NotImplementedError

    @property
    def json_call(self) -> JsonCall | None:
        """How calls are written that are JSON with the name in it; None for others."""
        return None

    def ends_with_call(self, text: str) -> bool:
        """Whether a turn has ended with a call, and nothing but special tokens follows it."""
        words = re.sub(r"(<[^<>\s]*>\s*)$", "", text.rstrip()).rstrip()
        return any(words.endswith(end) or text.rstrip().endswith(end) for end in self.ends)

    def in_call(self, text: str) -> bool:
        """Whether a text ends within a call, or with one."""
        begin, mark = max(((text.rfind(mark), mark) for mark in self.begins), default=(-1, ""))
        if begin < 0:
            return False
        rest = text[begin + len(mark) :]
        after = [rest.rpartition(end)[2] for end in self.ends if end in rest]
        return not after or not min(after, key=len).strip()

    def answered(self, answer: str) -> str:
        return f"\n<tool_response>\n{answer}\n</tool_response>\n"


# ---------------------------------------------------------------- a mark, and what follows it


MARKS = re.compile(r"<[^<>\s]*>?|\[/?[A-Z_]*|[\]`\s]")
"""What may follow a call that ends a turn: special tokens and ends of calls, or the beginning of
one."""


@dataclass(frozen=True)
class Marked(ToolFormat):
    """Calls that begin with a mark.

    mark: what stands before the name, or before the JSON. arguments: how the rest is written.
    close: what stands after the last call, "" where that is not known. section: what stands before
        the first call's mark. as_text, example: see `ToolFormat`.
    """

    mark: str
    arguments: Arguments
    close: str = ""
    section: str = ""
    as_text: bool = False
    example: str = HERMES_EXAMPLE

    def __post_init__(self) -> None:
        marks = (self.section, self.mark)
        words = (mark.partition(KEY)[0].split()[:1] for mark in marks)
        begins = dict.fromkeys((*chain(*words), *filter(None, [self._inner])))
        object.__setattr__(self, "begins", tuple(begins))
        object.__setattr__(self, "ends", (self.close,) if self.close else ())

    @property
    def json_call(self) -> JsonCall | None:
        if not isinstance(self.arguments, WholeJson) or KEY in self.mark + self.close:
            return None
        keys = self.arguments
        return JsonCall(self.mark.strip(), self.close.strip(), keys.name, keys.arguments)

    @property
    def _inner(self) -> str:
        """The last tag of a mark with several, before which models leave out the others: Qwen's
        `<function=` without `<tool_call>`."""
        *before, last = self.mark.split() or [""]
        return last if before and re.fullmatch("<[a-z_]+=", last) else ""

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        outer = self.mark.strip().removesuffix(self._inner)
        some = rf"(?:{spaced(outer)}\s*)?" if self._inner else spaced(outer)
        return re.compile(some + re.escape(self._inner))

    @cached_property
    def _prose(self) -> re.Pattern[str]:
        """A tag that is only spoken of, as in: `<tool_call>`, a <tool_call> tag."""
        tags = "|".join(re.escape(mark) for mark in self.begins if mark[0] == "<") or "(?!)"
        return re.compile(rf"`(?:{tags})|(?<=\w )(?:{tags})(?=[ ,;.]+[a-z])")

    def _without_prose(self, text: str) -> str:
        return self._prose.sub(lambda tag: " " * len(tag[0]), text)

    @cached_property
    def _before(self) -> re.Pattern[str]:
        return re.compile(spaced(self.section) + r"\s*$")

    @cached_property
    def _begun(self) -> re.Pattern[str]:
        """The beginning of a mark at the end of a text."""
        signs = [WORD if sign == KEY else re.escape(sign) for sign in self.mark.strip()]
        return re.compile("(?:".join(signs) + ")?" * (len(signs) - 1) + "$")

    def calls(self, text: str) -> list[Written]:
        text = self._without_prose(text)
        calls = list[Written]()
        place = 0
        while match := self._pattern.search(text, place):
            readings = self.arguments.read(text, match.end())
            if not readings and text[match.end() :].strip():
                readings = [Reading("", {}, match.end(), "the call cannot be read")]
            start = self._start(text, place, match.start())
            calls += [written(reading, start) for reading in readings]
            place = max([match.end(), *(reading.end for reading in readings)])
        return calls

    def ends_with_call(self, text: str) -> bool:
        return super().ends_with_call(text) or self._after(text) == ""

    def in_call(self, text: str) -> bool:
        text = self._without_prose(text)
        after = self._after(text)
        return super().in_call(text) if after is None else not after

    def _after(self, text: str) -> str | None:
        """The words after the last call, marks left out; None where that is not whole."""
        after, place = None, 0
        arguments = self.arguments
        end = arguments.end.strip() if isinstance(arguments, Pairs | PythonCalls) else ""
        while match := self._pattern.search(text, place):
            readings = arguments.read(text, match.end())
            place = max([match.end(), *(reading.end for reading in readings)])
            rest = text[place:]
            whole = readings and not readings[-1].error and rest.lstrip().startswith(end)
            rest = self._begun.sub("", rest).replace(self.close or "\0", "")
            rest = rest[: len(rest) - overlap(rest, self.close)]
            after = MARKS.sub("", rest) if whole else None
        return after

    def _start(self, text: str, first: int, mark: int) -> int:
        """Where the call begins whose mark is at `mark`: with the section's, if that is there."""
        if not self.section:
            return mark
        room = 2 * len(self.section) + 16
        before = self._before.search(text, max(first, mark - room), mark)
        return mark if before is None else before.start()


def written(reading: Reading, start: int) -> Written:
    return Written(reading.name, reading.arguments, start, reading.error)


WORD = r"[\w.:/-]*"


def spaced(mark: str) -> str:
    """An expression for a mark, in which blanks may be left out or added, and `KEY` is any word."""
    pieces = (WORD.join(map(re.escape, piece.split(KEY))) for piece in mark.split())
    return r"\s*".join(pieces)


# ---------------------------------------------------------------- Hermes and Qwen

DESCRIPTION = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, {call}:
{example}"""
"""What Hermes' and Qwen's chat templates say of tools, for templates that say nothing of them."""

IN_HERMES = (
    "return a json object with function name and arguments within <tool_call></tool_call> XML tags"
)


def described(tools: Sequence[Schema], example: str = HERMES_EXAMPLE) -> str:
    """What a system message tells of tools. example: how the model writes a call."""
    lines = (json.dumps(tool, ensure_ascii=False) for tool in tools)
    call = IN_HERMES if example == HERMES_EXAMPLE else "write its name and arguments as here"
    return DESCRIPTION.format(tools="\n".join(lines), call=call, example=example)


HERMES = Marked("<tool_call>", WholeJson("name", "arguments"), "</tool_call>")
"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, one or several."""

# ---------------------------------------------------------------- Llama 3.1 and later


class Llama(ToolFormat):
    """A turn that is nothing but `{"name": ..., "parameters": {...}}`, several parted by ";", each
    after `<|python_tag|>` or not; other words after that tag are a program for the tool `python`
    (Llama's `ipython`)."""

    tag = "<|python_tag|>"
    keys = frozenset(("type", "name", "parameters", "arguments"))
    begins = (tag, "{")

    def in_call(self, text: str) -> bool:
        return self.tag in text

    ends_of_turn = re.compile(r"<\|eo[tm]_id\|>\s*$")

    def calls(self, text: str) -> list[Written]:
        text = self.ends_of_turn.sub("", text).rstrip()
        head, tagged, rest = text.partition(self.tag)
        start, rest = (len(head), rest) if tagged else (0, text)
        if not rest.lstrip().startswith("{"):
            code = rest.strip()
            return [Written("python", {"code": code}, start)] if tagged and code else []
        calls = list[Written]()
        place = _next(rest, 0)
        while place < len(rest):
            try:
                value, end = json.JSONDecoder().raw_decode(rest, place)
                if not tagged and not (isinstance(value, dict) and value.keys() <= self.keys):
                    return []  # an answer in JSON
            except ValueError:
                if not tagged and '"name"' not in rest:
                    return []
                end = len(rest)
            calls.append(from_json(rest[place:end], start))
            place = _next(rest, end)
        return calls if tagged or all(call.name for call in calls) else []


def _next(text: str, place: int) -> int:
    return len(text) - len(text[place:].lstrip(" \n;"))


# ---------------------------------------------------------------- gpt-oss


class Harmony(ToolFormat):
    """`<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>`."""

    in_thoughts = True
    pattern = re.compile(
        r"(?:<\|channel\|>\w{1,100})? ?to=(?:functions\.)?([\w.-]{1,200})(?![\w.-])"
    )

    def in_call(self, text: str) -> bool:
        last = max((match.end() for match in self.pattern.finditer(text)), default=-1)
        return last >= 0 and "<|end|>" not in text[last:]

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
            reason = f"{type(error).__name__}: {error}"
            return [Written("", {}, 0, f"the call cannot be read ({reason})")]
        calls = list[Written]()
        for call in message.get("tool_calls") or []:
            function = call.get("function", call) if isinstance(call, Mapping) else None
            if not isinstance(function, Mapping):
                calls.append(Written("", {}, 0, f"the call {call!r:.80} names no function"))
                continue
            start = max(0, text.find(str(function.get("name"))))
            calls.append(
                written(checked(function.get("name"), function.get("arguments"), 0), start)
            )
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


# ---------------------------------------------------------------- JSON


def from_json(text: str, start: int) -> Written:
    readings = HERMES.arguments.read(text, 0)
    if not readings:
        return Written("", {}, start, "the call must be a JSON object with name and arguments")
    return written(readings[0], start)


def with_arguments(name: str, text: str, start: int) -> Written:
    try:
        return written(checked(name, json.loads(text or "{}"), 0), start)
    except (ValueError, RecursionError) as error:
        return Written(name, {}, start, f"the arguments cannot be read as JSON ({error})")


# ---------------------------------------------------------------- by name

BY_NAME: dict[str, ToolFormat] = {
    "hermes": HERMES,
    "llama": Llama(),
    "gpt_oss": Harmony(),
    "lfm2": Marked("<|tool_call_start|>", PythonCalls("<|tool_call_end|>"), "<|tool_call_end|>"),
    "granite3": Marked("<|tool_call|>", WholeJson("name", "arguments")),
    "calculator": Calculator(),
}

FORMATS = ("auto", *BY_NAME)
