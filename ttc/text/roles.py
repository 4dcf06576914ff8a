"""Messages in the roles that a chat template knows, with every text kept.

Templates differ: some have no system role, some refuse two turns of the user in a row, some leave
out what they do not know. As llama.cpp does, a system text that a template has no place for goes
before the words of the user's next turn. What a template takes as it is stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ttc.errors import InvalidInput

Message = Mapping[str, Any]
"""One message of a chat: its "role", its "content", and what else its template reads."""

Messages = Sequence[Message]
"""One chat."""

BETWEEN = "\n\n"
"""Stands between texts that become one message."""

INSTRUCTING = ("system", "developer")
ROLES = (*INSTRUCTING, "user", "assistant", "tool")


def fitted(
    messages: Sequence[Message],
    template: str,
    bos: str | None,
    write: Callable[[Sequence[Message]], str],
    way_out: str,
) -> list[Message]:
    """The messages as they are where the template writes each text once, else the smallest change
    with which it does. Some templates write a beginning of sequence with each system message; a
    chat has one.

    template: its text. bos: the token that begins a sequence. write: renders a chat, and raises
    anything for one that is refused. way_out: what the error says to do.
    Raises InvalidInput for a template that leaves a text out whatever is changed. One that refuses
    all of it gets the messages as they are, so that its own words are the error.
    """
    chat = list(messages)
    if "developer" not in template:
        chat = [_in_role(m, "system") if m["role"] == "developer" else m for m in chat]
    if [message["role"] for message in chat] == ["user"]:
        return chat  # all templates take this
    left_out = ""
    for candidate in _candidates(chat):
        try:
            role, text = _left_out(candidate, write)
            if not role and not (bos and text.count(bos) > 1 and _begins_once(bos, write)):
                return candidate
        except Exception:  # a template can make Python raise anything
            continue
        left_out = left_out or role
    if left_out:
        raise InvalidInput(
            f"the chat template leaves out a message of the {left_out} in a chat of the roles "
            f"{', '.join(message['role'] for message in messages)}; {way_out}"
        )
    return chat


def as_text(messages: Sequence[Message]) -> str:
    """A chat as one text, for those who read no chats: a user's words where there are no others,
    else each turn after its role."""
    turns = _users_joined(_folded(list(map(_in_words, messages))))
    if len(turns) == 1:
        return str(turns[0]["content"])
    return BETWEEN.join(f"{turn['role'].capitalize()}: {turn['content']}" for turn in turns)


def _begins_once(bos: str, write: Callable[[Sequence[Message]], str]) -> bool:
    """Whether a chat of two turns has one beginning of sequence."""
    roles = ("user", "assistant", "user")
    return write([{"role": role, "content": "?"} for role in roles]).count(bos) == 1


def _candidates(messages: list[Message]) -> Iterator[list[Message]]:
    yield messages
    yield _users_joined(messages)
    head = next((i for i, m in enumerate(messages) if m["role"] not in INSTRUCTING), len(messages))
    first = [_joined(messages[:head])] if head else []
    yield [*first, *_users_joined(_folded(messages[head:]))]
    yield _users_joined(_folded(messages))
    if any(message["role"] == "tool" for message in messages):
        spoken = list(map(_in_words, messages))
        yield _users_joined(spoken)
        yield _users_joined(_folded(spoken))


def _left_out(
    messages: Sequence[Message], write: Callable[[Sequence[Message]], str]
) -> tuple[str, str]:
    """The role of a message whose text is not written exactly once, "" for none, and what is
    written."""
    marks = {
        place: f"TEXT-{place}-OF-THIS-CHAT"
        for place, message in enumerate(messages)
        if not message.get("tool_calls") and str(message["content"]).strip()
    }
    marked = [
        {**message, "content": marks[place]} if place in marks else message
        for place, message in enumerate(messages)
    ]
    text = write(marked)
    lost = (place for place, mark in marks.items() if text.count(mark) != 1)
    return next((str(messages[place]["role"]) for place in lost), ""), text


def _users_joined(messages: Sequence[Message]) -> list[Message]:
    joined = list[Message]()
    for message in messages:
        if message["role"] == "user" and joined and joined[-1]["role"] == "user":
            joined[-1] = _joined([joined[-1], message])
        else:
            joined.append(message)
    return joined


def _folded(messages: Sequence[Message]) -> list[Message]:
    """With what a system says before the words of the user's next turn, or as a turn of the
    user's where none follows."""
    folded = list[Message]()
    waiting = list[Message]()
    for message in messages:
        if message["role"] in INSTRUCTING:
            waiting.append(_in_role(message, "user"))
            continue
        if message["role"] == "user":
            message = _joined([*waiting, message])
        else:
            folded += [_joined(waiting)] if _contents(waiting) else []
        folded.append(message)
        waiting = []
    return folded + ([_joined(waiting)] if _contents(waiting) else [])


def _in_words(message: Message) -> Message:
    """A call, or the answer of a tool, as words, for templates that know neither: as Hermes and
    Qwen write them."""
    if message["role"] == "tool":
        content = f"<tool_response>\n{message['content']}\n</tool_response>"
        return {"role": "user", "content": content}
    calls = [call.get("function", call) for call in message.get("tool_calls") or ()]
    parts = [f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>" for call in calls]
    words = "\n".join([*_contents([message]), *parts])
    return {"role": message["role"], "content": words} if calls else message


def _joined(messages: Sequence[Message]) -> Message:
    return {**messages[-1], "content": BETWEEN.join(_contents(messages))}


def _contents(messages: Sequence[Message]) -> list[str]:
    return [message["content"] for message in messages if message["content"].strip()]


def _in_role(message: Message, role: str) -> Message:
    return {**message, "role": role}
