"""Tools in a conversation: how a prompt tells of them, and how their answers are put to the
model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ttc.errors import InvalidInput
from ttc.text.chat import ANSWER, QUESTION, chat_text, next_turn_text
from ttc.text.prompt import PromptTemplate
from ttc.tools.base import Tools
from ttc.tools.call import Written
from ttc.tools.formats import Calculator, Schema, ToolFormat, described, format_of


@dataclass(frozen=True, eq=False)
class ToolChat:
    """Tools as the prompts of one model have them.

    template: the words around a question, which tell of the tools. turns: whether a call ends the
    model's turn, and its answer is a message of a chat; else it goes on in the same text.
    """

    tools: Tools
    format: ToolFormat
    template: PromptTemplate
    tokenizer: Any
    turns: bool

    @classmethod
    def of(cls, tools: Tools, template: PromptTemplate, tokenizer: Any) -> ToolChat:
        """The template's own words for tools where it has some. Else a system message in Hermes'
        words; none for a raw prompt, and none for an inline format, which solved examples show.

        Raises InvalidInput for a calculator's format without a tool `calculator`.
        """
        form = format_of(tools.format, tokenizer, tools.schemas)
        if isinstance(form, Calculator) and "calculator" not in tools.by_name:
            raise InvalidInput(
                "tools.format=calculator calls a tool of that name, and there is none; give "
                "ttc.tools.calculator.calculator()"
            )
        turns = template.uses_chat(tokenizer) and not form.inline
        return cls(tools, form, _telling(tools, form, template, tokenizer), tokenizer, turns)

    @property
    def ends(self) -> tuple[str, ...]:
        return () if self.turns else self.format.ends

    def after(self, calls: Sequence[Written], answers: Sequence[str], last: str) -> str:
        """What the model reads after its calls: their answers and the start of its next turn.

        last: the special token with which the model ended its turn, "" where it wrote none.
        """
        if not self.turns:
            return "".join(map(self.format.answered, answers))
        if self._tells:
            before, after = self._written(calls, answers)
            return self._closing(before, last) + after
        words = "\n".join(self.format.answered(answer).strip() for answer in answers)
        turn = next_turn_text(QUESTION, words, self.tokenizer, self.template.options)
        return turn.partition(last)[2] if last and last in turn else turn

    @cached_property
    def _tells(self) -> bool:
        return ANSWER in self._written([Written("tool", {}, 0)], [ANSWER])[1]

    def _written(self, calls: Sequence[Written], answers: Sequence[str]) -> tuple[str, str]:
        options = self.template.options
        asked = [*QUESTION, _asking(calls)]
        before = chat_text(asked, self.tokenizer, options, begins_answer=False, way_out=NO_TOOLS)
        told = [*asked, *map(_told, range(len(calls)), calls, answers)]
        full = chat_text(told, self.tokenizer, options, way_out=NO_TOOLS)
        return before, full.removeprefix(before) if full.startswith(before) else ""

    def _closing(self, before: str, last: str) -> str:
        if last:
            return before.rpartition(last)[2] if last in before else ""
        said = [*QUESTION, {"role": "assistant", "content": ANSWER}]
        plain = chat_text(said, self.tokenizer, self.template.options, begins_answer=False)
        return plain.rpartition(ANSWER)[2]


NO_TOOLS = "use a model whose chat template has tools, or leave it out (chat=false)"


def _asking(calls: Sequence[Written]) -> dict[str, Any]:
    asked = [
        {
            "type": "function",
            "id": _number(place),
            "function": {"name": call.name, "arguments": dict(call.arguments)},
        }
        for place, call in enumerate(calls)
    ]
    return {"role": "assistant", "content": "", "tool_calls": asked}


def _told(place: int, call: Written, answer: str) -> dict[str, Any]:
    about = {"role": "tool", "name": call.name, "tool_call_id": _number(place)}
    return {**about, "content": answer}


def _number(place: int) -> str:
    return f"call{place:05}"


def _telling(
    tools: Tools, form: ToolFormat, template: PromptTemplate, tokenizer: Any
) -> PromptTemplate:
    if form.inline:
        return template
    if template.uses_chat(tokenizer):
        given: list[Schema] = list(tools.schemas)
        with_tools = replace(template, options={**template.options, "tools": given})
        if with_tools.text("?", tokenizer) != template.text("?", tokenizer):
            return with_tools
    elif template.raw:
        return template
    words = described(tools.schemas)
    return replace(template, system=f"{template.system}\n\n{words}" if template.system else words)
