"""The web server: how long it waits for clients, how many it takes, and how it ends."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from experiments.server.app import Api
from experiments.server.refusal import Refusal

SPARE_FILES = 64
"""Open files that are left to the process beside its connections."""

ANSWER_S = 1
"""Seconds in which clients are told that the server ends."""


@dataclass(frozen=True)
class Patience:
    """What clients may take.

    shutdown_s: the seconds in which what is under way may end, once the process is told to stop.
    header_s: those in which the head of a request must have come. write_s: those in which a client
    that has been sent more than it takes must have read some of it. max_connections: that are open
    at once.
    """

    shutdown_s: int = 30
    header_s: float = 10
    write_s: float = 30
    max_connections: int = 512

    @property
    def connections(self) -> int:
        """The most connections that there are files for."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return min(self.max_connections, max(1, files - SPARE_FILES))


class WebServer(uvicorn.Server):
    """Ends in time: what is under way after `shutdown_s` is broken off, and its clients get status
    503."""

    def __init__(self, config: uvicorn.Config, api: Api, shutdown_s: int):
        super().__init__(config)
        self.api = api
        self.shutdown_s = shutdown_s

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        service = self.api.service
        service.take_no_more()
        end = asyncio.get_running_loop().call_later(self.shutdown_s, service.break_off)
        try:
            await super().shutdown(sockets)
        finally:
            end.cancel()


def server(
    api: Api,
    key: str | None = None,
    hosts: Sequence[str] | None = None,
    patience: Patience | None = None,
) -> WebServer:
    """The web server. key, hosts: see `Guard`."""
    patience = patience or Patience()
    settings = uvicorn.Config(
        api.app(key, hosts),
        http=patient(patience),
        log_config=None,
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=patience.shutdown_s + ANSWER_S,
    )
    return WebServer(settings, api, patience.shutdown_s)


class TimedProtocol(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
    """Closes a connection whose client does not read what it is sent within `write_s` seconds."""

    write_s: float
    unread: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """More than the transport's buffer holds waits for the client."""
        super().pause_writing()
        self.unread = self.loop.call_later(self.write_s, self.transport.abort)

    def resume_writing(self) -> None:
        self.stop_waiting()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_waiting()
        super().connection_lost(exc)

    def stop_waiting(self) -> None:
        if self.unread is not None:
            self.unread.cancel()
            self.unread = None


def patient(patience: Patience) -> type[asyncio.Protocol]:
    """The protocol of connections, which closes one that has sent no head of a request in time, one
    that does not read what it is sent, and one too many."""
    full = Refusal(
        503, "the server has as many connections as it takes; ask again later", code="connections"
    )
    data = full.response()
    refusal = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n"
    refusal += b"Content-Type: application/json\r\n"
    refusal += b"Content-Length: %d\r\n\r\n" % len(data.body) + bytes(data.body)

    class Patient(TimedProtocol):
        late: asyncio.TimerHandle | None = None
        write_s = patience.write_s

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > patience.connections:
                transport.write(refusal)
                transport.close()
            self.watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self.stop_watching()
            super().connection_lost(exc)

        def watch(self) -> None:
            """Wait for the head of a request, where none is under way."""
            if self.cycle is not None and not self.cycle.response_complete:
                self.stop_watching()
            elif self.late is None:
                self.late = self.loop.call_later(patience.header_s, self.transport.abort)

        def stop_watching(self) -> None:
            if self.late is not None:
                self.late.cancel()
                self.late = None

    return Patient
