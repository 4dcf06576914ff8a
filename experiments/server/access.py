"""The server's log: a line for each request, and what went wrong."""

from __future__ import annotations

import logging
import sys
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from experiments.runs.private import without_quotes
from experiments.server.refusal import CLIENT_LEFT

REFUSED = "ttc.refused"
"""Of a request that was refused, the field that is to blame."""

log = logging.getLogger("ttc.serve")


class WithoutTexts(logging.Formatter):
    """Leaves out what a warning or an error may repeat of a request."""

    def format(self, record: logging.LogRecord) -> str:
        if record.levelno >= logging.WARNING:
            message = without_quotes(record.getMessage())
            values = vars(record) | {"msg": message, "args": (), "exc_info": None, "exc_text": None}
            record = logging.makeLogRecord(values)
        return super().format(record)


def show_log(private: bool = False) -> None:
    """Write the log to standard error, whatever has been made of Python's logging before. private:
    without texts of requests (`dataset.private`)."""
    log.disabled = False
    log.propagate = False
    log.setLevel(logging.INFO)
    if not log.handlers:
        log.addHandler(logging.StreamHandler(sys.stderr))
    written = WithoutTexts if private else logging.Formatter
    for handler in log.handlers:
        handler.setFormatter(written("%(asctime)s %(levelname)s %(message)s"))


class AccessLog:
    """Logs each request once its last byte is sent: who asked for what, the status and the seconds.
    A client that left before there was an answer has status 499. Of a request that was refused the
    field is named, and not what it holds."""

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
            request = f"{scope['method']} {scope['path']}"
            seconds = time.monotonic() - began
            line = "%s:%d %.200a %d %.3f s"
            if field := scope.get(REFUSED):
                log.info(f"{line}, refused for %.100a", host, port, request, status, seconds, field)
            else:
                log.info(line, host, port, request, status, seconds)
