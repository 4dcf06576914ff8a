"""A chat as a prompt."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from ttc.checks import check_choice, check_kind
from ttc.errors import InvalidInput, refuse
from ttc.text.chat import has_template
from ttc.text.encodable import encodable
from ttc.text.prompt import DefaultWords, PromptTemplate
from ttc.text.roles import INSTRUCTING, ROLES, Message, as_text

PARTS = "a text, or a list of parts such as {'type': 'text', 'text': ...}"


class Talk(str):
    """A conversation as one text, as verifiers are given it.

    messages: the same as a chat, for those that read chats.
    """

    messages: tuple[Message, ...]

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Talk:
        talk = cls(as_text(messages))
        talk.messages = tuple(messages)
        return talk


def chat_of(question: str) -> list[Message]:
    """A question as a chat, of one message where it is no conversation."""
    if isinstance(question, Talk):
        return list(question.messages)
    return [{"role": "user", "content": question}]


def last_words(question: str) -> str:
    """A question alone, without the conversation that it is part of."""
    return question_of(question.messages) if isinstance(question, Talk) else question


@dataclass(frozen=True)
class Conversation(PromptTemplate):
    """A chat in which the user's last message is the question. A search that varies the instruction
    varies this message.

    earlier, later: the messages before it and after it, each with its role and content. last: what
    the message of the question has beside its content.
    """

    instruction: str = "{question}"
    earlier: tuple[Message, ...] = ()
    last: Mapping[str, Any] = field(default_factory=lambda: {"role": "user"})
    later: tuple[Message, ...] = ()

    what: ClassVar[str] = "the last message"
    way_out: ClassVar[str] = (
        "send the user's and the assistant's messages in turn, the user's first"
    )

    @classmethod
    def of(cls, messages: Sequence[Message], template: PromptTemplate | None = None) -> Any:
        """The prompt of `messages`, as `read_messages` gives them.

        template: its system text goes before theirs, its instruction around the question where it
        has one. Raises InvalidInput for a template with solved examples or without a chat.
        """
        template = template or PromptTemplate()
        alone = template.raw or template.chat is False
        refuse(
            {
                "a conversation goes through the chat template; leave raw=true and chat=false out "
                "of the template, or give one text as the problem": alone,
                "a conversation brings its own turns; put the template's examples among its "
                "messages": template.examples,
            }
        )
        settings = {one.name: getattr(template, one.name) for one in fields(PromptTemplate)}
        if isinstance(template.instruction, DefaultWords):
            del settings["instruction"]
        place = place_of_question(messages)
        last = {key: value for key, value in messages[place].items() if key != "content"}
        earlier, later = tuple(messages[:place]), tuple(messages[place + 1 :])
        return cls(**settings, earlier=earlier, last=last, later=later)

    def uses_chat(self, tokenizer: Any) -> bool:
        """Always. Raises InvalidInput where the model has no chat template."""
        if not has_template(tokenizer):
            raise InvalidInput(
                "the model has no chat template; give its whole prompt as one text (on a server: "
                "to /v1/completions)"
            )
        return True

    def question_text(self, question: str) -> str:
        return Talk.of(replace(self, instruction="{question}", system=None).messages(question))

    def messages(self, question: str) -> list[Message]:
        *before, turn = super().messages(question)
        earlier = list(self.earlier)
        if before and earlier and earlier[0]["role"] in INSTRUCTING:
            both = f"{earlier[0]['content']}\n\n{before.pop(0)['content']}"
            earlier[0] = {**earlier[0], "content": both}
        return [*before, *earlier, {**turn, **self.last}, *self.later]


def place_of_question(messages: Sequence[Message]) -> int:
    """Where the user's last message is; the last one where none is the user's."""
    users = [place for place, message in enumerate(messages) if message["role"] == "user"]
    return users[-1] if users else len(messages) - 1


def question_of(messages: Sequence[Message]) -> str:
    question: str = messages[place_of_question(messages)]["content"]
    return question


def read_messages(value: Any, name: str) -> tuple[Message, ...]:
    """Messages as chat templates take them: contents as texts, arguments of calls as values, and
    the names of tools with their answers. What else a message holds stays.

    name: what errors call the messages; they name the number of a message, and the key in it.
    Raises InvalidInput for what is no chat that a model could answer.
    """
    messages = [_read(message, f"{name}[{place}]") for place, message in enumerate(value)]
    if not messages:
        raise InvalidInput(f"{name} holds no messages; give one at least")
    if (role := messages[-1]["role"]) not in ("user", "tool"):
        raise InvalidInput(
            f"the last message is the {role}'s; end with one of the user or of a tool "
            f"({name}[{len(messages) - 1}]['role']). To have an answer go on that is begun, give "
            "the prompt and its beginning as one text without a chat template (in Python "
            "PromptTemplate('{question}', raw=True), on a server /v1/completions), and without the "
            "token that the tokenizer puts before a text itself"
        )
    names = {
        call.get("id"): call["function"]["name"]
        for m in messages
        for call in m.get("tool_calls", ())
    }
    for message in messages:
        if message["role"] == "tool":
            message.setdefault("tool_call_id", "")
            message["name"] = message.get("name") or names.get(message["tool_call_id"], "")
    return tuple(messages)


def _read(value: Any, name: str) -> dict[str, Any]:
    check_kind(name, value, isinstance(value, Mapping), "{'role': ..., 'content': ...}")
    message = dict(value)
    for key in ("role", "content"):
        if key not in message and (key == "role" or not message.get("tool_calls")):
            raise InvalidInput(f"{name} has no {key!r}, but {', '.join(map(repr, message))}")
    check_choice(message["role"], ROLES, f"{name}['role']={message['role']!r} is no role")
    own = message["role"] == "assistant"
    message["content"] = _text(message.get("content"), own, f"{name}['content']")
    calls = message.pop("tool_calls", None)
    if calls and own:
        message["tool_calls"] = list(_read_calls(calls, f"{name}['tool_calls']"))
    return message


def _text(content: Any, own: bool, name: str) -> str:
    """An assistant's None, as a reply has it whose thought was cut off, is an empty text."""
    if isinstance(content, str) or (content is None and own):
        return content or ""
    check_kind(name, content, isinstance(content, list | tuple), PARTS)
    return "\n".join(_part(part, f"{name}[{place}]") for place, part in enumerate(content))


def _part(part: Any, name: str) -> str:
    check_kind(name, part, isinstance(part, Mapping), PARTS)
    if (kind := part.get("type")) != "text":
        raise InvalidInput(f"{name}['type']={kind!r} is not taken; give parts of text alone")
    text = part.get("text")
    check_kind(f"{name}['text']", text, isinstance(text, str), "a text")
    return str(text)


def _read_calls(calls: Any, name: str) -> Iterator[dict[str, Any]]:
    check_kind(name, calls, isinstance(calls, list | tuple), "a list of calls")
    for place, call in enumerate(calls):
        within = f"{name}[{place}]"
        check_kind(within, call, isinstance(call, Mapping), "{'function': {'name': ...}}")
        function = call.get("function")
        named = isinstance(function, Mapping) and isinstance(function.get("name"), str)
        check_kind(f"{within}['function']", function, named, "{'name': ..., 'arguments': ...}")
        arguments = function.get("arguments")
        yield {
            "id": "",
            "type": "function",
            **call,
            "function": {**function, "arguments": _value({} if arguments is None else arguments)},
        }


def _value(arguments: Any) -> Any:
    """Arguments as chat templates take them; what is no JSON stays text."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return encodable(json.loads(arguments or "{}"))
    except (ValueError, RecursionError):
        return arguments
