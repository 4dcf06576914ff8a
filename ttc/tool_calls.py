"""A call of a tool, as the model has written it and as it was answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Written(NamedTuple):
    """A call as it was read out of a text.

    start: the place of its first character. error: why it cannot be read, "" where it can.
    """

    name: str
    arguments: Mapping[str, Any]
    start: int
    error: str = ""

    @property
    def key(self) -> str:
        return call_text(self.name, self.arguments)


@dataclass(frozen=True)
class ToolCall:
    """A call that a branch has made.

    answer: what the branch was told, None where the call waits for the caller's answer.
    failed: whether `answer` is an error. error: what the tool itself raised, with its line.
    start, told, end: the branch's tokens with the call are `tokens[start:told]`, those with the
    answer `tokens[told:end]`. Calls that were made together have the same.
    opened: whether the text of the answer opened a thought at its end; None where it changed
    nothing.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    answer: str | None = None
    failed: bool = False
    start: int = 0
    told: int = 0
    end: int = 0
    opened: bool | None = None
    error: str | None = None

    @property
    def key(self) -> str:
        return call_text(self.name, self.arguments)


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{name}({json.dumps(arguments, sort_keys=True, ensure_ascii=False, default=str)})"


class JsonCall(NamedTuple):
    """How a call is written that is a JSON object: between a mark and what closes it, with the keys
    of its name and its arguments; name "": the name is the key of the arguments."""

    mark: str
    close: str
    name: str
    arguments: str
