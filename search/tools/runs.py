"""Calls of tools that run in threads while branches decode."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ttc.origin import error_text
from ttc.text.encodable import encodable
from ttc.tool_calls import Written
from ttc.tools.base import ToolError, Tools

logger = logging.getLogger("ttc")

AT_ONCE = 8
"""Calls that run at the same time; more of them wait."""


@dataclass(eq=False)
class ToolRun:
    """One call under way.

    chars: the most characters of its answer that are kept.
    answer: what it came to, once it is `done`. failed: whether that is an error. error: what the
        tool itself raised, with its line.
    """

    time_s: float
    chars: int
    answer: str = ""
    failed: bool = False
    error: str | None = None
    done: bool = False
    until: float | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def end(self, answer: str, failed: bool = False, error: str | None = None) -> bool:
        """Say what it came to. False where its time was up before."""
        with self.lock:
            if self.done:
                return False
            self.answer = encodable(answer[: self.chars])
            self.failed = failed
            self.error = error
            self.done = True
            return True


@dataclass
class ToolRuns:
    """The calls of all problems of a driver, each in a thread of its own, `AT_ONCE` of them at a
    time.

    A call whose time is up is answered with that; nothing can end its thread, which goes on unseen.
    logged: what tools raised, each said once.
    """

    queue: list[tuple[ToolRun, Callable[[], str]]] = field(default_factory=list)
    running: list[ToolRun] = field(default_factory=list)
    some_done: threading.Event = field(default_factory=threading.Event)
    logged: set[str] = field(default_factory=set)

    def start(self, tools: Tools, call: Written) -> ToolRun:
        """Have a call answered; at once what cannot be called."""
        run = ToolRun(tools.time_s, tools.answer_chars + 1)  # one more shows that it was cut
        tool = tools.by_name.get(call.name)
        if call.error or tool is None:
            known = ", ".join(tools.by_name)
            why = call.error or f"there is no tool {call.name}; the tools are: {known}"
            run.end(f"Error: {why}", failed=True)
            return run
        self.queue.append((run, lambda: tool.answer(call.arguments)))
        self.look()
        return run

    def look(self) -> None:
        """End the calls whose time is up, and begin those with room."""
        now = time.monotonic()
        for run in self.running:
            if not run.done and run.until is not None and now >= run.until:
                run.end(f"Error: no answer came within {run.time_s:g} s", failed=True)
        self.running = [run for run in self.running if not run.done]
        while self.queue and len(self.running) < AT_ONCE:
            run, call = self.queue.pop(0)
            if run.done:  # nobody waits for it
                continue
            run.until = now + run.time_s
            self.running.append(run)
            threading.Thread(target=self._answer, args=(run, call), daemon=True).start()

    def _answer(self, run: ToolRun, call: Callable[[], str]) -> None:
        try:
            run.end(call())
        except ToolError as error:
            run.end(f"Error: {error}", failed=True)
        except BaseException as error:  # a tool may raise anything, and the branch is told
            said = encodable(error_text(error))
            run.end(f"Error: {type(error).__name__}: {error}", failed=True, error=said)
            if said not in self.logged:
                self.logged.add(said)
                logger.warning("a tool raised %s; the model reads that and goes on", said)
        self.some_done.set()

    def wait(self, seconds: float) -> None:
        self.some_done.wait(seconds)
        self.some_done.clear()

    def drop(self, runs: Sequence[ToolRun]) -> None:
        for run in runs:
            run.end("Error: it was not waited for", failed=True)
