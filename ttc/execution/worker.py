"""The process in the sandbox: programs and tests come in, outputs go out.

A program by itself, which imports nothing of this project but the two files beside it. Messages are
lines of JSON; the first one says what to do. The kernel ends the process once a request has taken
its processor time.
"""

import builtins
import json
import os
import random
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

MAX_ERROR_CHARS = 500


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
    fix_random_numbers()
    channel.write({"held": confine(task["memory_bytes"], task["readable"])})
    TASKS[task["do"]](channel, task)


def fix_random_numbers() -> None:
    """Unseeded random numbers of `random`, `secrets` and NumPy are the same in equal runs."""
    source = random.Random(0)
    own = random.Random.seed

    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        own(self, source.getrandbits(64) if a is None else a, version)

    random.Random.seed = seed  # type: ignore[method-assign]
    os.urandom = random._urandom = source.randbytes  # type: ignore[attr-defined]
    random.seed(0)


def timed(cpu_s: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, cpu_s)


def what(error: BaseException) -> str:
    """An error in a line, with the program's line where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == "<program>"]
    where = f" (line {lines[-1]})" if lines else ""
    try:
        message = traceback.format_exception_only(error)[-1].strip()
    except Exception:  # an error that cannot be written
        message = type(error).__name__
    return message[:MAX_ERROR_CHARS] + where


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
    """The value that a function returns. Else why there is none, and the kind of the error if the
    function raised it."""
    kind = ""
    try:
        function = function_of(space, request["call"])
        arguments = [decoded(argument) for argument in request["arguments"]]
        named = {name: decoded(value) for name, value in request["named"].items()}
        try:
            value = function(*arguments, **named)
        except BaseException as error:
            kind = kind_of(error)
            raise
        return {"value": encoded(value)}
    except BaseException as error:
        return {"error": what(error), "kind": kind}


def kind_of(error: BaseException) -> str:
    """The name of Python's own exception that an error is, or inherits from."""
    names = (kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")
    return next(names)


def function_of(space: Mapping[str, Any], name: str) -> Any:
    owner, _, method = name.rpartition(".")
    if owner in space:
        return getattr(space[owner](), method)
    if name in space:
        return space[name]
    raise NameError(f"the program defines no {name}")


# ---------------------------------------------------------------- tests that are programs


def check_tests(channel: Channel, task: Mapping[str, Any]) -> None:
    """Run each test; calls of tested functions go to the other process. One that gives neither a
    value nor an exception that a test may expect fails its test, whatever that makes of it."""
    for number, test in enumerate(task["tests"]):
        broken = list[str]()
        space: dict[str, Any] = {"__name__": "tests"}
        space |= {name: elsewhere(channel, name, broken) for name in task["names"]}
        timed(task["cpu_s"])
        error = None
        try:
            exec(compile(test, "<program>", "exec"), space)
        except BaseException as failure:
            error = what(failure)
        timed(0)
        channel.write({"test": number, "error": broken[0] if broken else error})


def elsewhere(channel: Channel, name: str, broken: list[str]) -> Callable[..., Any]:
    def function(*arguments: Any, **named: Any) -> Any:
        try:
            request = {
                "call": name,
                "arguments": [encoded(argument) for argument in arguments],
                "named": {key: encoded(value) for key, value in named.items()},
            }
        except TypeError as error:
            broken.append(f"{name} cannot be called: {error}")
            raise
        channel.write(request)
        reply = channel.read()
        if reply["error"] is None:
            return decoded(reply["value"])
        kind = getattr(builtins, reply["kind"], None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            raise raised(kind, reply["error"])
        broken.append(reply["error"])
        raise RuntimeError(reply["error"])

    return function


def raised(kind: type[Exception], text: str) -> Exception:
    if issubclass(kind, StopIteration | StopAsyncIteration):  # it would end a loop of the test's
        return RuntimeError(text)
    for base in kind.__mro__:
        try:
            return base(text)  # type: ignore[no-any-return]
        except TypeError:  # it is made of more than a text
            continue
    raise AssertionError("Exception takes a text")


TASKS = {"script": run_script, "functions": serve_functions, "tests": check_tests}

if __name__ == "__main__":
    main()
