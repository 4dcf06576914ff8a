"""Branches that wait for the answers of tools, which run in threads while others decode."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from search.tools.steps import ToolCalls, ToolRun
from ttc.backend import Backend
from ttc.branch import Branch
from ttc.origin import error_text
from ttc.text.encodable import encodable
from ttc.tool_calls import Written
from ttc.tools.base import ToolError, Tools
from ttc.tools.chat import ToolChat

logger = logging.getLogger("ttc")

AT_ONCE = 8
"""Calls that run at the same time; more of them wait."""

LOOK_S = 0.02
"""Seconds after which it is seen whether tools have answered, where nothing decodes meanwhile."""


@dataclass
class ToolAnswers:
    """The calls of all problems of a driver, each in a thread of its own, `AT_ONCE` of them at a
    time.

    A call whose time is up is answered with that; nothing can end its thread, which goes on unseen.
    calling: the branches that wait. logged: what tools raised, each said once.
    """

    calling: dict[Branch, ToolCalls] = field(default_factory=dict)
    queue: list[tuple[ToolRun, Callable[[], str]]] = field(default_factory=list)
    running: list[ToolRun] = field(default_factory=list)
    some_done: threading.Event = field(default_factory=threading.Event)
    logged: set[str] = field(default_factory=set)

    def calls_of(
        self, child: Branch, chat: ToolChat, backend: Backend, made: dict[str, ToolRun]
    ) -> ToolCalls:
        """What lets a step of the branch call tools. made: the calls of its problem so far."""
        return ToolCalls(child, chat, backend, made)

    def call(self, child: Branch, batch: ToolCalls) -> None:
        """Have the calls of a branch answered; equal calls of a problem are made once."""
        for call in batch.calls:
            if (run := batch.made.get(call.key)) is None or call.error:
                run = self._start(batch.chat.tools, call)
            batch.runs.append(run if call.error else batch.made.setdefault(call.key, run))
        self.calling[child] = batch

    def answered(self) -> list[Branch]:
        """The branches whose calls have all been answered."""
        if self.calling:
            self._look()
        done = [child for child, batch in self.calling.items() if batch.done]
        for child in done:
            del self.calling[child]
        return done

    def wait(self) -> None:
        self.some_done.wait(LOOK_S)
        self.some_done.clear()

    def forget(self, branches: Sequence[Branch]) -> None:
        for branch in branches:
            if (batch := self.calling.pop(branch, None)) is not None:
                for call, run in zip(batch.calls, batch.runs, strict=True):
                    if not run.done:
                        run.end("Error: it was not waited for", failed=True)
                        batch.made.pop(call.key, None)  # asked again, it is made again

    def _start(self, tools: Tools, call: Written) -> ToolRun:
        """Have a call answered; at once what cannot be called."""
        run = ToolRun(tools.time_s, tools.answer_chars + 1)  # one more shows that it was cut
        tool = tools.by_name.get(call.name)
        if call.error or tool is None:
            names = ", ".join(tools.by_name)
            why = call.error or f"there is no tool {call.name}; the tools are: {names}"
            run.end(f"Error: {why}", failed=True)
            return run
        self.queue.append((run, lambda: tool.answer(call.arguments)))
        self._look()
        return run

    def _look(self) -> None:
        """End the calls whose time is up, and begin those with room."""
        now = time.monotonic()
        for run in self.running:
            if run.until is not None and now >= run.until:
                run.end(f"Error: no answer came within {run.time_s:g} s", failed=True)
        self.running = [run for run in self.running if not run.done]
        while self.queue and len(self.running) < AT_ONCE:
            run, call = self.queue.pop(0)
            if not run.done:  # else nobody waits for it
                run.until = now + run.time_s
                self.running.append(run)
                threading.Thread(target=self._answer, args=(run, call), daemon=True).start()

    def _answer(self, run: ToolRun, call: Callable[[], str]) -> None:
        try:
            run.end(call())
        except ToolError as error:
            run.end(f"Error: {error}", failed=True)
        except BaseException as error:  # a tool may raise anything, and the branch is told
            message = encodable(error_text(error))
            run.end(f"Error: {type(error).__name__}: {error}", failed=True, error=message)
            if message not in self.logged:
                self.logged.add(message)
                logger.warning("a tool raised %s; the model reads that and goes on", message)
        self.some_done.set()
