"""What clients send: every field checked, and what is not offered refused by name."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request

from experiments.server.refusal import CLIENT_LEFT, Refusal
from ttc.checks import use_one_of

OF_TOOLS = ("tools", "tool_choice", "parallel_tool_calls")
"""Fields that say nothing about the answer of a request without tools."""

BODY_S = 30
"""Seconds within which a request's body must have come."""

MAX_WHOLE = 2**31 - 1
MAX_SEED = 2**63 - 1
"""The largest numbers of a request, where the server sets no lower limit. They keep what is
computed with them within a machine's own numbers."""

MAX_STOPS = 16
"""Stop strings of one request: each is looked for after every token."""


def _plain(value: Any) -> Any:
    number = value if isinstance(value, int | float) else 0
    if not isinstance(value, bool | int | float | str | None) or not -inf < number < inf:
        raise ValueError("give a finite number, a text, true, false or null")
    if abs(number) > MAX_WHOLE:
        raise ValueError(f"must be from -{MAX_WHOLE} to {MAX_WHOLE}")
    return value


def _only(value: Any) -> AfterValidator:
    """For a field that is not offered: it is taken with the value that asks for nothing."""

    def check(given: Any) -> Any:
        if given != value or isinstance(given, bool) != isinstance(value, bool):
            raise ValueError("not offered here; leave it out")
        return given

    return AfterValidator(check)


Plain = Annotated[Any, AfterValidator(_plain)]
NonEmpty = Annotated[str, Field(min_length=1)]
Limit = Annotated[int, Field(ge=1, le=MAX_WHOLE)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Lenient(BaseModel):
    """What clients send back as they got it, and may have more fields than are read."""

    model_config = ConfigDict(extra="ignore", strict=True)


class ContentPart(Strict):
    """A piece of a message."""

    type: Literal["text"]
    text: str


class FunctionDefinition(Lenient):
    """What is told of a tool."""

    name: str = Field(min_length=1, max_length=128)
    description: str = ""
    parameters: dict[str, Any] = {}
    strict: bool = False


class ToolBody(Lenient):
    """A tool that the client runs."""

    type: Literal["function"]
    function: FunctionDefinition


class CalledFunction(Lenient):
    """arguments: as JSON."""

    name: str
    arguments: str = "{}"


class Call(Lenient):
    """A call that the model has made."""

    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Lenient):
    """A message of a chat. `developer` is today's name of `system`.

    tool_calls: of the assistant. tool_call_id, name: which of them a tool's message answers.
    """

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


class StreamOptions(Lenient):
    include_usage: bool = False


class NamedSchema(Lenient):
    """A JSON schema. Answers keep to it whether `strict` asks for it or not."""

    asked: dict[str, Any] = Field({}, alias="schema")


class ResponseFormat(Strict):
    """What the answer has to be: any text, any JSON object, or JSON by a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _schema_is_there(self) -> ResponseFormat:
        if (self.json_schema is None) is (self.type == "json_schema"):
            raise ValueError("give json_schema with type=json_schema, and with no other")
        return self

    @property
    def schema_option(self) -> Any:
        """As `search.solve` takes it."""
        if self.json_schema is not None:
            return self.json_schema.asked
        return True if self.type == "json_object" else None


class Body(Strict):
    """The fields that both kinds of request have.

    search: a search's name, or an object with its name and settings. max_generated_tokens,
    max_wall_s: the budget of each prompt.
    answer_kind: how answers are read, for searches that compare them.
    thinking_token_budget: the most tokens of a thought; without it `max_tokens` counts these too.
    reasoning_effort: whether to think, and how hard.
    """

    model: str
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    max_tokens: Limit | None = None
    max_generated_tokens: Limit | None = None
    max_wall_s: float | None = Field(None, gt=0, le=MAX_WHOLE)
    n: Limit = 1
    temperature: float | None = Field(None, ge=0, le=MAX_WHOLE)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=MAX_WHOLE)
    min_p: float | None = Field(None, ge=0, lt=1)
    seed: int | None = Field(None, ge=-MAX_SEED, le=MAX_SEED)
    stop: NonEmpty | Annotated[list[NonEmpty], Field(max_length=MAX_STOPS)] = []
    search: str | dict[str, Plain] = {}
    answer_kind: str | None = None
    thinking_token_budget: int | None = Field(None, ge=0, le=MAX_WHOLE)
    reasoning_effort: Literal["none", "low", "medium", "high"] | None = None

    # not offered: taken where they ask for nothing
    logprobs: Annotated[Any, _only(False)] = False
    echo: Annotated[Any, _only(False)] = False
    best_of: Annotated[Any, _only(1)] = 1
    presence_penalty: Annotated[Any, _only(0)] = 0
    frequency_penalty: Annotated[Any, _only(0)] = 0
    repetition_penalty: Annotated[Any, _only(1)] = 1
    length_penalty: Annotated[Any, _only(1)] = 1
    min_tokens: Annotated[Any, _only(0)] = 0
    ignore_eos: Annotated[Any, _only(False)] = False
    skip_special_tokens: Annotated[Any, _only(True)] = True
    logit_bias: dict[str, float] = Field({}, max_length=0)
    response_format: ResponseFormat = ResponseFormat(type="text")

    # these say nothing about the answer
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None

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
    functions: Annotated[Any, _only([])] = []
    modalities: Annotated[Any, _only(["text"])] = ["text"]
    add_generation_prompt: Annotated[Any, _only(True)] = True
    max_completion_tokens: Limit | None = None
    chat_template_kwargs: dict[str, Plain] = {}

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class CompletionBody(Body):
    """A body of /v1/completions. prompt: a text, or several that are answered side by side."""

    prompt: str | Annotated[list[str], Field(min_length=1)]

    @property
    def prompts(self) -> list[str]:
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    @property
    def token_limit(self) -> int | None:
        """OpenAI's default, where a search has none of its own."""
        if self.max_tokens is None and not self.search and "+" not in self.model:
            return 16
        return self.max_tokens


async def body_of(request: Request, max_bytes: int) -> bytes:
    """The bytes of a body. Raises Refusal for one that is too long, late, or no JSON by its header:
    a web page may send other kinds to any address without asking."""
    kind = request.headers.get("content-type", "").partition(";")[0]
    if kind.strip().lower() != "application/json":
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
                        "started with serve.max_body_bytes=N"
                    )
                    raise Refusal(413, message, headers=close)
    except TimeoutError:
        raise Refusal(408, f"the body did not come within {BODY_S} s", headers=close) from None
    except ClientDisconnect:
        raise Refusal(CLIENT_LEFT, "the client has left") from None
    return bytes(body)


B = TypeVar("B", bound=Body)


def read(kind: type[B], data: bytes) -> B:
    """A request's body. Raises Refusal for what is no JSON, and for a field that is wrong or
    unknown."""
    must = f"send an object with model and {'messages' if kind is ChatBody else 'prompt'}"
    try:
        given = from_json(data)
    except ValueError as error:
        raise Refusal(400, f"the body is no JSON that can be read: {error}; {must}") from error
    if not isinstance(given, dict):
        raise Refusal(400, f"the body is {type(given).__name__}; {must}")
    left_out = () if given.get("tools") else OF_TOOLS
    given = {n: value for n, value in given.items() if value is not None and n not in left_out}
    try:
        return kind.model_validate(given)
    except ValidationError as errors:
        # of the types that a value may have, the error within one says most
        first = max(errors.errors(), key=lambda error: len(error["loc"]))
    name = ".".join(str(part) for part in first["loc"] if _is_name(part))
    message = f"{name}={shown(first['input'])}: {first['msg'].removeprefix('Value error, ')}"
    content = name.startswith("messages")
    if first["type"] == "literal_error" and content and name.endswith(".type"):
        message = f"{name}={shown(first['input'])} is not taken; send text alone"
    elif first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
        fields = use_one_of(name, kind.model_fields)
        message = f"{name} is not offered here; leave it out, or {fields}"
    elif first["type"] == "missing":
        message = f"{name} is missing; the request must hold it"
    raise Refusal(400, message, param=name)


def check_most(name: str, value: float | None, limit: float | None) -> None:
    """Raise Refusal for a number of a request that is beyond the server's limit, if both are."""
    if value is not None and limit is not None and value > limit:
        raise Refusal(
            400, f"{name}={value} is more than this server's {limit}; give less", param=name
        )


def shown(value: Any) -> str:
    """A value in a message: its first characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _is_name(part: str | int) -> bool:
    """Whether a part of an error's place is a field or a number, and no type."""
    return isinstance(part, int) or (part.isidentifier() and part != "str")
