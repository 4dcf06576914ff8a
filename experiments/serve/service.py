"""One engine, one running batch, and the one thread that works on both: requests join and leave between two tokens."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import ceil
from queue import Empty, SimpleQueue
from threading import Lock, Thread

from experiments.serve.refusal import Refusal
from search.admission import Admission
from search.config import SearchConfig
from search.driver import Driver
from ttc.errors import ContextExceeded, InvalidInput
from ttc.protocols import Backend, Problem
from ttc.results import Progress, Result

log = logging.getLogger("ttc.serve")

STOPPING = "the server is stopping; ask again when it is back"


class Ticket:
    """One problem of a request, and what has become of it so far. Made and read in the web server's event loop.

    changed: set whenever anything below has changed.
    written: the tokens of each branch that is being written, by its number, for a request that follows them.
    progress: what the search did last. result, error: how it ended. error: a fault that is no single problem's.
    """

    def __init__(self, problem: Problem, config: SearchConfig, *, follow: bool = False):
        self.problem = problem
        self.config = config
        self.follow = follow
        self.loop = asyncio.get_running_loop()
        self.changed = asyncio.Event()
        self.number: int | None = None  # the driver's
        self.written: dict[int, list[int]] = {}
        self.progress: Progress | None = None
        self.result: Result | None = None
        self.error: Refusal | None = None

    @property
    def ended(self) -> bool:
        return self.result is not None or self.error is not None

    async def end(self) -> None:
        """Return when the problem has ended."""
        while not self.ended:
            await self.changed.wait()
            self.changed.clear()

    def outcome(self) -> Result:
        """The result of a ticket that has ended. Raises Refusal for a problem that failed."""
        if self.error is not None:
            raise self.error
        assert self.result is not None
        if self.result.error is not None:
            of_request = self.result.error.startswith((InvalidInput.__name__, ContextExceeded.__name__))
            raise Refusal(400 if of_request else 500, self.result.error)
        return self.result

    def notify(self) -> None:
        """Wake whoever waits for a change, from any thread."""
        with suppress(RuntimeError):  # the loop is closed, so that nobody waits
            self.loop.call_soon_threadsafe(self.changed.set)


class Service:
    """Solves problems as they come, all in one running batch.

    max_problems: that may be waiting or under way; others are refused. concurrency: the most under way, None for as
    many as there is room for.
    An error that is no single problem's, as memory that ends, fails all that are under way, and the service goes on.
    """

    def __init__(self, engine: Backend, max_problems: int, concurrency: int | None = None):
        self.engine = engine
        self.max_problems = max_problems
        self.concurrency = concurrency
        self.driver = self._new_driver()
        self.tickets: dict[int, Ticket] = {}
        self.inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.lock = Lock()
        self.open: set[Ticket] = set()
        self.closing = False
        self.ends: deque[float] = deque(maxlen=32)
        self.thread = Thread(target=self._work, name="searches", daemon=True)
        self.thread.start()

    # ------------------------------------------------------------ from the event loop

    def submit(self, tickets: Sequence[Ticket]) -> None:
        """Take problems in. Raises Refusal where there is no place for all of them, or the server is stopping."""
        with self.lock:
            if self.closing:
                raise Refusal(503, STOPPING)
            if len(self.open) + len(tickets) > self.max_problems:
                wait = str(self.retry_after())
                message = f"{len(self.open)} problems are waiting or under way, and there is room for "
                message += f"{self.max_problems}; ask again in {wait} seconds"
                raise Refusal(429, message, code="queue_full", headers={"Retry-After": wait})
            self.open.update(tickets)
            for ticket in tickets:  # before whatever `close` puts there
                self.inbox.put(partial(self._join, ticket))

    def cancel(self, ticket: Ticket) -> None:
        """Let go of a problem whose client has left; nothing happens to one that has ended."""
        self.inbox.put(partial(self._leave, ticket))

    def retry_after(self) -> int:
        """Seconds until a place is likely to be free: the mean time between the last ends."""
        ends = list(self.ends)
        return 1 if len(ends) < 2 else max(1, ceil((ends[-1] - ends[0]) / (len(ends) - 1)))

    @property
    def healthy(self) -> bool:
        return self.thread.is_alive() and not self.closing

    def close(self) -> None:
        """Break off whatever is under way, and end the thread."""
        with self.lock:
            self.closing = True
            self.inbox.put(None)
        self.thread.join()

    # ------------------------------------------------------------ in the thread

    def _new_driver(self) -> Driver:
        return Driver(self.engine, Admission.of(self.engine, self.concurrency), contained=True)

    def _work(self) -> None:
        while self._read_inbox():
            if self.driver.busy:
                self._advance()
        self._fail(Refusal(503, STOPPING))

    def _read_inbox(self) -> bool:
        """Do what was asked for meanwhile; waits while there is nothing else to do. False at the end."""
        while True:
            try:
                order = self.inbox.get(block=not self.driver.busy)
            except Empty:
                return True
            if order is None:
                return False
            order()

    def _advance(self) -> None:
        try:
            for number, progress in self.driver.step():
                ticket = self.tickets[number]
                ticket.progress = progress
                if progress.result is not None:
                    ticket.result = progress.result
                    self._forget(ticket)
                ticket.notify()
        except Exception as error:
            log.exception("all requests under way have failed")
            self._fail(Refusal(500, f"the server failed: {type(error).__name__}: {error}"))
            self.driver = self._new_driver()
        for number, ticket in self.tickets.items():
            active = self.driver.active.get(number)
            if ticket.follow and active is not None and active.growing:
                ticket.written = {branch.path[-1]: branch.generated for branch in active.growing}
                ticket.notify()

    def _join(self, ticket: Ticket) -> None:
        ticket.number = self.driver.add(ticket.problem, ticket.config)
        self.tickets[ticket.number] = ticket

    def _leave(self, ticket: Ticket) -> None:
        if ticket.number is not None and self.tickets.get(ticket.number) is ticket:
            self.driver.cancel(ticket.number)
            self._forget(ticket)

    def _forget(self, ticket: Ticket) -> None:
        assert ticket.number is not None
        del self.tickets[ticket.number]
        with self.lock:
            self.open.discard(ticket)
            self.ends.append(time.monotonic())

    def _fail(self, error: Refusal) -> None:
        """End all that was taken in."""
        try:
            self.driver.close()
        except Exception:
            log.exception("what was under way could not be freed")
        for ticket in list(self.tickets.values()):
            ticket.error = error
            self._forget(ticket)
            ticket.notify()
