"""The server's log: a line for each request, and what went wrong."""

from __future__ import annotations

import logging
import sys
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from experiments.serve.refusal import CLIENT_LEFT

log = logging.getLogger("ttc.serve")


def show_log() -> None:
    """Write the log to standard error, whatever has been made of Python's logging before."""
    log.disabled = False
    log.propagate = False
    log.setLevel(logging.INFO)
    if not log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)


class AccessLog:
    """Logs each request once its last byte is sent: who asked for what, the status and the seconds.
    A client that left before there was an answer has status 499."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.monotonic(), CLIENT_LEFT

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, sent)
        finally:
            host, port = scope.get("client") or ("?", 0)
            asked = f"{scope['method']} {scope['path']}"
            log.info("%s:%d %.200a %d %.3f s", host, port, asked, status, time.monotonic() - began)
