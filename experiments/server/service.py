"""One engine, one running batch, and the one thread that works on both: requests join and leave
between two tokens."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from math import ceil
from queue import Empty, SimpleQueue
from threading import Lock, Thread

from experiments.server.access import log
from experiments.server.fair_driver import FairDriver, PassPace
from experiments.server.refusal import Refusal
from search.config import SearchConfig
from ttc.backend import Backend
from ttc.errors import ContextExceeded, InvalidInput, UnusableScores, number_of
from ttc.results import Problem, Progress, Result
from ttc.usage import Usage

STOPPING = "the server is stopping; ask again when it is back"

KEPT = 4
"""One place in so many is kept for addresses that have nothing waiting or under way."""

ALONE = 4
"""The most problems that are tried by themselves at once."""

CLOSE_S = 1
"""Seconds that the end of the server waits for the pass under way."""

ENDS = 32
"""Problems whose ends tell how fast places become free."""

MAX_WAIT_S = 600
"""The longest time after which a client is told to ask again, in seconds."""


class Ticket:
    """One problem of a request, and what has become of it so far. Made and read in the web server's
    event loop.

    changed: set whenever anything below has changed.
    written: the tokens of each branch that is being written, by its number, for a request that
    follows them.
    progress: what the search did last. result, error: how it ended. error: a fault of the engine's.
    count: is told what was used, where the client leaves before the end.
    client: who asks, for the driver's turns. address: of the machine that asks, for places in the
    queue. prompt_tokens: of the problem's prompt.
    """

    def __init__(
        self,
        problem: Problem,
        config: SearchConfig,
        *,
        follow: bool = False,
        client: Hashable = None,
        address: str | None = None,
        prompt_tokens: int = 0,
    ):
        self.client = client
        self.address = address
        self.prompt_tokens = prompt_tokens
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
        self.count: Callable[[Usage], None] | None = None

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
            of_request = self.result.error.startswith(
                (InvalidInput.__name__, ContextExceeded.__name__, UnusableScores.__name__)
            )
            raise Refusal(400 if of_request else 500, self.result.error)
        return self.result

    def notify(self) -> None:
        """Wake whoever waits for a change, from any thread."""
        with suppress(RuntimeError):  # the loop is closed, so that nobody waits
            self.loop.call_soon_threadsafe(self.changed.set)


class Service:
    """Solves problems as they come, all in one running batch.

    max_problems: that may be waiting or under way; others are refused. The last quarter of these
    places is for addresses that have none. concurrency: the most under way, None for as many as
    there is room for.
    Where a pass that several problems share raises, each of them is tried again by itself, from its
    beginning: it gets the same answer, and the one that is to blame fails alone.
    suspects: the problems that are tried by themselves, at most `ALONE` at once, each with a driver
    of its own.
    retried: those that wait for it.
    """

    def __init__(self, engine: Backend, max_problems: int, concurrency: int | None = None):
        self.engine = engine
        self.max_problems = max_problems
        self.concurrency = concurrency
        self.pace = PassPace.of(engine)
        self.driver = self._new_driver()
        self.tickets: dict[int, Ticket] = {}
        self.suspects: dict[Ticket, FairDriver] = {}
        self.retried: deque[Ticket] = deque()
        self.inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.lock = Lock()
        self.open: set[Ticket] = set()
        self.closing = False
        self.busy_since = time.monotonic()
        self.ends: deque[float] = deque(maxlen=ENDS)
        self.thread = Thread(target=self._work, name="searches", daemon=True)
        self.thread.start()

    # ------------------------------------------------------------ from the event loop

    def submit(self, tickets: Sequence[Ticket]) -> None:
        """Take problems in. Raises Refusal where there is no place for all of them, or the server
        is stopping."""
        with self.lock:
            if self.closing:
                raise Refusal(503, STOPPING)
            if len(tickets) > self.max_problems:
                message = (
                    f"the request holds {number_of(len(tickets), 'prompt')}, and this server takes "
                    f"{self.max_problems}"
                )
                raise Refusal(400, f"{message} at once; send fewer", param="prompt")
            places = self._places_for(tickets)
            missing = len(self.open) + len(tickets) - places
            if missing > 0:
                wait = str(self.retry_after(missing))
                message = f"problems waiting or under way: {len(self.open)}, and there is room for "
                message += f"{places} of this client; ask again in {number_of(int(wait), 'second')}"
                raise Refusal(429, message, code="queue_full", headers={"Retry-After": wait})
            if not self.open:
                self.busy_since = time.monotonic()
            self.open.update(tickets)
            for ticket in tickets:  # before whatever `close` puts there
                self.inbox.put(partial(self._join, ticket))

    def _places_for(self, tickets: Sequence[Ticket]) -> int:
        """How many problems there may be in all once these are among them."""
        here = {ticket.address for ticket in tickets}
        kept = any(ticket.address in here for ticket in self.open)
        return self.max_problems - (self.max_problems // KEPT if kept else 0)

    def cancel(self, ticket: Ticket) -> None:
        """Let go of a problem whose client has left; nothing happens to one that has ended."""
        self.inbox.put(partial(self._leave, ticket))

    def retry_after(self, places: int) -> int:
        """Seconds until so many places are likely to be free (see `likely_wait`)."""
        wait = likely_wait(places, time.monotonic(), self.busy_since, self.ends)
        return min(MAX_WAIT_S, max(1, ceil(wait)))

    @property
    def healthy(self) -> bool:
        return self.thread.is_alive() and not self.closing

    def take_no_more(self) -> None:
        """Refuse what comes from now on."""
        with self.lock:
            self.closing = True

    def break_off(self) -> None:
        """End whatever is under way after the pass that is made now. Its clients are told so."""
        with self.lock:
            self.closing = True
            self.inbox.put(None)

    def close(self) -> None:
        """Break off whatever is under way, and wait for the thread; a pass that takes longer is
        left alone."""
        self.break_off()
        self.thread.join(CLOSE_S)

    @property
    def drivers(self) -> list[FairDriver]:
        """All that problems are solved by."""
        return [self.driver, *self.suspects.values()]

    @property
    def active(self) -> int:
        """Problems under way."""
        return sum(len(driver.active) for driver in self.drivers)

    @property
    def decoding(self) -> int:
        """Branches whose step is under way."""
        return sum(len(driver.expansions.decoding) for driver in self.drivers)

    # ------------------------------------------------------------ in the thread

    @property
    def busy(self) -> bool:
        return self.driver.busy or bool(self.suspects or self.retried)

    def _new_driver(self) -> FairDriver:
        return FairDriver.of(self.engine, self.concurrency, self.pace)

    def _work(self) -> None:
        while self._read_inbox():
            self._advance()
            self._advance_suspects()
        self._end_all(Refusal(503, STOPPING))

    def _read_inbox(self) -> bool:
        """Do what was asked for meanwhile; waits while there is nothing else to do. False at the
        end."""
        while True:
            try:
                order = self.inbox.get(block=not self.busy)
            except Empty:
                return True
            if order is None:
                return False
            order()

    def _advance(self) -> None:
        """A step of all problems that nothing speaks against."""
        if not self.driver.busy:
            return
        try:
            self._step(self.driver, self.tickets)
        except Exception as error:
            under_way = list(self.tickets.values())
            log.exception("a pass failed with %d problems under way", len(under_way))
            self._free(self.driver)
            self.driver, self.tickets = self._new_driver(), {}
            if len(under_way) == 1:
                self._fail(under_way[0], _failure(error))
            else:
                self.retried += under_way

    def _advance_suspects(self) -> None:
        """A step of each problem that is tried by itself."""
        while self.retried and len(self.suspects) < ALONE:
            ticket = self.retried.popleft()
            driver = self._new_driver()
            self._add(ticket, driver)
            self.suspects[ticket] = driver
        for ticket, driver in list(self.suspects.items()):
            assert ticket.number is not None
            try:
                self._step(driver, {ticket.number: ticket})
            except Exception as error:
                log.exception(
                    "the problem is to blame that begins with %.80r", ticket.problem.question
                )
                self._free(driver)
                self._fail(ticket, _failure(error))
            if ticket.ended:
                del self.suspects[ticket]
                self._free(driver)

    def _step(self, driver: FairDriver, tickets: dict[int, Ticket]) -> None:
        """A step of a driver. tickets: of its problems, without those that end."""
        for number, progress in driver.step():
            ticket = tickets[number]
            ticket.progress = progress
            if progress.result is not None:
                ticket.result = progress.result
                del tickets[number]
                self._forget(ticket)
                if progress.result.error is not None:
                    log.warning("a problem failed: %s", progress.result.error)
            ticket.notify()
        for number, ticket in tickets.items():
            active = driver.active.get(number)
            if ticket.follow and active is not None and active.growing:
                ticket.written = {branch.path[-1]: branch.generated for branch in active.growing}
                ticket.notify()

    def _join(self, ticket: Ticket) -> None:
        self._add(ticket, self.driver)
        assert ticket.number is not None
        self.tickets[ticket.number] = ticket

    def _add(self, ticket: Ticket, driver: FairDriver) -> None:
        ticket.number = driver.add_from(
            ticket.problem, ticket.config, ticket.client, ticket.prompt_tokens
        )

    def _leave(self, ticket: Ticket) -> None:
        """Let go of a problem, wherever it is."""
        if ticket.ended or ticket not in self.open:
            return
        driver = self.suspects.pop(ticket, self.driver)
        if ticket in self.retried:
            self.retried.remove(ticket)
        elif ticket.number is not None:
            self._count_lost(ticket, driver)
            driver.cancel(ticket.number)
            if driver is self.driver:
                del self.tickets[ticket.number]
            else:
                self._free(driver)
        self._forget(ticket)

    def _count_lost(self, ticket: Ticket, driver: FairDriver) -> None:
        """Tell what a problem has used until its client left."""
        active = driver.active.get(ticket.number or 0)
        if ticket.count is not None and active is not None:
            ticket.count(active.root.usage)

    def _forget(self, ticket: Ticket) -> None:
        with self.lock:
            self.open.discard(ticket)
            self.ends.append(time.monotonic())

    def _fail(self, ticket: Ticket, error: Refusal) -> None:
        ticket.error = error
        self._forget(ticket)
        ticket.notify()

    def _free(self, driver: FairDriver) -> None:
        try:
            driver.close()
        except Exception:
            log.exception("what was under way could not be freed")

    def _end_all(self, error: Refusal) -> None:
        """End all that was taken in."""
        for driver in self.drivers:
            self._free(driver)
        for ticket in list(self.open):
            self._fail(ticket, error)


def likely_wait(places: int, now: float, busy_since: float, ends: Sequence[float]) -> float:
    """Seconds until so many problems have ended, which is the work ahead: they are taken to end as
    fast as the last ones did, or the first one after as long again where none has ended yet.

    busy_since: when the server had nothing to do. ends: of the last problems, some of them before
    that.
    """
    recent, since = [end for end in ends if end >= busy_since], busy_since
    if len(recent) == ENDS:
        since, *recent = recent
    return places * (now - since) / max(1, len(recent))


def _failure(error: Exception) -> Refusal:
    return Refusal(500, f"the server failed: {type(error).__name__}: {error}")
