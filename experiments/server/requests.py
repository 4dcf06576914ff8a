"""What clients send: every field checked, and what is not offered refused by name."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from math import inf
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import ErrorDetails, from_json
from starlette.requests import ClientDisconnect, Request

from experiments.server.access import log
from experiments.server.refusal import CLIENT_LEFT, Refusal
from ttc.checks import use_one_of

BODY_S = 30
"""Seconds within which a request's body must have come."""

MAX_WHOLE = 2**31 - 1
MAX_SEED = 2**63 - 1
"""The largest numbers of a request, where the server sets no lower limit. They keep what is
computed with them within a machine's own numbers."""

MAX_TOP_LOGPROBS = 20
"""The likeliest tokens in one place that a request may ask for."""

MAX_STOPS = 16
"""Stop strings of one request: each is looked for after every token."""


def _plain(value: Any) -> Any:
    number = value if isinstance(value, int | float) else 0
    if not isinstance(value, bool | int | float | str | None) or not -inf < number < inf:
        raise ValueError("give a finite number, a text, true, false or null")
    if abs(number) > MAX_WHOLE:
        raise ValueError(f"must be from -{MAX_WHOLE} to {MAX_WHOLE}")
    return value


def _prompt(value: Any) -> Any:
    """A text, several, the numbers of a prompt's tokens, or several lists of these."""
    for prompt in value if isinstance(value, list) and not _is_tokens(value) else [value]:
        if not isinstance(prompt, str) and not _is_tokens(prompt):
            raise ValueError(
                "give a text, the numbers of its tokens, or several of the one or of the other"
            )
    if value == [] or (isinstance(value, list) and len(set(map(type, value))) > 1):
        raise ValueError("give one prompt at least, and all as texts or all as tokens")
    return value


def _is_tokens(value: Any) -> bool:
    """Whether this is a list of numbers of tokens."""
    return (
        isinstance(value, list)
        and value != []
        and all(type(token) is int and 0 <= token <= MAX_WHOLE for token in value)
    )


def only(accepted: Any, way_out: str = "leave it out") -> AfterValidator:
    """For a field that is not offered: it is taken with the value that asks for nothing."""

    def check(value: Any) -> Any:
        if not same(value, accepted):
            raise ValueError(f"not offered here; {way_out}")
        return value

    return AfterValidator(check)


def same(value: Any, accepted: Any) -> bool:
    """As JSON has it, where false is not 0."""
    return bool(value == accepted) and isinstance(value, bool) is isinstance(accepted, bool)


Plain = Annotated[Any, AfterValidator(_plain)]
NonEmpty = Annotated[str, Field(min_length=1)]
Limit = Annotated[int, Field(ge=1, le=MAX_WHOLE)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class Fields(BaseModel):
    """A JSON object. A field that is null counts as left out."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, fields: Any, info: ValidationInfo) -> Any:
        """Also without unknown fields, where there is a context, which has their names then."""
        if not isinstance(fields, dict):
            return fields
        own = {field.alias or name: field for name, field in cls.model_fields.items()}
        takes_null = {name for name, field in own.items() if field.default is None}
        fields = {n: v for n, v in fields.items() if v is not None or n in takes_null}
        if info.context is None or cls.model_config["extra"] == "ignore":
            return fields
        info.context.update(dict.fromkeys(name for name in fields if name not in own))
        return {name: value for name, value in fields.items() if name in own}


class Strict(Fields):
    model_config = ConfigDict(extra="forbid")


class Lenient(Fields):
    """What clients send back as they got it, and may have more fields than are read."""

    model_config = ConfigDict(extra="ignore")


class TextPart(Lenient):
    """A piece of a message. What the assistant has refused is among its words."""

    type: str
    text: str

    @model_validator(mode="before")
    @classmethod
    def _refusal_is_text(cls, part: Any) -> Any:
        if isinstance(part, dict) and part.get("type") == "refusal":
            return {"type": "text", "text": part.get("refusal")}
        return part


class ContentPart(TextPart):
    type: Literal["text"]


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
    refusal: the assistant's words, where it has no others.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    refusal: str | None = None
    audio: Annotated[Any, only(None)] = None
    function_call: Annotated[Any, only(None, "give tool_calls in its place")] = None

    @model_validator(mode="after")
    def _null_of_the_assistant_alone(self) -> ChatMessage:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"the {self.role}'s content is null; send a text")
        return self

    def as_message(self) -> dict[str, Any]:
        """As `ttc.text.conversation.read_messages` takes it."""
        beside = {"refusal", "audio", "function_call"}
        message = self.model_dump(exclude_unset=True, exclude=beside)
        return message | ({"content": self.refusal} if self.refusal and not self.content else {})


class StreamOptions(Strict):
    """include_obfuscation: nothing is obfuscated, whatever it is."""

    include_usage: bool = False
    include_obfuscation: bool = False
    continuous_usage_stats: Annotated[Any, only(False)] = False


class NamedSchema(Lenient):
    """A JSON schema. Answers keep to it whether `strict` asks for it or not."""

    definition: dict[str, Any] | None = Field(None, alias="schema")


class ResponseFormat(Strict):
    """What the answer has to be: any text, any JSON object, or JSON by a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _schema_is_there(self) -> ResponseFormat:
        if (self.json_schema is None) is (self.type == "json_schema"):
            raise ValueError("give json_schema with type=json_schema, and with no other")
        if self.json_schema is not None and self.json_schema.definition is None:
            raise ValueError("json_schema holds no schema; give one as json_schema.schema")
        return self

    @property
    def schema_option(self) -> Any:
        """As `search.solve` takes it."""
        if self.json_schema is not None:
            return self.json_schema.definition
        return True if self.type == "json_object" else None


class Common(Strict):
    """The fields that all kinds of request have.

    search: a search's name, or an object with its name and settings. max_generated_tokens,
    max_wall_s: the budget of each prompt.
    answer_kind: how answers are read, for searches that compare them.
    thinking_token_budget: the most tokens of a thought; without it `max_tokens` counts these too.
    repetition_penalty: see `ttc.Sampling`.
    """

    model: str
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    max_generated_tokens: Limit | None = None
    max_wall_s: float | None = Field(None, gt=0, le=MAX_WHOLE)
    temperature: float | None = Field(None, ge=0, le=MAX_WHOLE)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=MAX_WHOLE)
    min_p: float | None = Field(None, ge=0, lt=1)
    repetition_penalty: float | None = Field(None, ge=1e-3, le=1e3)
    seed: int | None = Field(None, ge=-MAX_SEED, le=MAX_SEED)
    search: str | dict[str, Plain] = {}
    answer_kind: str | None = None
    thinking_token_budget: int | None = Field(None, ge=0, le=MAX_WHOLE)

    # these say nothing about the answer
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    request_id: Any = None
    previous_response_id: Annotated[
        Any, only(None, "nothing is stored, so send the whole conversation as input")
    ] = None

    nothing: ClassVar[dict[str, Any]] = {
        "add_generation_prompt": True,
        "background": False,
        "bad_words": [],
        "best_of": 1,
        "continue_final_message": False,
        "echo": False,
        "frequency_penalty": 0,
        "function_call": "none",
        "functions": [],
        "ignore_eos": False,
        "include_reasoning": True,
        "include_stop_str_in_output": False,
        "length_penalty": 1,
        "logit_bias": {},
        "min_tokens": 0,
        "modalities": ["text"],
        "presence_penalty": 0,
        "priority": 0,
        "return_token_ids": False,
        "return_tokens_as_token_ids": False,
        "separate_reasoning": True,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True,
        "stop_token_ids": [],
        "suffix": "",
        "truncation": "disabled",
        "use_beam_search": False,
        "verbosity": "medium",
    }
    """What is not offered: it is taken with the value that asks for nothing."""


class Body(Common):
    """The fields that chats and completions have.

    reasoning_effort: whether to think, and how hard.
    """

    max_tokens: Limit | None = None
    n: Limit = 1
    stop: NonEmpty | Annotated[list[NonEmpty], Field(max_length=MAX_STOPS)] = []
    reasoning_effort: Effort | None = None
    response_format: ResponseFormat = ResponseFormat(type="text")

    @property
    def kept_logprobs(self) -> int | None:
        """Of how many of the likeliest tokens the log-probabilities are told beside those of the
        answer's tokens; None where not even these are."""
        return None

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def token_limit(self) -> int | None:
        """Of an answer, None where the request does not say."""
        return self.max_tokens


class NamedFunction(Lenient):
    name: str


class NamedTool(Lenient):
    """The tool that is to be called."""

    type: Literal["function"]
    function: NamedFunction


class ChatBody(Body):
    """A body of /v1/chat/completions.

    chat_template_kwargs: further variables for the chat template. tools: those that the client
    runs; `tool_choice` "none" leaves them out.
    logprobs, top_logprobs: whether the log-probabilities of the answer's tokens are told, and of
    how many of the likeliest ones in each place.
    """

    messages: list[ChatMessage] = Field(min_length=1)
    tools: list[ToolBody] = Field([], max_length=128)
    tool_choice: Literal["auto", "none", "required"] | NamedTool = "auto"
    parallel_tool_calls: bool = True
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=MAX_TOP_LOGPROBS)
    max_completion_tokens: Limit | None = None
    chat_template_kwargs: dict[str, Plain] = {}

    nothing: ClassVar = Common.nothing | {"add_special_tokens": False}

    @model_validator(mode="after")
    def _fields_that_need_others(self) -> ChatBody:
        if self.top_logprobs and not self.logprobs:
            raise ValueError(f"top_logprobs={self.top_logprobs} needs logprobs=true")
        return self

    @property
    def wanted_tool(self) -> str:
        """The tool that must be called, or what `tool_choice` says where none is named."""
        choice = self.tool_choice
        return choice if isinstance(choice, str) else choice.function.name

    @property
    def kept_logprobs(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class CompletionBody(Body):
    """A body of /v1/completions.

    prompt: a text or the numbers of its tokens, or several of them that are answered side by side.
    logprobs: of how many of the likeliest tokens in each place the log-probabilities are told,
    beside those of the text's.
    """

    prompt: Annotated[Any, AfterValidator(_prompt)]
    logprobs: Annotated[
        Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None,
        BeforeValidator(lambda value: None if value is False else value),
    ] = None
    tools: Annotated[Any, only([])] = []
    tool_choice: Literal["auto", "none"] = "none"
    parallel_tool_calls: bool = False

    nothing: ClassVar = Common.nothing | {"add_special_tokens": True}

    @property
    def prompts(self) -> list[str | list[int]]:
        prompt: Any = self.prompt
        return [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else list(prompt)

    @property
    def kept_logprobs(self) -> int | None:
        return self.logprobs

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


B = TypeVar("B", bound=Common)


def read(kind: type[B], data: bytes, ignore_unknown: bool = False) -> B:
    """A request's body. Raises Refusal for what is no JSON, and for a field that is wrong or
    unknown.

    ignore_unknown: pass over fields that such a request does not have, with a line in the log.
    """
    must = f"send an object with {' and '.join(required(kind))}"
    try:
        fields = from_json(data)
    except ValueError as error:
        raise Refusal(400, f"the body is no JSON that can be read: {error}; {must}") from error
    if not isinstance(fields, dict):
        raise Refusal(400, f"the body is {type(fields).__name__}; {must}")
    for name in [name for name in fields if name in kind.nothing]:
        value = fields.pop(name)
        if value is not None and not same(value, kind.nothing[name]):
            message = f"{name}={shown(value)}: not offered here; leave it out"
            raise Refusal(400, message, param=name)
    passed_over: dict[str, None] | None = {} if ignore_unknown else None
    body = validated(kind, fields, passed_over)
    if passed_over:
        log.info("passed over, as no request has them: %.200a", ", ".join(passed_over))
    return body


def validated(
    kind: type[B], fields: Mapping[str, Any], passed_over: dict[str, None] | None = None
) -> B:
    """Raises Refusal for a field that is wrong or unknown. passed_over: takes the names of unknown
    ones, which are no fault then."""
    try:
        return kind.model_validate(fields, context=passed_over)
    except ValidationError as errors:
        # of the types that a value may have, the error within one says most
        first = max(errors.errors(), key=_depth)
    name = ".".join(_names(first))
    message = f"{name}={shown(first['input'])}: {first['msg'].removeprefix('Value error, ')}"
    if not first["loc"]:
        message = first["msg"].removeprefix("Value error, ")
        name = message.partition("=")[0].partition(" ")[0]
    elif first["type"].startswith("union_tag"):
        name = f"{name}.type"
        kinds = first["ctx"].get("expected_tags", "one of an item")
        message = f"{name}={shown(first['ctx'].get('tag'))} is not taken; use {kinds}"
    elif first["type"] == "literal_error" and name.endswith(".type"):
        message = f"{name}={shown(first['input'])} is not taken; use {first['ctx']['expected']}"
    elif first["type"] == "extra_forbidden":
        others = f", or {use_one_of(name, kind.model_fields)}" if len(first["loc"]) == 1 else ""
        message = f"{name} is not offered here; leave it out{others}"
    elif first["type"] == "missing":
        message = f"{name} is missing; the request must hold it"
    raise Refusal(400, message, param=name)


def required(kind: type[Common]) -> list[str]:
    """The fields that a request must have."""
    return [name for name, field in kind.model_fields.items() if field.is_required()]


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


def _depth(error: ErrorDetails) -> tuple[int, bool]:
    """How much an error says: how far within the request it is, and whether the type was right."""
    return len(error["loc"]), not error["type"].endswith("_type")


def _names(error: ErrorDetails) -> list[str]:
    """The fields and numbers on the way to an error, without the types between them."""
    types = {"str", "message", "function_call", "function_call_output"}
    types |= {kind.__name__ for of in (Strict, Lenient) for kind in of.__subclasses__()}
    path = error["loc"]
    of_field = error["type"] in ("extra_forbidden", "missing", "value_error")
    sure = {0, len(path) - 1 if of_field else 0}
    return [
        str(part)
        for place, part in enumerate(path)
        if place in sure or isinstance(part, int) or (part.isidentifier() and part not in types)
    ]
