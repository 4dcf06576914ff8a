"""The tools of an MCP server, started as a program of its own."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.helpers.processes import finished
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
async def slow(x: int) -> int:
    """Waits for an hour."""
    import asyncio
    await asyncio.sleep(3600)
    return x

@server.tool()
async def hang(x: int) -> int:
    """Blocks all that the server does, and leaves its number and that of a process of its own."""
    import os, subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    with open("PIDS", "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    time.sleep(3600)
    return x

@server.tool()
def fail(x: int) -> int:
    """Fails."""
    raise ValueError("no such number")

server.run("stdio")
'''


@pytest.fixture
def numbers(tmp_path: Path) -> Iterator[McpTools]:
    file = tmp_path / "server.py"
    file.write_text(SERVER.replace("PIDS", str(tmp_path / "pids")))
    with McpTools(server=f"{sys.executable} {file}", time_s=3) as tools:
        yield tools


@needs_mcp
def test_a_servers_tools_answer_calls(numbers: McpTools) -> None:
    assert [tool.name for tool in numbers.tools] == ["triple", "slow", "hang", "fail"]
    triple, _, _, fail = numbers.tools
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
@pytest.mark.slow
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


def is_gone(number: int) -> bool:
    """Also one that has ended and that nobody has asked about."""
    file = Path(f"/proc/{number}/stat")
    with suppress(OSError):
        return file.read_text().rpartition(")")[2].split()[0] == "Z"
    return True


@needs_mcp
def test_a_call_without_an_answer_ends_and_the_server_goes_on(numbers: McpTools) -> None:
    triple, slow, *_ = numbers.tools
    with pytest.raises(ToolError, match="gave no answer within 3 s"):
        slow.answer({"x": 4})
    assert triple.answer({"x": 4}) == "12"


@pytest.mark.slow
@needs_mcp
def test_a_server_that_falls_silent_in_a_call_is_ended_with_what_it_started(
    numbers: McpTools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ttc.tools.mcp.SPEAK_S", 1.0)
    triple, _, hang, _ = numbers.tools
    with pytest.raises(ToolError, match="gave no answer within 3 s"):
        hang.answer({"x": 4})
    server, child = map(int, (tmp_path / "pids").read_text().split())
    assert is_gone(server) and is_gone(child)
    with pytest.raises(ToolError, match="was ended"):
        triple.answer({"x": 4})


@pytest.mark.slow
@needs_mcp
def test_a_silent_server_does_not_outlive_a_program_that_forgot_to_close_it(tmp_path: Path) -> None:
    file = tmp_path / "server.py"
    ignores = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    file.write_text(ignores + SERVER.replace("PIDS", str(tmp_path / "pids")))
    program = f"""
import threading, time, pathlib
from ttc import McpTools
hang = McpTools(server={f"{sys.executable} {file}"!r}).tools[2]
threading.Thread(target=hang.answer, args=({{"x": 4}},), daemon=True).start()
while not (pids := pathlib.Path({str(tmp_path / "pids")!r})).is_file() or not pids.read_text():
    time.sleep(0.05)
"""
    assert finished([sys.executable, "-c", program]).returncode == 0
    assert all(map(is_gone, map(int, (tmp_path / "pids").read_text().split())))
