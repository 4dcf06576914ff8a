"""The process in the sandbox: programs and tests come in, outputs go out.

`ttc.execution.programs` starts it as a program, which imports nothing of this project but the two
files beside it. Messages are lines of JSON: the first one says what to do, and is read before
rights are given up. The kernel ends the process once a request has taken its processor time.
"""

import builtins
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import IO, Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from sandbox import confine
from values import decoded, encoded

NAME = "program"
"""`__name__` in a program whose functions are called."""

SHOWN_CHARS = 500


class Channel:
    """The lines between this process and the one that asks."""

    def __init__(self, requests: IO[str], replies: int):
        self.requests, self.replies = requests, replies

    def read(self) -> Any:
        """The next message; ends the process where there is none."""
        line = self.requests.readline()
        if not line:
            os._exit(0)
        return json.loads(line)

    def write(self, message: Mapping[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(self.replies, data) :]


def main() -> None:
    """sys.argv: the file descriptors of requests and replies."""
    requests, replies = map(int, sys.argv[1:])
    channel = Channel(os.fdopen(requests, encoding="utf-8"), replies)
    task = channel.read()
    sys.path[:] = task["path"]
    sys.setswitchinterval(0.05)
    channel.write({"held": confine(task["memory_bytes"], task["readable"])})
    TASKS[task["do"]](channel, task)


def timed(cpu_s: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, cpu_s)


def what(error: BaseException) -> str:
    """An error in a line, with the program's line where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == "<program>"]
    where = f" (line {lines[-1]})" if lines else ""
    try:
        said = traceback.format_exception_only(error)[-1].strip()
    except Exception:  # an error that cannot be written
        said = type(error).__name__
    return said[:SHOWN_CHARS] + where


# ---------------------------------------------------------------- a whole program


def run_script(channel: Channel, task: Mapping[str, Any]) -> None:
    """Run a program as `python FILE` would."""
    timed(task["cpu_s"])
    why = None
    try:
        exec(compile(task["program"], "<program>", "exec"), {"__name__": "__main__"})
    except SystemExit as exit:
        if exit.code not in (None, 0):
            why = f"it left with the exit code {exit.code!r:.60}"
    except BaseException as error:
        why = what(error)
    sys.stdout.flush()
    channel.write({"error": why})
    os._exit(0)


# ---------------------------------------------------------------- a program's functions


def serve_functions(channel: Channel, task: Mapping[str, Any]) -> None:
    timed(task["cpu_s"])
    space: dict[str, Any] = {"__name__": NAME}
    try:
        exec(compile(task["program"], "<program>", "exec"), space)
    except BaseException as error:
        channel.write({"error": what(error)})
        return
    names = [name for name, value in space.items() if getattr(value, "__module__", None) == NAME]
    channel.write({"names": names})
    while True:
        timed(0)
        request = channel.read()
        timed(task["cpu_s"])
        channel.write(answer(space, request))


def answer(space: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        function = function_of(space, request["call"])
        arguments = [decoded(argument) for argument in request["arguments"]]
        named = {name: decoded(value) for name, value in request["named"].items()}
        return {"value": encoded(function(*arguments, **named))}
    except BaseException as error:
        return {"error": what(error), "kind": type(error).__name__}


def function_of(space: Mapping[str, Any], name: str) -> Callable[..., Any]:
    owner, _, method = name.rpartition(".")
    if owner in space:
        function: Callable[..., Any] = getattr(space[owner](), method)
    elif name in space:
        function = space[name]
    else:
        raise NameError(f"the program defines no {name}")
    return function


# ---------------------------------------------------------------- tests that are programs


def check_tests(channel: Channel, task: Mapping[str, Any]) -> None:
    """Run each test; calls of tested functions go to the other process."""
    for number, test in enumerate(task["tests"]):
        space: dict[str, Any] = {"__name__": "tests"}
        space |= {name: elsewhere(channel, name) for name in task["names"]}
        timed(task["cpu_s"])
        error = None
        try:
            exec(compile(test, "<program>", "exec"), space)
        except BaseException as failure:
            error = what(failure)
        timed(0)
        channel.write({"test": number, "error": error})


def elsewhere(channel: Channel, name: str) -> Callable[..., Any]:
    def function(*arguments: Any, **named: Any) -> Any:
        channel.write(
            {
                "call": name,
                "arguments": [encoded(argument) for argument in arguments],
                "named": {key: encoded(value) for key, value in named.items()},
            }
        )
        reply = channel.read()
        if reply["error"] is None:
            return decoded(reply["value"])
        kind = getattr(builtins, reply.get("kind") or "", RuntimeError)
        is_error = isinstance(kind, type) and issubclass(kind, Exception)
        raise (kind if is_error else RuntimeError)(reply["error"])

    return function


TASKS = {"script": run_script, "functions": serve_functions, "tests": check_tests}

if __name__ == "__main__":
    main()
