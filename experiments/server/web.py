"""The web server: how long it waits for clients, how many it takes, and how it ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from experiments.server.app import Api
from experiments.server.settings import ServeConfig

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
        http=patient(config.header_s),
        log_config=None,
        access_log=False,
        lifespan="on",
        limit_concurrency=config.max_connections + 1,
        timeout_graceful_shutdown=config.shutdown_s + ANSWER_S,
    )
    return WebServer(settings, api, config.shutdown_s)


def patient(header_s: float) -> type[asyncio.Protocol]:
    """The protocol of connections, which closes one that has sent no head of a request in so many
    seconds."""

    class Patient(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
        late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
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
                self.late = self.loop.call_later(header_s, self.transport.abort)

        def stop_watching(self) -> None:
            if self.late is not None:
                self.late.cancel()
                self.late = None

    return Patient
