"""What clients send: every field checked, and what is not offered refused by name."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.requests import ClientDisconnect, Request

from experiments.server.refusal import CLIENT_LEFT, Refusal
from ttc.checks import use_one_of
from ttc.text.encodable import encodable, lone_surrogate

BODY_S = 30
"""Seconds within which a request's body must have come."""

IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
"""Fields that say nothing about the answer."""

WITHOUT_EFFECT: dict[str, Any] = {
    "logprobs": False,
    "echo": False,
    "best_of": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "logit_bias": {},
    "tools": [],
    "response_format": {"type": "text"},
}
"""Fields that are not offered, and the values with which they ask for nothing."""

OF_TOOLS = ("tool_choice", "parallel_tool_calls")
"""Fields that say nothing about the answer of a request without tools."""

MAX_WHOLE = 2**31 - 1
MAX_SEED = 2**63 - 1
MAX_TEMPERATURE = 100
"""The largest numbers of a request, where the server sets no lower limit. They keep what is
computed with them within a machine's own numbers."""


NonEmpty = Annotated[str, Field(min_length=1)]


class ContentPart(BaseModel):
    """A piece of a message."""

    model_config = ConfigDict(extra="forbid", strict=True)
    type: Literal["text"]
    text: str


class FunctionDefinition(BaseModel):
    """What is told of a tool."""

    model_config = ConfigDict(extra="ignore", strict=True)
    name: str = Field(min_length=1, max_length=128)
    description: str = ""
    parameters: dict[str, Any] = {}


class ToolBody(BaseModel):
    """A tool that the client runs."""

    model_config = ConfigDict(extra="ignore", strict=True)
    type: Literal["function"]
    function: FunctionDefinition


class CalledFunction(BaseModel):
    """arguments: as JSON."""

    model_config = ConfigDict(extra="ignore", strict=True)
    name: str
    arguments: str = "{}"

    @property
    def given(self) -> Any:
        """The arguments as chat templates take them; what is no JSON stays text."""
        try:
            return encodable(json.loads(self.arguments or "{}"))
        except (ValueError, RecursionError):
            return self.arguments


class Call(BaseModel):
    """A call that the model has made."""

    model_config = ConfigDict(extra="ignore", strict=True)
    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(BaseModel):
    """A message of a chat. `developer` is today's name of `system`.

    tool_calls: of the assistant. tool_call_id, name: which of them a tool's message answers.
    """

    # clients send an assistant's message back as they got it
    model_config = ConfigDict(extra="ignore", strict=True)
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    @model_validator(mode="after")
    def _null_of_the_assistant_alone(self) -> ChatMessage:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"the {self.role}'s content is null; send a text")
        return self

    @property
    def text(self) -> str:
        """An assistant's null, as a reply has it whose thought was cut off, is an empty text."""
        if self.content is None:
            return ""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content)

    def as_template(self) -> dict[str, Any]:
        """As chat templates take it."""
        message: dict[str, Any] = {"role": self.role, "content": self.text}
        if self.role == "tool":
            message |= {"tool_call_id": self.tool_call_id or "", "name": self.name or ""}
        if self.role == "assistant" and self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.function.name, "arguments": call.function.given},
                }
                for call in self.tool_calls
            ]
        return message


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    include_usage: bool = False


class Body(BaseModel):
    """The fields that both kinds of request have.

    search: a search's name, or an object with its name and settings. max_generated_tokens,
    max_wall_s: the budget of each prompt.
    answer_kind: how answers are read, for searches that compare them.
    thinking_token_budget: the most tokens of a thought; without it `max_tokens` counts these too.
    reasoning_effort: whether to think, and how hard.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    model: str
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    max_tokens: int | None = Field(None, ge=1, le=MAX_WHOLE)
    max_generated_tokens: int | None = Field(None, ge=1, le=MAX_WHOLE)
    max_wall_s: float | None = Field(None, gt=0, le=MAX_WHOLE)
    n: int = Field(1, ge=1, le=MAX_WHOLE)
    temperature: float | None = Field(None, ge=0, le=MAX_TEMPERATURE)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0, le=MAX_WHOLE)
    min_p: float | None = Field(None, ge=0, lt=1)
    seed: int | None = Field(None, ge=-MAX_SEED, le=MAX_SEED)
    stop: NonEmpty | list[NonEmpty] = []
    search: str | dict[str, bool | int | float | str | None] | None = None
    answer_kind: str | None = None
    thinking_token_budget: int | None = Field(None, ge=0, le=MAX_WHOLE)
    reasoning_effort: Literal["none", "low", "medium", "high"] | None = None

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def token_limit(self) -> int | None:
        """Of an answer, None where the request does not say."""
        return self.max_tokens


class ChatBody(Body):
    """A body of /v1/chat/completions. chat_template_kwargs: further variables for the chat
    template. tools: those that the client runs; `tool_choice` "none" leaves them out."""

    messages: list[ChatMessage] = Field(min_length=1)
    tools: list[ToolBody] = Field([], max_length=128)
    tool_choice: Literal["auto", "none"] = "auto"
    parallel_tool_calls: bool = True
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_WHOLE)
    chat_template_kwargs: dict[str, bool | int | float | str | None] = {}

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class CompletionBody(Body):
    """A body of /v1/completions. prompt: a text, or several that are answered side by side."""

    prompt: str | list[str]

    @property
    def prompts(self) -> list[str]:
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    @property
    def token_limit(self) -> int | None:
        """OpenAI's default, where a search has none of its own."""
        if self.max_tokens is None and self.search is None and "+" not in self.model:
            return 16
        return self.max_tokens


async def body_of(request: Request, max_bytes: int) -> bytes:
    """The bytes of a body. Raises Refusal for one that is too long, late, or no JSON by its header:
    a web page may send other kinds to any address without asking."""
    if (
        request.headers.get("content-type", "").partition(";")[0].strip().lower()
        != "application/json"
    ):
        raise Refusal(
            415, "the body must be JSON; send it with the header Content-Type: application/json"
        )
    close = {"Connection": "close"}
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > max_bytes:
                    message = (
                        f"the body is longer than {max_bytes} bytes; send less, or have the server "
                        "started with "
                    )
                    raise Refusal(413, f"{message}serve.max_body_bytes=N", headers=close)
    except TimeoutError:
        raise Refusal(408, f"the body did not come within {BODY_S} s", headers=close) from None
    except ClientDisconnect:
        raise Refusal(CLIENT_LEFT, "the client has left") from None
    return bytes(body)


B = TypeVar("B", bound=Body)

MAX_DEPTH = 500
"""How deep lists and objects of a body may lie in each other."""
_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)


def _check_depth(data: bytes) -> None:
    """Raise RecursionError for a body that is nested too deep. What Python itself reads differs
    between its releases."""
    depth = 0
    for match in _BRACKET.finditer(data):
        bracket = data[match.start()]
        depth += (bracket in b"[{") - (bracket in b"]}")
        if depth > MAX_DEPTH:
            raise RecursionError(f"more than {MAX_DEPTH} deep")


def read(kind: type[B], data: bytes) -> B:
    """A request's body. Raises Refusal for what is no JSON, and for the first field that is wrong
    or unknown."""
    must = f"send an object with model and {'messages' if kind is ChatBody else 'prompt'}"
    try:
        _check_depth(data)
        given = json.loads(data)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise Refusal(400, f"the body is no JSON: {error}; {must}") from error
    except RecursionError as error:
        raise Refusal(400, f"the body is nested too deep; {must}") from error
    except ValueError as error:  # Python reads no longer ones
        raise Refusal(400, "the body holds a number of thousands of digits; give less") from error
    if not isinstance(given, dict):
        raise Refusal(400, f"the body is {type(given).__name__}; {must}")
    check_text(given)
    if not given.get("tools"):
        given = {name: value for name, value in given.items() if name not in OF_TOOLS}
    try:
        return kind.model_validate(
            {name: value for name, value in given.items() if _counts(name, value)}
        )
    except ValidationError as errors:
        first = min(errors.errors(), key=lambda error: RANKS.get(error["type"], 1))
    name = ".".join(str(part) for part in first["loc"] if _is_name(part))
    if first["type"] == "literal_error" and name.endswith(".type"):
        raise Refusal(
            400, f"{name}={shown(first['input'])} is not taken; send text alone", param=name
        )
    if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
        fields = use_one_of(name, kind.model_fields)
        raise Refusal(400, f"{name} is not offered here; leave it out, or {fields}", param=name)
    if first["type"] == "missing":
        raise Refusal(400, f"{name} is missing; the request must hold it", param=name)
    said = first["msg"].removeprefix("Value error, ")
    raise Refusal(400, f"{name}={shown(first['input'])}: {said}", param=name)


def shown(value: Any) -> str:
    """A value in a message: its first characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def check_text(value: Any, name: str = "") -> None:
    """Raise Refusal where a text in a body, or a name, holds half of a character, which nothing can
    encode."""
    if isinstance(value, str):
        place = lone_surrogate(value)
        if place is not None:
            message = (
                f"{name or 'a name'} holds {value[place]!a} at character {place}, half of a "
                "character"
            )
            raise Refusal(
                400, f"{message} (a lone surrogate); send valid Unicode", param=name or None
            )
    elif isinstance(value, dict):
        for key, inner in value.items():
            check_text(key)
            check_text(inner, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            check_text(inner, f"{name}.{place}")


RANKS = {"finite_number": 0, "string_type": 2, "bool_type": 2, "int_type": 2}
"""Of a value that may be of several types, which of the errors is told: the lowest."""


def _is_name(part: str | int) -> bool:
    """Whether a part of an error's place is a field or a number, and no type."""
    return isinstance(part, int) or (
        part.isidentifier() and part not in ("str", "bool", "int", "float")
    )


def _counts(name: str, value: Any) -> bool:
    """Whether a field asks for something."""
    if value is None or name in IGNORED:
        return False
    if name not in WITHOUT_EFFECT:
        return True
    nothing = WITHOUT_EFFECT[name]
    is_number = isinstance(value, bool) != isinstance(nothing, bool)  # logprobs=0 asks for some
    return is_number or value != nothing
