"""Tools in a conversation: how a prompt tells of them, and how their answers are put to the
model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ttc.errors import InvalidInput
from ttc.text.chat import ANSWER, QUESTION, chat_text, common_start, has_template, next_turn_text
from ttc.text.prompt import PromptTemplate
from ttc.text.roles import Message
from ttc.tool_calls import Written
from ttc.tools.base import Tools
from ttc.tools.choice import format_of
from ttc.tools.formats import (
    HERMES,
    HERMES_EXAMPLE,
    Calculator,
    Schema,
    ToolFormat,
    described,
)
from ttc.tools.learning import opening, without_brace


@dataclass(frozen=True, eq=False)
class ToolChat:
    """Tools as the prompts of one model have them.

    template: the words around a question, which tell of the tools. turns: whether a call ends the
    model's turn, and its answer is a message of a chat; else it goes on in the same text.
    opening: what each answer begins with, "" for nothing (see `Tools.choice`).
    """

    tools: Tools
    format: ToolFormat
    template: PromptTemplate
    tokenizer: Any
    turns: bool
    opening: str = ""

    @classmethod
    def of(cls, tools: Tools, template: PromptTemplate, tokenizer: Any) -> ToolChat:
        """The template's own words for tools where it has some. Else a system message in Hermes'
        words; none for a raw prompt, and none for an inline format, which solved examples show.

        Raises InvalidInput for a calculator's format without a tool `calculator`, and where a call
        must be made and it is not known how this model begins one.
        """
        chat = template.uses_chat(tokenizer)
        telling = _with_tools(tools, template, tokenizer) if chat else None
        options = template.options if chat else {}
        form = format_of(tools, tokenizer, options, described=telling is not None)
        if isinstance(form, Calculator) and "calculator" not in tools.by_name:
            raise InvalidInput(
                "tools.format=calculator calls a tool of that name, and there is none; give "
                "ttc.tools.calculator.calculator()"
            )
        if form.inline:
            telling = template
        elif telling is None:
            telling = _described(tools, form, template) if chat or not template.raw else template
        turns = chat and not form.inline
        return cls(
            tools, form, telling, tokenizer, turns, _opening(tools, form, tokenizer, options)
        )

    def calls(self, text: str) -> list[Written]:
        """The calls in a text, with arguments of the types that their tools take."""
        return list(map(self._typed, self.format.calls(text)))

    def _typed(self, call: Written) -> Written:
        tool = self.tools.by_name.get(call.name)
        return call if tool is None else call._replace(arguments=tool.typed(call.arguments))

    @property
    def ends(self) -> tuple[str, ...]:
        """Strings at which a call is looked for before the model has ended its turn."""
        return () if self.turns and self.tools.parallel else self.format.ends

    def after(self, calls: Sequence[Written], answers: Sequence[str], last: str) -> str:
        """What the model reads after its calls: their answers and the start of its next turn.

        last: the special token with which the model ended its turn, "" where it wrote none.
        """
        if not self.turns:
            return "".join(map(self.format.answered, answers))
        if self._tells:
            alone, answered = self._behind(calls, answers)
            if last and last in answered:
                return answered.partition(last)[2]
            ended = common_start(alone, answered)
            words = answered.removeprefix(ended)
            return words if last else f"{self._end_of_turn}{words}"
        words = "\n".join(self.format.answered(answer).strip() for answer in answers)
        turn = next_turn_text(QUESTION, words, self.tokenizer, self.template.options)
        return turn.partition(last)[2] if last and last in turn else turn

    @cached_property
    def _tells(self) -> bool:
        """Whether the template writes a tool's answer as such."""
        try:
            return ANSWER in self._behind([Written("tool", {}, 0)], [ANSWER])[1]
        except InvalidInput:
            return False

    @cached_property
    def _end_of_turn(self) -> str:
        messages = [*QUESTION, {"role": "assistant", "content": ANSWER}]
        plain = chat_text(messages, self.tokenizer, self.template.options, begins_answer=False)
        return plain.rpartition(ANSWER)[2]

    def _behind(self, calls: Sequence[Written], answers: Sequence[str]) -> tuple[str, str]:
        """What the template writes behind the words of the calls, without their answers and with
        them; "" where it writes neither the calls nor words before them."""
        results = list(map(_result_message, range(len(calls)), calls, answers))
        for content in ("", CALLED):
            messages = [*QUESTION, self._call_message(calls, content)]
            alone = self._text(messages)
            answered = self._text([*messages, *results], begins_answer=True)
            if CALLED in alone and CALLED in answered:
                return alone.rpartition(CALLED)[2], answered.rpartition(CALLED)[2]
        return "", ""

    def _text(self, messages: Sequence[Message], *, begins_answer: bool = False) -> str:
        return chat_text(
            messages,
            self.tokenizer,
            self.template.options,
            way_out=NO_TOOLS,
            begins_answer=begins_answer,
        )

    def _call_message(self, calls: Sequence[Written], content: str) -> dict[str, Any]:
        """A message that calls tools. Its arguments are a mark: what follows them is asked for."""
        arguments: Any = {"argument": CALLED}
        arguments = json.dumps(arguments) if self.format.as_text else arguments
        tool_calls = [
            {
                "type": "function",
                "id": _number(place),
                "function": {"name": call.name, "arguments": arguments},
            }
            for place, call in enumerate(calls[: self._at_once])
        ]
        return {"role": "assistant", "content": content, "tool_calls": tool_calls}

    @cached_property
    def _at_once(self) -> int | None:
        """How many calls the template takes in one turn, None for any number."""
        function = {"name": "tool", "arguments": "{}" if self.format.as_text else {}}
        calls = [{"type": "function", "id": _number(i), "function": function} for i in range(2)]
        try:
            self._text([*QUESTION, {"role": "assistant", "content": "", "tool_calls": calls}])
        except InvalidInput:
            return 1
        return None


NO_TOOLS = "use a model whose chat template has tools, or leave it out (chat=false)"

CALLED = "THE-ARGUMENT"
"""Stands for the arguments of calls, to see what a template writes after them."""


def _result_message(place: int, call: Written, answer: str) -> dict[str, Any]:
    about = {"role": "tool", "name": call.name, "tool_call_id": _number(place)}
    return {**about, "content": answer}


def _number(place: int) -> str:
    return f"call{place:05}"


def _opening(tools: Tools, form: ToolFormat, tokenizer: Any, options: Mapping[str, Any]) -> str:
    """The beginning of a call, as far as `Tools.choice` says of which tool."""
    names = tools.callable_names
    if not names:
        return ""
    begun = opening(tokenizer, options, names, form.as_text) if has_template(tokenizer) else ""
    if not begun and form is HERMES:
        head, _, rest = HERMES_EXAMPLE.partition("<function-name>")
        behind = rest.partition("<args-json-object>")[0]
        begun = f'{head}"' if len(names) > 1 else without_brace(f'{head}"{names[0]}"{behind}')
    if not begun:
        raise InvalidInput(
            f"tools.choice={tools.choice} begins each answer with a call, and the chat template "
            "does not show how this model begins one; use choice=auto"
        )
    return begun


def _with_tools(tools: Tools, template: PromptTemplate, tokenizer: Any) -> PromptTemplate | None:
    """With the tools as the chat template tells of them; None where it does not. Defaults of their
    schemas are written out where it refuses them otherwise.

    Raises InvalidInput where it refuses them all the same.
    """
    refusal: InvalidInput | None = None
    for schemas in (list(tools.schemas), list(map(_completed, tools.schemas))):
        with_tools = replace(template, options={**template.options, "tools": schemas})
        try:
            text = with_tools.text("?", tokenizer)
        except InvalidInput as error:
            refusal = error
            continue
        try:
            return None if text == template.text("?", tokenizer) else with_tools
        except InvalidInput:  # a template that writes nothing without tools
            return with_tools
    assert refusal is not None
    try:
        template.text("?", tokenizer)
    except InvalidInput:
        raise refusal from None  # it is not for the tools
    raise InvalidInput(
        f"the chat template cannot tell the model of {', '.join(tools.by_name)} "
        f"({refusal.__cause__ or refusal}); give each argument one plain type, or {NO_TOOLS}"
    ) from refusal


def _completed(schema: Schema) -> Schema:
    """A tool's schema with the defaults of what it leaves out, which some chat templates read
    without asking."""
    function = _without_none(schema["function"])
    parameters = _without_none(function.get("parameters", {}))
    properties = parameters.get("properties", {})
    if isinstance(properties, Mapping):
        properties = {name: _completed_argument(argument) for name, argument in properties.items()}
    parameters = {"type": "object", "required": [], **parameters, "properties": properties}
    return {**schema, "function": {"description": "", **function, "parameters": parameters}}


def _completed_argument(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    completed = _without_none(schema)
    if isinstance(kinds := completed.get("type"), list):
        plain = [kind for kind in kinds if kind != "null"]
        completed["type"] = plain[0] if len(plain) == 1 else plain
    anything: dict[str, Any] = (
        {"additionalProperties": {}} if completed.get("type") == "object" else {}
    )
    return {"description": "", **anything, **completed}


def _without_none(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if value is not None}


def _described(tools: Tools, form: ToolFormat, template: PromptTemplate) -> PromptTemplate:
    """With a system message that tells of the tools."""
    words = described(tools.schemas, form.example)
    return replace(template, system=f"{template.system}\n\n{words}" if template.system else words)
