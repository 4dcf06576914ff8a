"""One engine, one running batch, and the one thread that works on both: requests join and leave
between two tokens."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread

from experiments.server.access import log
from experiments.server.fair_driver import FairDriver, PassPace
from experiments.server.logprobs import TokensSoFar
from experiments.server.refusal import Refusal
from search.config import SearchConfig
from search.under_way import Events
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


@dataclass(eq=False)
class ProblemGroup:
    """Problems that share passes, by the driver's numbers, without those that have ended."""

    driver: FairDriver
    tickets: dict[int, Ticket] = field(default_factory=dict)


@dataclass(eq=False)
class Ticket:
    """One problem of a request, and what has become of it so far. Made and read in the web server's
    event loop.

    client: who asks, for the driver's turns. address: of the machine that asks, for places in the
    queue. model: by its name. prompt_tokens: of the problem's prompt.
    changed: set whenever anything below has changed.
    group, number: what it is solved in, and its number there.
    written: what each branch has written so far, by its number, for a request that follows it.
    progress: what the search did last. result, error: how it ended. error: a fault of the engine's.
    count: is told what was used, where the client leaves before the end.
    """

    problem: Problem
    config: SearchConfig
    follow: bool = False
    client: Hashable = None
    address: str | None = None
    model: str = ""
    prompt_tokens: int = 0
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    group: ProblemGroup | None = None
    number: int = -1
    written: dict[int, TokensSoFar] = field(default_factory=dict)
    progress: Progress | None = None
    result: Result | None = None
    error: Refusal | None = None
    count: Callable[[Usage], None] | None = None
    since: float = field(default_factory=time.monotonic)

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
    stopping: is set once what is under way is broken off; searches that have it as their `cancel`
    answer with their best so far.
    main: the problems that nothing speaks against. suspects: those that are tried by themselves, at
    most `ALONE` at once. retried: those that wait for it.
    """

    def __init__(self, engine: Backend, max_problems: int, concurrency: int | None = None):
        self.engine = engine
        self.max_problems = max_problems
        self.concurrency = concurrency
        self.pace = PassPace.of(engine)
        self.main = self._new_group()
        self.suspects: list[ProblemGroup] = []
        self.retried: deque[Ticket] = deque()
        self.inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.lock = Lock()
        self.open: set[Ticket] = set()
        self.closing = False
        self.stopping = Event()
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
                    f"{self.max_problems} at once; send fewer"
                )
                raise Refusal(400, message, param="prompt")
            places = self._places_for(tickets)
            missing = len(self.open) + len(tickets) - places
            if missing > 0:
                wait = likely_wait(missing, time.monotonic(), self.busy_since, self.ends)
                seconds = min(MAX_WAIT_S, max(1, ceil(wait)))
                message = (
                    f"problems waiting or under way: {len(self.open)}, and there is room for "
                    f"{places} of this client; ask again in {number_of(seconds, 'second')}"
                )
                again = {"Retry-After": str(seconds)}
                raise Refusal(429, message, code="queue_full", headers=again)
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

    @property
    def healthy(self) -> bool:
        return self.thread.is_alive() and not self.closing

    def take_no_more(self) -> None:
        """Refuse what comes from now on."""
        with self.lock:
            self.closing = True

    def under_way(self) -> str:
        """What is waiting or under way, by the models that were asked and since when; "" for
        nothing."""
        with self.lock:
            open_now = list(self.open)
        if not open_now:
            return ""
        searches = Counter(ticket.model for ticket in open_now)
        named = ", ".join(f"{count} of {name}" for name, count in searches.most_common())
        longest = time.monotonic() - min(ticket.since for ticket in open_now)
        problems = number_of(len(open_now), "problem")
        return f"{problems} waiting or under way ({named}), the first for {longest:.1f} s"

    def break_off(self) -> None:
        """End whatever is under way after the pass that is made now. Its clients are told so."""
        with self.lock:
            self.closing = True
            self.stopping.set()
            if self.open:
                log.info("breaking off %s", number_of(len(self.open), "problem"))
            self.inbox.put(None)

    def close(self) -> None:
        """Break off whatever is under way, and wait for the thread; a pass that takes longer is
        left alone."""
        self.break_off()
        self.thread.join(CLOSE_S)

    @property
    def groups(self) -> list[ProblemGroup]:
        return [self.main, *self.suspects]

    @property
    def active(self) -> int:
        """Problems under way."""
        return sum(len(group.driver.active) for group in self.groups)

    @property
    def decoding(self) -> int:
        """Branches whose step is under way."""
        return sum(len(group.driver.decoding) for group in self.groups)

    # ------------------------------------------------------------ in the thread

    def _new_group(self) -> ProblemGroup:
        return ProblemGroup(FairDriver.of(self.engine, self.concurrency, self.pace))

    def _work(self) -> None:
        while self._read_inbox():
            while self.retried and len(self.suspects) < ALONE:
                self.suspects.append(self._new_group())
                self._join(self.retried.popleft(), self.suspects[-1])
            for group in self.groups:
                self._advance(group)
        for group in self.groups:
            self._cut_off(group)
            self._free(group)
        for ticket in list(self.open):
            self._fail(ticket, Refusal(503, STOPPING))

    def _read_inbox(self) -> bool:
        """Do what was asked for meanwhile; waits while there is nothing else to do. False at the
        end."""
        while True:
            busy = self.main.driver.busy or self.suspects or self.retried
            try:
                order = self.inbox.get(block=not busy)
            except Empty:
                return True
            if order is None:
                return False
            order()

    def _advance(self, group: ProblemGroup) -> None:
        """A step of the problems of a group."""
        failed = False
        try:
            if group.driver.busy:
                self._step(group)
        except Exception as error:
            failed = True
            self._fail_all(list(group.tickets.values()), error)
        if failed or (group is not self.main and not group.tickets):
            self._free(group)
            if group is self.main:
                self.main = self._new_group()
            else:
                self.suspects.remove(group)

    def _cut_off(self, group: ProblemGroup) -> None:
        """End the searches under way that answer with their best so far."""
        try:
            self._tell(group, group.driver.postprocess())
        except Exception:
            log.exception("what searches had come to is lost")

    def _tell(self, group: ProblemGroup, events: Events) -> None:
        tickets = group.tickets
        for number, progress in events:
            ticket = tickets[number]
            ticket.progress = progress
            result = progress.result
            if result is not None:
                if self.stopping.is_set() and result.stopped == "cancelled" and not result.best:
                    continue  # there is nothing to answer with
                ticket.result = result
                del tickets[number]
                self._forget(ticket)
                if result.error is not None:
                    log.warning("a problem failed: %s", result.error)
            ticket.notify()

    def _step(self, group: ProblemGroup) -> None:
        driver, tickets = group.driver, group.tickets
        self._tell(group, driver.step())
        for number, ticket in tickets.items():
            active = driver.active.get(number)
            if ticket.follow and active is not None and active.growing:
                ticket.written = {
                    branch.path[-1]: TokensSoFar(
                        branch.generated,
                        branch.logprobs[:],
                        branch.alternatives,
                        branch.prompt_length,
                    )
                    for branch in active.growing
                }
                ticket.notify()

    def _fail_all(self, under_way: list[Ticket], error: Exception) -> None:
        """What a pass that raised means for the problems that shared it."""
        if len(under_way) == 1:
            log.exception(
                "the problem is to blame that begins with %.80r", under_way[0].problem.question
            )
            message = f"the server failed: {type(error).__name__}: {error}"
            self._fail(under_way[0], Refusal(500, message))
        else:
            log.exception("a pass failed with %d problems under way", len(under_way))
            self.retried += under_way

    def _join(self, ticket: Ticket, group: ProblemGroup | None = None) -> None:
        ticket.group = group or self.main
        ticket.number = ticket.group.driver.add_from(
            ticket.problem, ticket.config, ticket.client, ticket.prompt_tokens
        )
        ticket.group.tickets[ticket.number] = ticket

    def _leave(self, ticket: Ticket) -> None:
        """Let go of a problem, wherever it is."""
        if ticket.ended or ticket not in self.open:
            return
        if ticket in self.retried:
            self.retried.remove(ticket)
        elif ticket.group is not None:
            driver = ticket.group.driver
            active = driver.active.get(ticket.number)
            if ticket.count is not None and active is not None:
                ticket.count(active.root.usage)  # until its client left
            driver.cancel(ticket.number)
            del ticket.group.tickets[ticket.number]
        self._forget(ticket)

    def _forget(self, ticket: Ticket) -> None:
        with self.lock:
            self.open.discard(ticket)
            self.ends.append(time.monotonic())

    def _fail(self, ticket: Ticket, error: Refusal) -> None:
        ticket.error = error
        self._forget(ticket)
        ticket.notify()

    def _free(self, group: ProblemGroup) -> None:
        try:
            group.driver.close()
        except Exception:
            log.exception("what was under way could not be freed")


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
