"""Whether two mathematical expressions are equal, by math-verify in processes that can be ended."""

from __future__ import annotations

import atexit
import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from ttc.errors import TTCError, on_failure, refusing

CPU_S = 5.0
"""Processor seconds for one comparison: a busy machine changes no verdict."""

WALL_S = 120.0
"""Seconds for a process to start, and after which one that uses no processor time is given up."""

MAX_CHARS = 2000
"""Longer answers are equal by their spelling alone; to read formulas is more than linear."""

PROCESSES = 2

logger = logging.getLogger("ttc")


class MathWorker:
    """One process that compares (see `ttc.text.math_worker`). Used by one thread at a time."""

    def __init__(self, cpu_s: float = CPU_S, wall_s: float = WALL_S):
        self.cpu_s, self.wall_s = cpu_s, wall_s
        program = Path(__file__).with_name("math_worker.py")
        with refusing(  # to go on without would count right answers as wrong
            OSError,
            "no process can be started for math-verify, which grades answers of kind math: "
            "{error}; free memory, or allow more processes, and run the same again",
            TTCError,
        ):
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(program), json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        reply = self._read()
        if reply != "ready":
            self.close()
            reason = reply or "no reason given"
            raise TTCError(
                f"math-verify, which grades answers of kind math, did not start: {reason}"
            )

    def equal(self, gold: str, predicted: str) -> bool | None:
        """math-verify's verdict; None where it took too long or the process died."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps([gold, predicted, self.cpu_s]).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            return None
        reply = self._read()
        return reply if isinstance(reply, bool) else None

    @property
    def reason(self) -> str:
        code = self.process.poll()
        if code is None:
            return f"took more than {self.wall_s:g} s"
        if code == -signal.SIGPROF:
            return f"took more than {self.cpu_s:g} s of processor time"
        return f"ended math-verify's process with code {code}"

    def close(self) -> None:
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                assert pipe is not None
                pipe.close()
        self.process.wait()

    def _read(self) -> object:
        assert self.process.stdout is not None
        line, until = b"", time.monotonic() + self.wall_s
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, until - time.monotonic())):
                    return None
                more = os.read(self.process.stdout.fileno(), 65536)
                if not more:
                    with suppress(subprocess.TimeoutExpired):
                        self.process.wait(1)
                    return None
                line += more
        return json.loads(line)


class MathPool:
    """A few workers, started when they are first needed, which any thread may ask.

    undecided: how many comparisons were given up.
    """

    def __init__(self, processes: int = PROCESSES, cpu_s: float = CPU_S, wall_s: float = WALL_S):
        self.cpu_s, self.wall_s = cpu_s, wall_s
        self.undecided = 0
        self._room = threading.BoundedSemaphore(processes)
        self.idle: list[MathWorker] = []

    def equal(self, gold: str, predicted: str) -> bool | None:
        with self._room:
            try:
                worker = self.idle.pop()
            except IndexError:
                worker = MathWorker(self.cpu_s, self.wall_s)
            with on_failure(worker.close):  # as Ctrl-C: its verdict may still be under way
                verdict = worker.equal(gold, predicted)
            if verdict is not None:
                self.idle.append(worker)
                return verdict
            reason = worker.reason
            worker.close()
            self.undecided += 1
        pair = f"{gold!r:.60} and {predicted!r:.60}"
        logger.warning(f"comparing {pair} {reason}: they count as not equal")
        return None

    def close(self) -> None:
        while self.idle:
            self.idle.pop().close()


shared_pool = MathPool()


def _pool_of_a_fork() -> None:
    global shared_pool
    shared_pool = MathPool()


os.register_at_fork(after_in_child=_pool_of_a_fork)
atexit.register(lambda: shared_pool.close())


def undecided() -> int:
    """How many comparisons of this process took too long or ended their worker."""
    return shared_pool.undecided


@lru_cache(maxsize=2**16)
def math_equal(gold: str, predicted: str) -> bool:
    """Whether math-verify calls `predicted` right (its equality is not symmetric), in any thread.

    Answers of more than `MAX_CHARS` characters are not equal, nor those that take more than
    `CPU_S`, which a warning and `undecided` tell. Raises TTCError if math-verify cannot be started.
    """
    if max(len(gold), len(predicted)) > MAX_CHARS or not (_settles(gold) and _settles(predicted)):
        return False
    return bool(shared_pool.equal(gold, predicted))


@lru_cache(maxsize=2**16)
def _settles(answer: str) -> bool:
    """Whether an answer can be compared with 0 in time, and so with every other."""
    return shared_pool.equal("0", answer) is not None
