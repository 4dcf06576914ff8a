"""The web server: how long it waits for clients, how many it takes, and how it ends."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Sequence
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from experiments.server.access import log
from experiments.server.app import Api
from experiments.server.refusal import Refusal
from experiments.server.settings import ServeConfig

SPARE_FILES = 64
"""Open files that are left to the process beside its connections."""

WRITE_S = 30.0
"""Seconds in which a client that has been sent more than it takes must have read some of it."""

IDLE_S = 75
"""Seconds for which a connection waits for its next request. Clients and proxies that keep one for
less (httpx 5, aiohttp 15, nginx 60) close it first: a request is lost that meets its closing."""

ANSWER_S = 1
"""Seconds in which clients are told that the server ends."""


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
        if under_way := service.under_way():
            log.info("stopping: %s; %d s to end", under_way, self.shutdown_s)
        else:
            log.info("stopping: nothing is under way")
        end = asyncio.get_running_loop().call_later(self.shutdown_s, service.break_off)
        try:
            await super().shutdown(sockets)
        finally:
            end.cancel()


def server(
    api: Api,
    key: str | None = None,
    hosts: Sequence[str] | None = None,
    config: ServeConfig | None = None,
) -> WebServer:
    """The web server. key, hosts: see `Guard`."""
    config = config or ServeConfig()
    settings = uvicorn.Config(
        api.app(key, hosts),
        http=patient(config),
        log_config=None,
        access_log=False,
        lifespan="on",
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=config.shutdown_s + ANSWER_S,
    )
    return WebServer(settings, api, config.shutdown_s)


def patient(config: ServeConfig) -> type[asyncio.Protocol]:
    """The protocol of connections, which closes one that has sent no head of a request in time, one
    that does not read what it is sent, and one too many."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = min(config.max_connections, max(1, files - SPARE_FILES))
    full = "the server has as many connections as it takes; ask again later"
    body = bytes(Refusal(503, full, code="connections").response().body)
    refusal = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n"
    refusal += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    class Patient(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
        """late, unread: what closes the connection where no head comes, and where nothing is
        read."""

        late: asyncio.TimerHandle | None = None
        unread: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > most:
                transport.write(refusal)
                transport.close()
            self.watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.watch()

        def pause_writing(self) -> None:
            """More than the transport's buffer holds waits for the client."""
            super().pause_writing()
            self.unread = self.loop.call_later(WRITE_S, self.transport.abort)

        def resume_writing(self) -> None:
            self.unread = stopped(self.unread)
            super().resume_writing()

        def connection_lost(self, exc: Exception | None) -> None:
            self.late, self.unread = stopped(self.late), stopped(self.unread)
            super().connection_lost(exc)

        def watch(self) -> None:
            """Wait for the head of a request, where none is under way."""
            if self.cycle is not None and not self.cycle.response_complete:
                self.late = stopped(self.late)
            elif self.late is None:
                self.late = self.loop.call_later(config.header_s, self.transport.abort)

    return Patient


def stopped(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """None, in place of a timer that is of no use any more."""
    if timer is not None:
        timer.cancel()
    return None
