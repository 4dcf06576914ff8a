"""What clients send to /v1/responses, which is answered as a chat."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from experiments.server.requests import (
    MAX_TOP_LOGPROBS,
    ChatBody,
    Common,
    Effort,
    Lenient,
    Limit,
    Strict,
    TextPart,
    validated,
)

LOGPROBS = "message.output_text.logprobs"
"""Of `include`: tells the log-probabilities of the answer's tokens."""


class InputPart(TextPart):
    type: Literal["input_text", "output_text", "text"]


class InputMessage(Lenient):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[InputPart]

    def as_chat(self) -> dict[str, Any]:
        return {"role": self.role, "content": joined(self.content)}


class InputCall(Lenient):
    """A call that the model has made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str = "{}"

    def as_chat(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"role": "assistant", "tool_calls": [{"id": self.call_id, "function": function}]}


class InputAnswer(Lenient):
    """What the called function has answered."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[InputPart]

    def as_chat(self) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": self.call_id, "content": joined(self.output)}


class InputThought(Lenient):
    """A thought of an earlier reply, which is left out."""

    type: Literal["reasoning"]


def joined(content: str | list[InputPart]) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


def _kind(item: Any) -> Any:
    if not isinstance(item, dict):
        return None
    kind = item.get("type")
    return "message" if kind is None else kind if isinstance(kind, str) else None


InputItem = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[InputCall, Tag("function_call")]
    | Annotated[InputAnswer, Tag("function_call_output")]
    | Annotated[InputThought, Tag("reasoning")],
    Discriminator(_kind),
]


class ResponseTool(Lenient):
    """A tool that the client runs."""

    type: Literal["function"]
    name: str = Field(min_length=1, max_length=128)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedResponseTool(Lenient):
    type: Literal["function"]
    name: str


class Reasoning(Strict):
    """summary: thoughts are told whole, so that it changes nothing."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class FormatSettings(Lenient):
    """A schema stands beside its type, other than in chats."""

    type: Literal["text", "json_object", "json_schema"]
    definition: dict[str, Any] | None = Field(None, alias="schema")

    @model_validator(mode="after")
    def _schema_is_there(self) -> FormatSettings:
        if (self.definition is None) is (self.type == "json_schema"):
            raise ValueError("give schema with type=json_schema, and with no other")
        return self

    def as_chat(self) -> dict[str, Any]:
        schema = {} if self.definition is None else {"json_schema": {"schema": self.definition}}
        return {"type": self.type, **schema}


class TextSettings(Strict):
    format: FormatSettings = FormatSettings(type="text", schema=None)
    verbosity: Literal["medium"] | None = None


class ResponsesBody(Common):
    """A body of /v1/responses.

    input: the user's text, or a conversation. instructions: a system message before it.
    """

    input: str | Annotated[list[InputItem], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Limit | None = None
    reasoning: Reasoning = Reasoning()
    text: TextSettings = TextSettings()
    tools: list[ResponseTool] = Field([], max_length=128)
    tool_choice: Literal["auto", "none", "required"] | NamedResponseTool = "auto"
    parallel_tool_calls: bool = True
    include: list[Literal["message.output_text.logprobs"]] = Field([])
    top_logprobs: int = Field(0, ge=0, le=MAX_TOP_LOGPROBS)

    names: ClassVar = {
        "messages": "input",
        "max_tokens": "max_output_tokens",
        "reasoning_effort": "reasoning.effort",
        "response_format": "text.format",
        "logprobs": "include",
    }
    """What a field of a chat is called here."""

    @model_validator(mode="after")
    def _alternatives_of_what_is_told(self) -> ResponsesBody:
        if self.top_logprobs and LOGPROBS not in self.include:
            raise ValueError(f"top_logprobs={self.top_logprobs} needs include=[{LOGPROBS!r}]")
        return self

    def as_chat(self) -> ChatBody:
        """The same request of a chat. Raises Refusal where it cannot be one."""
        chat: dict[str, Any] = {
            name: getattr(self, name)
            for name in (*Common.model_fields, "tool_choice", "parallel_tool_calls")
            if name in self.model_fields_set
        }
        chat |= {
            "messages": self._messages(),
            "tools": [
                {"type": "function", "function": tool.model_dump(exclude_none=True)}
                for tool in self.tools
            ],
            "max_tokens": self.max_output_tokens,
            "reasoning_effort": self.reasoning.effort,
            "response_format": self.text.format.as_chat(),
            "logprobs": LOGPROBS in self.include,
            "top_logprobs": self.top_logprobs,
        }
        if isinstance(self.tool_choice, NamedResponseTool):
            chat["tool_choice"] = {"type": "function", "function": {"name": self.tool_choice.name}}
        return validated(ChatBody, chat)

    def _messages(self) -> list[dict[str, Any]]:
        """Calls that follow one another, or the words before them, are one message."""
        messages: list[dict[str, Any]] = []
        if self.instructions is not None:
            messages.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*messages, {"role": "user", "content": self.input}]
        for item in self.input:
            if isinstance(item, InputThought):
                continue
            message = item.as_chat()
            calls = message.get("tool_calls")
            if calls and messages and messages[-1]["role"] == "assistant":
                messages[-1]["tool_calls"] = [*messages[-1].get("tool_calls", ()), *calls]
            else:
                messages.append(message)
        return messages
