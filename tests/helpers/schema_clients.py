"""A program of its own that asks a server for objects through clients of others, and prints what it
got as JSON. It imports nothing of this project: `python schema_clients.py URL MODEL CLIENT`."""

from __future__ import annotations

import sys
from typing import Any, Literal

from openai import OpenAI
from pydantic import BaseModel, ConfigDict, Field

QUESTION = "The hotel Adler in Wien has 40 rooms and a garden. Describe it."


class Hotel(BaseModel):
    """A hotel."""

    name: str = Field(max_length=24)
    rooms: int = Field(ge=1, le=999)
    stars: Literal[1, 2, 3, 4, 5]
    extras: list[Literal["garden", "pool", "bar"]] = Field(max_length=3)


class AnyObject(BaseModel):
    model_config = ConfigDict(extra="allow")


def asked(client: OpenAI, model: str) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 300,
        "seed": 5,
    }


def by_openai(client: OpenAI, model: str) -> Any:
    reply = client.chat.completions.parse(response_format=Hotel, **asked(client, model))
    return reply.choices[0].message.parsed


def by_instructor(mode: str, kind: type[BaseModel] = Hotel) -> Any:
    def ask(client: OpenAI, model: str) -> Any:
        import instructor

        wrapped = instructor.from_openai(client, mode=getattr(instructor.Mode, mode))
        return wrapped.chat.completions.create(
            response_model=kind, max_retries=0, **asked(client, model)
        )

    return ask


def by_langchain(method: str) -> Any:
    def ask(client: OpenAI, model: str) -> Any:
        from langchain_openai import ChatOpenAI

        chat = ChatOpenAI(
            base_url=str(client.base_url), api_key="unused", model=model, max_tokens=300, seed=5
        )
        return chat.with_structured_output(Hotel, method=method).invoke(QUESTION)

    return ask


CLIENTS = {
    "openai.parse": by_openai,
    "instructor.JSON": by_instructor("JSON", AnyObject),
    "instructor.JSON_SCHEMA": by_instructor("JSON_SCHEMA"),
    "instructor.TOOLS": by_instructor("TOOLS"),
    "langchain.json_schema": by_langchain("json_schema"),
    "langchain.function_calling": by_langchain("function_calling"),
}


if __name__ == "__main__":
    url, name, which = sys.argv[1:]
    found = CLIENTS[which](OpenAI(base_url=url, api_key="unused", max_retries=0), name)
    assert isinstance(found, BaseModel), found
    print(found.model_dump_json())
