"""A tool: what a model is told of it, and the function that answers its calls."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain
from typing import Any

from ttc.checks import (
    Options,
    PositiveFloat,
    PositiveInt,
    check_choice,
    check_is,
    check_kind,
    check_once,
)
from ttc.errors import InvalidInput, refuse, refusing
from ttc.text.encodable import encodable
from ttc.tools.formats import FORMATS, Schema, ToolFormat

TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
"""The Python types of JSON schema's."""

TOKEN_CHARS = 32
"""An answer is cut after so many characters for each token that it may have, before it is made
tokens: few texts have tokens that are longer on average."""


class ToolError(Exception):
    """What a tool says instead of an answer; the model reads it."""


@dataclass(frozen=True, eq=False)
class Tool:
    """A tool.

    schema: what the model is told: {"type": "function", "function": {"name", "description",
        "parameters"}}.
    run: answers a call, its arguments given by name. None leaves calls to the caller: a branch ends
        with them. It is called in threads, several at a time, and may be `async`.
    """

    schema: Schema
    run: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        function = self.schema.get("function") if isinstance(self.schema, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not name:
            raise InvalidInput(
                f"the schema {self.schema!r:.80} is no tool's; give "
                '{"type": "function", "function": {"name": ..., "parameters": {...}}}'
            )
        if encodable(dict(self.schema)) != dict(self.schema):
            raise InvalidInput(
                f"the schema of the tool {name!a} holds half of a surrogate pair, which no model "
                "can read; write the text again"
            )
        parameters = function.get("parameters") if isinstance(function, Mapping) else None
        check_is(f"the parameters of the tool {name}", parameters, Mapping | None, "a JSON schema")

    @classmethod
    def of(cls, tool: Any) -> Tool:
        """A tool of a function with type hints and a docstring that describes each argument
        (transformers' `get_json_schema`), or of a schema.

        Raises InvalidInput for a function that lacks them, and for anything else.
        """
        if isinstance(tool, Tool):
            return tool
        if isinstance(tool, Mapping):
            return cls(tool)
        function = inspect.isfunction(tool) or inspect.ismethod(tool)
        check_kind("a tool", tool, function, "a function, a Tool, or a tool's schema")
        from transformers.utils.chat_template_utils import get_json_schema

        with refusing(
            Exception,
            f"the function {tool.__name__} cannot be a tool: {{error}}; give it type hints and "
            "a docstring with an 'Args:' block that describes each argument",
        ):
            return cls(get_json_schema(tool), tool)

    @property
    def name(self) -> str:
        return str(self.schema["function"]["name"])

    def called(self, name: str) -> Tool:
        """The same under another name."""
        function = {**self.schema["function"], "name": name}
        return Tool({**self.schema, "function": function}, self.run)

    def typed(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """With texts as values of the types that the schema names: `days` is 3 and not "3"."""
        properties = self._properties
        return {
            name: _typed(value, _kinds(properties.get(name))) for name, value in arguments.items()
        }

    @property
    def _properties(self) -> Mapping[str, Any]:
        parameters = self.schema["function"].get("parameters") or {}
        return parameters.get("properties") or {}

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise ToolError for arguments that the schema does not take: unknown or missing ones, and
        values of another type."""
        parameters = self.schema["function"].get("parameters") or {}
        properties = self._properties
        takes = f"{self.name} takes {', '.join(properties) or 'no arguments'}"
        kinds = {name: _kinds(properties[name]) for name in arguments if name in properties}
        missing = {
            f"the argument {name} is missing; {takes}": name not in arguments
            for name in parameters.get("required") or []
        }
        unknown = {
            f"there is no argument {name}; {takes}": not parameters.get("additionalProperties")
            for name in arguments
            if name not in properties
        }
        unfit = {
            f"the argument {name}={arguments[name]!r:.80} must be of type {' or '.join(its)}": (
                not _fits(arguments[name], its)
            )
            for name, its in kinds.items()
        }
        other = {
            f"the argument {name}={arguments[name]!r:.80} must be one of "
            f"{', '.join(map(repr, values))}": not any(_equal(arguments[name], v) for v in values)
            for name in kinds
            if (values := _values(properties[name])) is not None
        }
        refuse(missing | unknown | unfit | other, ToolError)

    def answer(self, arguments: Mapping[str, Any]) -> str:
        """The answer to a call, as text or JSON. Raises whatever the tool raises."""
        self.check(arguments)
        assert self.run is not None
        result = self.run(**arguments)
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
        return result if isinstance(result, str) else json.dumps(result, default=str)


def _kinds(schema: Any) -> list[str]:
    """The types that a JSON schema takes; none where it does not name them."""
    if not isinstance(schema, Mapping):
        return []
    if kind := schema.get("type"):
        kinds = [kind] if isinstance(kind, str) else list(kind)
        return [*kinds, "null"] if schema.get("nullable") else kinds
    if values := _values(schema):
        return [kind for kind in TYPES if any(_fits(value, [kind]) for value in values)]
    choices = schema.get("anyOf") or schema.get("oneOf") or []
    kinds = [_kinds(choice) for choice in choices]
    return list(dict.fromkeys(chain.from_iterable(kinds))) if all(kinds) else []


def _values(schema: Any) -> list[Any] | None:
    """The only values that a JSON schema takes; None where it does not name them."""
    if not isinstance(schema, Mapping):
        return None
    if "enum" in schema or "const" in schema:
        values = list(schema["enum"]) if "enum" in schema else [schema["const"]]
        return [*values, None] if schema.get("nullable") else values
    if schema.get("type") == "null":
        return [None]
    choices = [_values(choice) for choice in schema.get("anyOf") or schema.get("oneOf") or []]
    if not choices or None in choices:
        return None
    return list(chain.from_iterable(filter(None, choices)))


def _equal(value: Any, other: Any) -> bool:
    """As JSON has it, where true is not 1."""
    return value == other and isinstance(value, bool) is isinstance(other, bool)


def _fits(value: Any, allowed: Sequence[str]) -> bool:
    if not allowed or any(kind not in TYPES for kind in allowed):
        return True
    if isinstance(value, bool):
        return "boolean" in allowed
    return any(isinstance(value, TYPES[kind]) for kind in allowed)


def _typed(value: Any, allowed: Sequence[str]) -> Any:
    if not isinstance(value, str) or not allowed:
        return value
    if "null" in allowed and value.strip() in ("null", "None"):
        return None
    if "string" in allowed:
        return value
    for read in (json.loads, ast.literal_eval):  # some templates write True and None
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            parsed = read(value.strip())
            if _fits(parsed, allowed):
                return parsed
    return value


@dataclass(frozen=True)
class Tools(Options):
    """The tools of a problem, and what calls may take.

    tools: functions, `Tool`s or schemas (see `Tool.of`).
    strict: names and arguments of calls keep to the tools' schemas, by the tokens that a model may
    draw in them; for models that write calls as JSON, with the extra `schema`.
    format: how the model writes calls, by its name or as a `ToolFormat`; "auto" reads it off the
    tokenizer (`ttc.tools.formats`).
    choice: "auto" lets the model choose what to call, if anything. "required" begins each answer
    with a call of one of them, and a tool's name with one of that: the model goes on from there.
    parallel: a turn may hold several calls. Without, it ends with the first one.
    calls_per_branch: the most calls of one branch that are answered; later ones stay plain text
    (`CalculatorTools`: 32).
    time_s: seconds to wait for an answer; then the branch reads an error instead. answer_tokens:
    the most tokens of an answer; the rest is cut off, and the branch is told so. Only the first 32
    characters for each of these tokens are read.
    """

    tools: Sequence[Any]
    format: str | ToolFormat = "auto"
    choice: str = "auto"
    calls_per_branch: PositiveInt = 8
    time_s: PositiveFloat = 30.0
    answer_tokens: PositiveInt = 512
    strict: bool = False
    parallel: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        listed = isinstance(self.tools, Sequence) and not isinstance(self.tools, str)
        check_kind("tools", self.tools, listed, "a list of functions or Tools")
        object.__setattr__(self, "tools", tuple(map(Tool.of, self.tools)))
        check_once((tool.name for tool in self.tools), "tools", "give each a name of its own")
        if not isinstance(self.format, ToolFormat):
            check_choice(self.format, FORMATS, f"format={self.format!r} is unknown")
        choices = ("auto", "required", *(tool.name for tool in self.tools))
        check_choice(self.choice, choices, f"choice={self.choice!r} is unknown")

    @classmethod
    def of(cls, tools: Any) -> Tools | None:
        if tools is None or isinstance(tools, Tools):
            return tools if tools is not None and tools.tools else None
        return cls(tools) if tools else None

    def changed(self, **settings: Any) -> Tools:
        """The same tools with other settings; what answers their calls is not begun anew."""
        own = {one.name: getattr(self, one.name) for one in fields(Tools)}
        return Tools(**own | settings)

    @property
    def answer_chars(self) -> int:
        """The characters of an answer that are read."""
        return TOKEN_CHARS * self.answer_tokens

    @property
    def callable_names(self) -> list[str]:
        """The tools of which one must be called; none where the model is free to."""
        names = [tool.name for tool in self.tools]
        if self.choice == "auto":
            return []
        return names if self.choice == "required" else [self.choice]

    @cached_property
    def by_name(self) -> dict[str, Tool]:
        return {tool.name: tool for tool in self.tools}

    @property
    def schemas(self) -> list[Schema]:
        return [tool.schema for tool in self.tools]
