"""The tools of an MCP server, started as a program of its own."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ttc import InvalidInput, McpTools, ToolError

needs_mcp = pytest.mark.skipif(importlib.util.find_spec("mcp") is None, reason="without mcp")

SERVER = '''
from mcp.server.mcpserver import MCPServer

server = MCPServer("numbers")

@server.tool()
def triple(x: int) -> int:
    """Three times a number."""
    return 3 * x

@server.tool()
def fail(x: int) -> int:
    """Fails."""
    raise ValueError("no such number")

server.run("stdio")
'''


@pytest.fixture
def numbers(tmp_path: Path) -> Iterator[McpTools]:
    file = tmp_path / "server.py"
    file.write_text(SERVER)
    with McpTools(server=f"{sys.executable} {file}") as tools:
        yield tools


@needs_mcp
def test_a_servers_tools_answer_calls(numbers: McpTools) -> None:
    assert [tool.name for tool in numbers.tools] == ["triple", "fail"]
    triple, fail = numbers.tools
    assert triple.schema["function"]["description"] == "Three times a number."
    assert triple.answer({"x": 4}) == "12"
    with pytest.raises(ToolError, match="x='4' must be of type integer"):
        triple.answer({"x": "4"})
    with pytest.raises(ToolError, match="fail"):
        fail.answer({"x": 4})


@needs_mcp
@pytest.mark.parametrize("server", ["no-such-program --x", "true"])
def test_a_server_that_does_not_speak_mcp_is_named(server: str) -> None:
    with pytest.raises(InvalidInput, match=f"the MCP server '{server}' cannot be used"):
        McpTools(server=server)


def test_a_server_must_be_named() -> None:
    with pytest.raises(InvalidInput, match="server='' names no MCP server"):
        McpTools()


@pytest.mark.skipif(importlib.util.find_spec("mcp") is not None, reason="with mcp")
def test_without_the_package_it_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"pip install -e '\.\[tools\]'"):
        McpTools(server="true")


@needs_mcp
def test_a_server_that_says_nothing_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ttc.tools.mcp.CONNECT_S", 3.0)
    program = tmp_path / "silent.py"
    mark = tmp_path / "pid"
    program.write_text(
        f"import os, sys\nopen({str(mark)!r}, 'w').write(str(os.getpid()))\n"
        "for line in sys.stdin: pass\nimport time\ntime.sleep(600)\n"
    )
    with pytest.raises(InvalidInput, match="cannot be used: it named no tools within 3 s"):
        McpTools(server=f"{sys.executable} {program}")
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)
