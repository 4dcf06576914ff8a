"""Programs in the sandbox: run as a whole, or their functions called one by one."""

from __future__ import annotations

import builtins
import json
import os
import platform
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any

from annotated_types import Ge, Interval

from ttc.checks import Options, PositiveInt
from ttc.errors import TTCError
from ttc.execution.sandbox import (
    ENVIRONMENT,
    fixed_addresses,
    protections,
    readable_paths,
    wrapped,
)
from ttc.execution.values import decoded, encoded

START_S = 60.0
"""Seconds for a process to start, however busy the machine is."""
ENDED = "it ended its process with code {}"
UNREADABLE = "its output cannot be read"
MAX_ERROR_CHARS = 600

ProgramSeconds = Annotated[float, Interval(gt=0, le=300)]
ProgramMiB = Annotated[int, Ge(128)]


@dataclass(frozen=True)
class Limits(Options):
    """What a program may use.

    time_s: processor seconds to load, for a call, a test, or a whole run; one that waits instead is
        ended after `wall_s` seconds. memory_bytes: its address space, of which Python takes some
        30 MB. output_bytes: what it may print or return.
    """

    time_s: ProgramSeconds = 5.0
    memory_bytes: Annotated[int, Ge(2**27)] = 2**30
    output_bytes: PositiveInt = 2**20

    @property
    def wall_s(self) -> float:
        return 2 * self.time_s + 5


@dataclass(frozen=True)
class Outcome:
    """The value of a run or a call, or in `error` why there is none. kind: the name of the
    exception of Python's that the program raised, "" for another end."""

    value: Any = None
    error: str | None = None
    kind: str = ""


def check_sandbox() -> None:
    """Raise TTCError where no program can be run, with the way out."""
    if not protections():
        raise TTCError(
            f"programs cannot be confined on this machine ({sys.platform}, {platform.machine()}): "
            "it takes Linux with seccomp on x86-64 or ARM64, or bubblewrap (apt install bubblewrap)"
        )


class Worker:
    """One process in the sandbox. Used by one thread at a time.

    Standard input is `stdin`, standard output is read by `output` where `listens`, else dropped.
    """

    def __init__(
        self, task: Mapping[str, Any], limits: Limits, stdin: IO[bytes] | None, listens: bool
    ):
        check_sandbox()
        self.limits = limits
        self._unread = b""
        readable = readable_paths()
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        self._requests, self._replies = ours_out, ours_in
        os.set_blocking(ours_out, False)
        program = str(Path(__file__).with_name("worker.py"))
        pipes = [f"{pipe:5}" for pipe in (theirs_in, theirs_out)]  # as long for each number
        words = [sys.executable, "-s", "-P", "-S", "-B", program, *pipes]
        no_process = "no process can be started to run a program: {}"
        try:
            with fixed_addresses():
                self.process = subprocess.Popen(
                    wrapped(words, readable),
                    stdin=stdin or subprocess.DEVNULL,
                    stdout=subprocess.PIPE if listens else subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(theirs_in, theirs_out),
                    start_new_session=True,
                    env=ENVIRONMENT,
                    cwd="/",
                )
        except OSError as error:
            os.close(ours_out)
            os.close(ours_in)
            ways = "free memory, or allow more processes, and run the same again"
            raise TTCError(f"{no_process.format(error)}; {ways}") from error
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        path = [p for p in sys.path if p in readable or p.startswith(sys.base_prefix)]
        begin = {"path": path, "readable": readable, "cpu_s": limits.time_s}
        self.send({**begin, "memory_bytes": limits.memory_bytes, **task}, START_S)
        ready = self.receive(START_S)
        if "held" not in ready:
            raise TTCError(no_process.format(why(ready)))

    def send(self, message: Mapping[str, Any], wall_s: float | None = None) -> None:
        """Send a message. A process that does not take it in time is ended, as `receive` tells."""
        data = memoryview(json.dumps(message).encode() + b"\n")
        until = time.monotonic() + (wall_s or self.limits.wall_s)
        with selectors.DefaultSelector() as selector, suppress(OSError):  # where it has ended
            selector.register(self._requests, selectors.EVENT_WRITE)
            while data:
                if not selector.select(max(0.0, until - time.monotonic())):
                    return self.close()
                with suppress(BlockingIOError):
                    data = data[os.write(self._requests, data) :]

    def receive(self, wall_s: float) -> dict[str, Any]:
        """The next message; {"error": why} where none comes. The program may have written it, so
        nothing is sure about what it holds."""
        if self._replies < 0:
            return {"error": "it does not read what it is sent"}
        data, error = self._read(self._replies, self._unread, wall_s, line=True)
        line, _, self._unread = data.partition(b"\n")
        message: Any = None
        if error is None:
            try:
                message = json.loads(line)
            except (ValueError, RecursionError) as wrong:
                error = f"{UNREADABLE}: {wrong}"
        if isinstance(message, dict):
            return message
        self.close()
        return {"error": error or UNREADABLE}

    def output(self, wall_s: float) -> tuple[bytes, str | None]:
        assert self.process.stdout is not None
        return self._read(self.process.stdout.fileno(), b"", wall_s, line=False)

    def _read(
        self, source: int, data: bytes, wall_s: float, line: bool
    ) -> tuple[bytes, str | None]:
        """`data` and what follows it, up to the end of a line or of all; and why that is not
        reached."""
        most = self.limits.output_bytes
        until = time.monotonic() + wall_s
        error = None
        with selectors.DefaultSelector() as selector:
            selector.register(source, selectors.EVENT_READ)
            while error is None and not (line and b"\n" in data):
                if not selector.select(max(0.0, until - time.monotonic())):
                    error = f"it took more than {wall_s:g} s"
                elif not (more := os.read(source, 65536)):
                    return data, self._reason() if line else None
                else:
                    data += more
                    if len(data) > most:
                        error = f"its output has more than {most} bytes"
        if error is not None:
            self.close()
        return data[:most], error

    def _reason(self) -> str:
        try:
            code = self.process.wait(5)
        except subprocess.TimeoutExpired:
            return "it closed its connection"
        number = -code if code < 0 else code - 128
        if number == signal.SIGPROF:
            return f"it took more than {self.limits.time_s:g} s of processor time"
        return ENDED.format(code) if number <= 0 else f"it was ended by signal {number}"

    @property
    def alive(self) -> bool:
        return self._requests >= 0 and self.process.poll() is None

    def close(self) -> None:
        if self._requests < 0:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        for descriptor in (self._requests, self._replies):
            os.close(descriptor)
        self._requests = self._replies = -1
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process.wait()


def why(message: Mapping[str, Any]) -> str:
    """The error that a message tells of; never an empty one."""
    error = message.get("error")
    if not isinstance(error, str) or not error.strip():
        return UNREADABLE
    return error[:MAX_ERROR_CHARS].encode(errors="replace").decode()


def run_program(program: str, stdin: str = "", limits: Limits | None = None) -> Outcome:
    """Run a whole program on `stdin`. The value is what it printed, also where there is an
    error."""
    limits = limits or Limits()
    with open(os.memfd_create("stdin"), "w+b") as file:  # no disk may be full
        file.write(stdin.encode(errors="replace"))
        file.seek(0)
        worker = Worker({"do": "script", "program": program}, limits, file, listens=True)
        try:
            printed, error = worker.output(limits.wall_s)
            if error is None:
                end = worker.receive(limits.wall_s)
                error = None if end == {"error": None} else why(end)
        finally:
            worker.close()
    left = error == ENDED.format(0)  # by os._exit(0)
    return Outcome(printed.decode(errors="replace"), None if left else error)


class Functions:
    """The functions of one program. A context manager, used by one thread at a time.

    error: why the program cannot be loaded, or None. names: the functions and classes that it
    defines. A call that ends the process fails alone: for the next one the program is loaded again.
    """

    def __init__(self, program: str, limits: Limits | None = None):
        self.program, self.limits = program, limits or Limits()
        self._worker: Worker | None = None
        self.names: list[str] = []
        self.error = self._load()

    def __enter__(self) -> Functions:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._worker = None

    def call(
        self, name: str, arguments: Sequence[Any], named: Mapping[str, Any] | None = None
    ) -> Outcome:
        """Call a function, or for "Class.method" the method of a new object. Raises TypeError for
        arguments that are no values of Python's own types."""
        request = {
            "call": name,
            "arguments": [encoded(argument) for argument in arguments],
            "named": {key: encoded(value) for key, value in (named or {}).items()},
        }
        if self.error is None and self._worker is None:
            self.error = self._load()
        if self.error is not None or self._worker is None:
            return Outcome(error=f"the program cannot be loaded: {self.error}")
        self._worker.send(request)
        reply = self._worker.receive(self.limits.wall_s)
        if not self._worker.alive:
            self.close()
        if reply.keys() != {"value"}:
            kind = reply.get("kind")
            return Outcome(error=why(reply), kind=kind if isinstance(kind, str) else "")
        try:
            return Outcome(decoded(reply["value"]))
        except ValueError as error:
            return Outcome(error=why({"error": f"{UNREADABLE}: {error}"}))

    def _load(self) -> str | None:
        worker = Worker({"do": "functions", "program": self.program}, self.limits, None, False)
        reply = worker.receive(self.limits.wall_s)
        names = reply.get("names")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            worker.close()
            return why(reply)
        self._worker = worker
        self.names = names
        return None


def run_tests(
    functions: Functions, tests: Sequence[str], tested: Collection[str] = ()
) -> Iterator[str | None]:
    """For each test None where it passes, else why it does not (see `ProgramTest`). Tests and
    program are in two processes: arguments and results of a call are copies."""
    if functions.error is not None:
        yield from [functions.error] * len(tests)
        return
    names = [n for n in functions.names if n in tested or not _of_python(n)]
    left = list(tests)
    while left:
        task = {"do": "tests", "tests": left, "names": names}
        worker = Worker(task, functions.limits, None, False)
        try:
            for done, verdict in enumerate(_verdicts(worker, functions, len(left)), 1):
                yield verdict
                left = left[1:] if done else left
        finally:
            worker.close()


def _verdicts(worker: Worker, functions: Functions, count: int) -> Iterator[str | None]:
    while count:
        message = worker.receive(worker.limits.wall_s)
        if "call" in message:
            worker.send(_answer(functions, message))
            continue
        passed = message.get("error", "") is None
        yield None if passed else why(message)
        count -= 1
        if "test" not in message:
            return


def _of_python(name: str) -> bool:
    return hasattr(builtins, name) or (name.startswith("__") and name.endswith("__"))


def _answer(functions: Functions, message: Mapping[str, Any]) -> dict[str, Any]:
    try:
        arguments = [decoded(argument) for argument in message["arguments"]]
        named = {str(key): decoded(value) for key, value in message["named"].items()}
        outcome = functions.call(str(message["call"]), arguments, named)
        return {"value": encoded(outcome.value), "error": outcome.error, "kind": outcome.kind}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return {"error": f"the call cannot be made: {error}", "kind": ""}
