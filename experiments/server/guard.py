"""Who may call the server."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from experiments.server.refusal import Refusal


class Guard:
    """Turns away who may not call.

    key: what callers must send as `Authorization: Bearer KEY`, None for nothing; /health is open to
    all.
    hosts: the names under which the server may be called, None for any. This refuses a web page
    that has its own name lead to this machine (DNS rebinding), where no key keeps it out.
    """

    def __init__(self, app: ASGIApp, key: str | None, hosts: Sequence[str] | None):
        self.app = app
        self.hosts = hosts
        self.digest = None if key is None else _digest(key.encode("utf-8", "surrogateescape"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            refusal = self._wrong_key(scope["path"], headers) or self._wrong_host(headers)
            app = self.app if refusal is None else refusal.response()
        await app(scope, receive, send)

    def _wrong_key(self, path: str, headers: Headers) -> Refusal | None:
        if self.digest is None or path == "/health":
            return None
        scheme, _, key = headers.get("authorization", "").partition(" ")
        digest = _digest(key.strip().encode("latin-1"))
        if scheme.lower() == "bearer" and hmac.compare_digest(digest, self.digest):
            return None
        return Refusal(
            401,
            f"the API key is {'wrong' if key else 'missing'}; send Authorization: Bearer KEY with "
            "the key of this server",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _wrong_host(self, headers: Headers) -> Refusal | None:
        host = headers.get("host", "").strip().lower()
        name = host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]
        if self.hosts is None or name in self.hosts:
            return None
        return Refusal(
            403,
            f"the host {host!r} is not this server's; call {self.hosts[0]}, or have the server ask "
            "for a key",
        )


def _digest(key: bytes) -> bytes:
    """Of one length for all keys, so that comparing takes the same time for all."""
    return hashlib.sha256(key).digest()
