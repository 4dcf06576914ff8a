"""Tools for models that write no calls of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from ttc.tool_calls import Written
from ttc.tools.base import Tool, Tools
from ttc.tools.formats import ToolFormat


class Letter(ToolFormat):
    """A letter that comes is a call of the tool `count`, with the text before it as its
    argument."""

    ends: ClassVar[tuple[str, ...]] = ("7",)
    inline: ClassVar[bool] = True

    def calls(self, text: str) -> list[Written]:
        if not text.endswith(self.ends):
            return []
        return [Written("count", {"text": text[:-1]}, len(text) - 1)]

    def answered(self, answer: str) -> str:
        return f"[{answer}]"


def letter(end: str) -> Letter:
    """`Letter` of another letter."""
    return type("Letter", (Letter,), {"ends": (end,)})()


def tool(run: Callable[..., Any], name: str = "count", **types: str) -> Tool:
    """A tool of a function. types: of its arguments, by default one text."""
    properties = {key: {"type": kind} for key, kind in (types or {"text": "string"}).items()}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": name, "description": "A tool.", "parameters": parameters}
    return Tool({"type": "function", "function": function}, run)


def counting(run: Callable[..., Any] = lambda text: len(text), **limits: Any) -> Tools:
    """`count` for models that call it by a letter."""
    return Tools([tool(run)], **{"format": Letter(), **limits})
