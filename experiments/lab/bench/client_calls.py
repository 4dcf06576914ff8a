"""A program of its own that calls a server through clients of others, and prints what came back as
JSON. It imports nothing of this project: `python -I client_calls.py URL MODEL CALL`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

QUESTION = "The hotel Adler in Wien has 40 rooms and a garden. Describe it."
TOKENS = 300
"""Of an object; other answers have fewer."""


class Hotel(BaseModel):
    """A hotel."""

    name: str = Field(max_length=24)
    rooms: int = Field(ge=1, le=999)
    stars: Literal[1, 2, 3, 4, 5]
    extras: list[Literal["garden", "pool", "bar"]] = Field(max_length=3)


class AnyObject(BaseModel):
    model_config = ConfigDict(extra="allow")


class Server:
    """url: ends with /v1."""

    def __init__(self, url: str, model: str):
        self.url = url
        self.model = model
        self.openai: dict[str, Any] = {"base_url": url, "api_key": "unused", "max_retries": 0}

    def chat(self, **more: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": QUESTION}]
        return {"model": self.model, "messages": messages, "max_tokens": 30, "seed": 5} | more


Call = Callable[[Server], Any]

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "describe",
        "description": "Describe a hotel.",
        "parameters": Hotel.model_json_schema(),
    },
}


def joined(pieces: Any) -> str:
    return "".join(piece or "" for piece in pieces)


def hotels(calls: Any) -> Any:
    """The last of them; each has to be one."""
    return [Hotel.model_validate_json(call.function.arguments) for call in calls][-1]


# ---------------------------------------------------------------- openai


def openai_chat(**more: Any) -> Call:
    def ask(server: Server) -> Any:
        from openai import OpenAI

        reply = OpenAI(**server.openai).chat.completions.create(**server.chat(**more))
        if more.get("stream"):
            return joined(chunk.choices[0].delta.content for chunk in reply if chunk.choices)
        (choice,) = reply.choices
        if more.get("logprobs"):
            assert (
                joined(token.token for token in choice.logprobs.content) == choice.message.content
            )
        if "tools" in more:
            return hotels(choice.message.tool_calls)
        return choice.message.content

    return ask


def openai_parse(server: Server) -> Any:
    from openai import OpenAI

    asked = server.chat(max_tokens=TOKENS)
    reply = OpenAI(**server.openai).chat.completions.parse(response_format=Hotel, **asked)
    return reply.choices[0].message.parsed


def openai_completions(**more: Any) -> Call:
    def ask(server: Server) -> Any:
        from openai import OpenAI

        asked: Any = {
            "model": server.model,
            "prompt": "The sky is",
            "max_tokens": 30,
            "seed": 5,
        } | more
        reply = OpenAI(**server.openai).completions.create(**asked)
        if more.get("stream"):
            return joined(chunk.choices[0].text for chunk in reply if chunk.choices)
        (choice,) = reply.choices
        if "logprobs" in more:
            assert joined(choice.logprobs.tokens) == choice.text
        return choice.text

    return ask


def openai_responses(**more: Any) -> Call:
    def ask(server: Server) -> Any:
        from openai import OpenAI

        asked: Any = {"model": server.model, "input": QUESTION, "max_output_tokens": 30} | more
        reply = OpenAI(**server.openai).responses.create(**asked)
        if more.get("stream"):
            events = list(reply)
            text = joined(e.delta for e in events if e.type == "response.output_text.delta")
            assert text == events[-1].response.output_text
            return text
        return reply.output_text

    return ask


def openai_responses_parse(server: Server) -> Any:
    from openai import OpenAI

    asked: Any = {"model": server.model, "input": QUESTION, "max_output_tokens": TOKENS}
    return OpenAI(**server.openai).responses.parse(text_format=Hotel, **asked).output_parsed


# ---------------------------------------------------------------- others


def instructor(mode: str, kind: type[BaseModel] = Hotel) -> Call:
    def ask(server: Server) -> Any:
        import instructor
        from openai import OpenAI

        client = instructor.from_openai(
            OpenAI(**server.openai), mode=getattr(instructor.Mode, mode)
        )
        asked = server.chat(max_tokens=TOKENS)
        return client.chat.completions.create(response_model=kind, max_retries=0, **asked)

    return ask


def langchain(use: Callable[[Any], Any], **more: Any) -> Call:
    def ask(server: Server) -> Any:
        from langchain_openai import ChatOpenAI

        given: Any = {"model": server.model, "max_tokens": TOKENS, "extra_body": {"seed": 5}}
        given |= server.openai | more
        return use(ChatOpenAI(**given))

    return ask


def litellm(**more: Any) -> Call:
    def ask(server: Server) -> Any:
        import litellm

        name = f"openai/{server.model}"
        asked = server.chat(**more) | {"model": name, "api_base": server.url, "api_key": "unused"}
        reply = litellm.completion(num_retries=0, **asked)
        if more.get("stream"):
            return joined(chunk.choices[0].delta.content for chunk in reply)
        (message,) = (choice.message for choice in reply.choices)
        if "tools" in more:
            return hotels(message.tool_calls)
        return Hotel.model_validate_json(message.content) if more else message.content

    return ask


def agents(model: str, kind: type[BaseModel] | None = None) -> Call:
    """OpenAI's Agents SDK. model: which of its models speaks to the server."""

    def ask(server: Server) -> Any:
        import agents
        from openai import AsyncOpenAI

        agents.set_tracing_disabled(True)
        spoken = getattr(agents, model)(server.model, AsyncOpenAI(**server.openai))
        settings = agents.ModelSettings(max_tokens=TOKENS, extra_body={"seed": 5})
        agent: Any = agents.Agent("clerk", model=spoken, model_settings=settings, output_type=kind)
        return agents.Runner.run_sync(agent, QUESTION).final_output

    return ask


def pydantic_ai(kind: Any) -> Call:
    def ask(server: Server) -> Any:
        from pydantic_ai import Agent
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        provider = OpenAIProvider(base_url=server.url, api_key="unused")
        model = OpenAIChatModel(server.model, provider=provider)
        settings: Any = {"max_tokens": TOKENS, "seed": 7}
        return Agent(model, output_type=kind, model_settings=settings).run_sync(QUESTION).output

    return ask


def dspy(server: Server) -> Any:
    import dspy

    given: Any = {"api_base": server.url, "api_key": "unused", "num_retries": 0, "cache": False}
    return dspy.LM(f"openai/{server.model}", max_tokens=30, seed=5, **given)(QUESTION)[0]


def lm_eval(chat: bool) -> Call:
    def ask(server: Server) -> Any:
        from lm_eval.api.instance import Instance
        from lm_eval.models.api_models import JsonChatStr
        from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

        given: Any = {"tokenizer_backend": None, "num_concurrent": 1, "max_retries": 1}
        path = "chat/completions" if chat else "completions"
        kind = LocalChatCompletion if chat else LocalCompletionsAPI
        model = kind(base_url=f"{server.url}/{path}", model=server.model, **given)
        text = JsonChatStr(json.dumps(server.chat()["messages"])) if chat else "The sky is"
        until = {"until": ["\n\n"], "max_gen_toks": 20, "do_sample": False}
        return model.generate_until([Instance("generate_until", {}, (text, until), 0)])[0]

    return ask


def with_output(method: str) -> Callable[[Any], Any]:
    return lambda chat: chat.with_structured_output(Hotel, method=method).invoke(QUESTION)


def streamed(chat: Any) -> str:
    return joined(piece.content for piece in chat.stream(QUESTION))


def tool_arguments(chat: Any) -> Hotel:
    calls = chat.bind_tools([TOOL], tool_choice="any").invoke(QUESTION).tool_calls
    return [Hotel.model_validate(call["args"]) for call in calls][-1]


NAMED = {"type": "function", "function": {"name": "describe"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "h", "schema": Hotel.model_json_schema()}}

CALLS: dict[str, Call] = {
    "openai chat": openai_chat(),
    "openai chat, streamed": openai_chat(stream=True, stream_options={"include_usage": True}),
    "openai chat, logprobs": openai_chat(logprobs=True, top_logprobs=3),
    "openai chat, a tool required": openai_chat(
        tools=[TOOL], tool_choice="required", max_tokens=TOKENS
    ),
    "openai chat, a tool named": openai_chat(tools=[TOOL], tool_choice=NAMED, max_tokens=TOKENS),
    "openai chat, no effort": openai_chat(reasoning_effort="none"),
    "openai chat, effort": openai_chat(reasoning_effort="minimal"),
    "openai chat, parse": openai_parse,
    "openai completions": openai_completions(),
    "openai completions, streamed": openai_completions(stream=True),
    "openai completions, logprobs": openai_completions(logprobs=3),
    "openai completions, token numbers": openai_completions(prompt=[504, 2986, 314]),
    "openai completions, echo": openai_completions(echo=True),  # as lm_eval's loglikelihood
    "openai responses": openai_responses(instructions="Be short."),
    "openai responses, streamed": openai_responses(stream=True),
    "openai responses, parse": openai_responses_parse,
    "instructor JSON": instructor("JSON", AnyObject),  # which asks for any object
    "instructor JSON_SCHEMA": instructor("JSON_SCHEMA"),
    "instructor TOOLS": instructor("TOOLS"),
    "langchain-openai chat": langchain(lambda chat: chat.invoke(QUESTION).content),
    "langchain-openai chat, streamed": langchain(streamed),
    "langchain-openai responses": langchain(
        lambda chat: joined(part["text"] for part in chat.invoke(QUESTION).content),
        use_responses_api=True,
    ),
    "langchain-openai tools": langchain(tool_arguments),
    "langchain-openai json_schema": langchain(with_output("json_schema")),
    "langchain-openai function_calling": langchain(with_output("function_calling")),
    "litellm chat": litellm(),
    "litellm chat, streamed": litellm(stream=True),
    "litellm tools": litellm(tools=[TOOL], tool_choice="required", max_tokens=TOKENS),
    "litellm json_schema": litellm(response_format=SCHEMA, max_tokens=TOKENS),
    "openai-agents chat": agents("OpenAIChatCompletionsModel"),
    "openai-agents chat, an object": agents("OpenAIChatCompletionsModel", Hotel),
    "openai-agents responses": agents("OpenAIResponsesModel"),
    "openai-agents responses, an object": agents("OpenAIResponsesModel", Hotel),
    "pydantic-ai-slim chat": pydantic_ai(str),
    "pydantic-ai-slim an object": pydantic_ai(Hotel),
    "dspy chat": dspy,
    "lm_eval chat": lm_eval(chat=True),
    "lm_eval completions": lm_eval(chat=False),
}
"""By the package's name, and what is called. Each asserts what it can of the answer."""


def outcome(server: Server, name: str) -> dict[str, Any]:
    """What came of a call, as a row of the record."""
    package = name.partition(" ")[0]
    try:
        row = {"call": name, "version": version(package)}
    except PackageNotFoundError:
        return {"call": name, "outcome": "missing"}
    try:
        found = CALLS[name](server)
    except Exception as error:
        kind = "refused" if getattr(error, "status_code", None) == 400 else type(error).__name__
        return row | {"outcome": kind, "reason": str(error)[:300]}
    if isinstance(found, BaseModel):
        found = found.model_dump()
    if not found:
        return row | {"outcome": "nothing", "reason": "the answer is empty"}
    return row | {"outcome": "passed", "answer": found}


if __name__ == "__main__":
    url, model, called = sys.argv[1:]
    asyncio.set_event_loop(asyncio.new_event_loop())
    print(json.dumps(outcome(Server(url, model), called)))
