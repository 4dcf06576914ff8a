"""One request from the moment it is taken in until its last byte is sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from experiments.server.metrics import Metrics
from experiments.server.refusal import CLIENT_LEFT, Refusal
from experiments.server.replies import Event, ServerReply, comment, event
from experiments.server.service import Service, Ticket
from ttc.results import Result

QUIET_S = 15
"""Seconds after which a stream that has nothing to say says so, that nobody takes the connection
for dead."""


@dataclass
class Exchange:
    """began: by the monotonic clock."""

    service: Service
    metrics: Metrics
    tickets: list[Ticket]
    reply: ServerReply
    began: float

    async def whole(self, request: Request) -> JSONResponse:
        """The reply in one piece. A client that leaves ends its searches."""
        try:
            return JSONResponse(self.reply.whole(await self._results(request)))
        finally:
            self.close()

    async def _results(self, request: Request) -> list[Result]:
        ends = asyncio.create_task(self._all_end())
        left = asyncio.create_task(_left(request))
        try:
            await asyncio.wait([ends, left], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ends.cancel()
            left.cancel()
        if not self._ended:
            raise Refusal(CLIENT_LEFT, "the client has left")
        return [ticket.outcome() for ticket in self.tickets]

    async def _all_end(self) -> None:
        for ticket in self.tickets:
            await ticket.end()

    async def events(self) -> AsyncIterator[str]:
        """The plain model's tokens as they come; a search's answer at its end, and until then
        chunks without text that tell its progress."""
        reply, ticket = self.reply, self.tickets[0]
        sent: dict[int, dict[str, str]] = {index: {} for index in range(reply.body.n)}
        try:
            for first in reply.opening():
                yield event(first)
            while not ticket.ended:
                try:
                    await asyncio.wait_for(ticket.changed.wait(), QUIET_S)
                except TimeoutError:
                    yield comment("waiting" if ticket.progress is None else "searching")
                    continue
                ticket.changed.clear()
                for index, written in ticket.written.items():
                    for field, text in _news(sent[index], reply.settled(written.tokens)):
                        for more in reply.more(index, field, text, written):
                            yield event(more)
                if not ticket.follow and ticket.progress is not None and not ticket.ended:
                    for progressed in reply.progressed(ticket.progress):
                        yield event(progressed)
            for last in self._last_events(ticket.outcome(), sent):
                yield event(last)
        except Refusal as refusal:
            for failed in reply.failed(refusal):
                yield event(failed)

    def _last_events(
        self, result: Result, sent: dict[int, dict[str, str]]
    ) -> Iterator[Event | str]:
        """What is left to be told once all is written. sent: of each choice, by field."""
        reply = self.reply
        for index, choice in enumerate(reply.choices(result)):
            whole = self.tickets[0].follow and not choice.calls
            parts = reply.streamed(choice.written.tokens) if whole else reply.parts(choice)
            for field, text in _news(sent[index], parts):
                yield from reply.more(index, field, text, choice.written)
            yield from reply.ended(index, choice, result)
        yield from reply.closing(result)

    def close(self) -> None:
        """Give up what has not ended, and count the request."""
        for ticket in self.tickets:
            if not ticket.ended:
                ticket.count = partial(self.metrics.used, self.reply.search)
                self.service.cancel(ticket)
            elif ticket.progress is not None:
                self.metrics.used(self.reply.search, ticket.progress.usage)
        self.metrics.ended(self.reply.search, self._status(), time.monotonic() - self.began)

    @property
    def _ended(self) -> bool:
        return all(ticket.ended for ticket in self.tickets)

    def _status(self) -> int:
        if not self._ended:
            return CLIENT_LEFT
        try:
            for ticket in self.tickets:
                ticket.outcome()
        except Refusal as refusal:
            return refusal.status
        return 200


class EventStream(StreamingResponse):
    """The reply piece by piece; it closes the exchange even where the client left before anything
    was sent."""

    def __init__(self, exchange: Exchange):
        super().__init__(
            exchange.events(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"}
        )
        self.exchange = exchange

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.exchange.close()


def _news(sent: dict[str, str], parts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What each part of a reply has beyond what was sent of it, which is kept in `sent`."""
    for name, text in parts.items():
        before = sent.get(name, "")
        if text.startswith(before) and text != before:
            sent[name] = text
            yield name, text[len(before) :]


async def _left(request: Request) -> None:
    """Return when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
