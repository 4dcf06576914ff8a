"""The tools of an MCP server (https://modelcontextprotocol.io), by the official package `mcp`."""

from __future__ import annotations

import asyncio
import atexit
import shlex
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ttc.checks import check_options
from ttc.errors import InvalidInput, on_failure, refusing
from ttc.text.encodable import encodable
from ttc.tools.base import Tool, ToolError, Tools

T = TypeVar("T")
CONNECT_S = 60.0
"""Seconds for a server to start and to name its tools."""

SPEAK_S = 5.0
"""Seconds for a server that has left a call without an answer to say anything."""


class Connection:
    """A server, reached from any thread; a thread of its own waits for it.

    server: a URL, or a command that is started and spoken to by its standard input and output.
    Raises InvalidInput where it cannot be reached.
    """

    def __init__(self, server: str):
        with refusing(
            ModuleNotFoundError,
            "tools of an MCP server need the package mcp; pip install -e '.[tools]'",
        ):
            import mcp
        target: Any = server
        if not server.startswith(("http://", "https://")):
            command, *arguments = shlex.split(server) or [""]
            target = mcp.StdioServerParameters(command=command, args=arguments)
        self.server = server
        self.client = mcp.Client(target)
        self.loop = asyncio.new_event_loop()
        self.ready: Future[list[Any]] = Future()
        self.closing = asyncio.Event()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()
        atexit.register(self.close)  # a silent server would outlive this process
        try:
            self.tools = self.ready.result(CONNECT_S)
        except Exception as error:
            self.break_off()
            reason = str(error) or f"it named no tools within {CONNECT_S:g} s"
            raise InvalidInput(
                f"the MCP server {server!r} cannot be used: {reason}; give a URL, or a command "
                "that speaks MCP on its standard output"
            ) from error

    def _serve(self) -> None:
        async def until_closed() -> None:
            async with self.client:
                self.ready.set_result(await self._listed())
                await self.closing.wait()

        try:
            self.loop.run_until_complete(until_closed())
        except BaseException as error:
            if not self.ready.done():
                self.ready.set_exception(_first(error))

    async def _listed(self) -> list[Any]:
        tools = list[Any]()
        page = await self.client.list_tools()
        tools += page.tools
        while page.next_cursor:
            page = await self.client.list_tools(cursor=page.next_cursor)
            tools += page.tools
        return tools

    def do(self, ask: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T:
        """The answer to a request. Raises ToolError where none comes in time; a server that then
        does not even name its tools is ended, its process too."""
        if not self.thread.is_alive():
            raise ToolError(f"the MCP server {self.server!r} was ended")
        future = asyncio.run_coroutine_threadsafe(ask(), self.loop)
        try:
            return future.result(seconds)
        except TimeoutError:
            future.cancel()
            if not self._speaks():
                self.break_off()
            raise ToolError(
                f"the MCP server {self.server!r} gave no answer within {seconds:g} s"
            ) from None

    def _speaks(self) -> bool:
        """Whether it answers anything, be it with an error."""
        named = asyncio.run_coroutine_threadsafe(self.client.list_tools(), self.loop)
        done, _ = wait([named], SPEAK_S)
        named.cancel()
        return bool(done)

    def break_off(self) -> None:
        """End a server that has not answered, its process too."""
        atexit.unregister(self.close)
        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(self._cancel)
            self.thread.join(CONNECT_S)

    def _cancel(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()

    def close(self) -> None:
        """End the server; one that does not end by itself within seconds is killed, with the
        processes that it has started."""
        atexit.unregister(self.close)
        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.closing.set)
            self.thread.join(CONNECT_S)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@dataclass(frozen=True)
class McpTools(Tools):
    """The tools of an MCP server.

    server: its URL ("http://localhost:8000/mcp"), or the command that starts it
    ("python server.py"), which then runs as long as this object is used.
    A context manager, or call `close`. Raises InvalidInput without the package `mcp`, and for a
    server that cannot be reached.
    """

    tools: Sequence[Any] = field(default=(), init=False)
    server: str = ""

    def __post_init__(self) -> None:
        check_options(self)
        if not self.server.strip():
            raise InvalidInput(
                f"server={self.server!r} names no MCP server; give a URL, or the command that "
                "starts one"
            )
        connection = Connection(self.server)
        object.__setattr__(self, "connection", connection)
        with on_failure(connection.close):
            tools = [_tool(connection, tool, self.time_s) for tool in connection.tools]
            object.__setattr__(self, "tools", tuple(tools))
            super().__post_init__()

    def close(self) -> None:
        self.connection.close()  # type: ignore[attr-defined]

    def __enter__(self) -> McpTools:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _tool(connection: Connection, tool: Any, time_s: float) -> Tool:
    function = {
        "name": tool.name,
        "description": tool.description or "",
        "parameters": dict(tool.input_schema),
    }

    def run(**arguments: Any) -> str:
        result = connection.do(lambda: connection.client.call_tool(tool.name, arguments), time_s)
        text = "\n".join(_written(part) for part in result.content)
        if result.is_error:
            raise ToolError(text or "the call failed")
        return text

    return Tool(encodable({"type": "function", "function": function}), run)


def _written(part: Any) -> str:
    text = getattr(part, "text", None)
    return str(text) if text is not None else f"({part.type})"
