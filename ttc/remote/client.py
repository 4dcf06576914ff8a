"""Requests to a server, from a thread of their own, repeated where that may help."""

from __future__ import annotations

import asyncio
import json
import weakref
import zlib
from collections.abc import Callable
from concurrent.futures import Future
from random import Random
from reprlib import Repr
from threading import Thread
from typing import Any, TypeVar

import httpx2

from ttc.errors import ContentRefused, RemoteError, RequestRefused, refusing
from ttc.remote.endpoint import Endpoint
from ttc.text.encodable import encodable

MAX_WAIT_S = 30.0
CONNECT_S = 10.0
TOKEN_BYTES = 2**12
"""Of an answer, for each token of prompt and answer: 20 log-probabilities take less."""
OTHER_BYTES = 2**22
"""Of an answer, for all else, and for a list of models."""
GZIP = 31
"""zlib's window bits for gzip: the one packing that is asked for, unpacked up to a limit."""
PASSING = frozenset({408, 409, 425, 429})
"""Refusals that may be over the next time, as every status from 500 on may be."""
OF_THE_CONTENT = frozenset({400, 413, 422})
"""Refusals of what one request holds."""

T = TypeVar("T")


class Passing(RemoteError):
    """A failure that may be over the next time. wait_s: how long the server asks to wait, if it
    does."""

    def __init__(self, message: str, wait_s: float | None = None):
        super().__init__(message)
        self.wait_s = wait_s


class Client:
    """Sends requests to one endpoint, and repeats those whose failure may pass: no connection, no
    answer in time, one that breaks off or cannot be read, a status of 429 or from 500 on.

    An answer has `timeout_s` as a whole, however slowly its parts come, and `most_bytes`. All
    that it holds is data of a stranger: what reads it raises `Passing` for what cannot be.
    A request is repeated as it was, its seed included. Cancelling its future closes its connection,
    so that the server stops working on it.
    """

    def __init__(self, endpoint: Endpoint):
        self.endpoint = endpoint
        key = endpoint.key()
        self.http = httpx2.AsyncClient(
            base_url=endpoint.base_url.rstrip("/") + "/",
            headers={"Accept-Encoding": "gzip"}
            | ({} if key is None else {"Authorization": f"Bearer {key}"}),
            timeout=httpx2.Timeout(endpoint.timeout_s, connect=min(CONNECT_S, endpoint.timeout_s)),
            limits=httpx2.Limits(
                max_connections=None, max_keepalive_connections=endpoint.concurrency
            ),
            trust_env=not endpoint.local,  # a proxy does not know this machine's servers
        )
        self._slots = asyncio.Semaphore(endpoint.concurrency)
        self._random = Random()
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=_run, args=(self._loop,), name="remote", daemon=True)
        self._thread.start()
        self._end = weakref.finalize(self, _end, self._loop, self.http)

    def get(self, path: str, read: Callable[[Any], T], *, retries: int | None = None) -> T:
        return self._submit(read, retries, method="GET", url=path).result()

    def post(
        self,
        path: str,
        body: dict[str, Any],
        read: Callable[[Any], T],
        *,
        retries: int | None = None,
    ) -> Future[T]:
        return self._submit(read, retries, method="POST", url=path, json=body)

    def close(self) -> None:
        self._end()
        self._thread.join(CONNECT_S)

    def _submit(self, read: Callable[[Any], T], retries: int | None, **request: Any) -> Future[T]:
        if not self._end.alive:
            raise RemoteError(
                f"the connection to {self.endpoint.base_url} was closed; make a new backend"
            )
        retries = self.endpoint.retries if retries is None else retries
        return asyncio.run_coroutine_threadsafe(self._answer(read, retries, request), self._loop)

    async def _answer(self, read: Callable[[Any], T], retries: int, request: dict[str, Any]) -> T:
        async with self._slots:
            attempt = 0
            while True:
                try:
                    return read(await self._once(request))
                except Passing as failure:
                    if attempt == retries:
                        times = f" ({attempt + 1} times)" if attempt else ""
                        message = f"{self.endpoint.base_url} {failure}{times}"
                        raise RemoteError(message) from None  # the message has the cause
                    wait_s = failure.wait_s
                    if wait_s is None:
                        backoff_s = min(MAX_WAIT_S, self.endpoint.wait_s * 2**attempt)
                        wait_s = backoff_s * self._random.uniform(0.5, 1)
                await asyncio.sleep(min(wait_s, MAX_WAIT_S))
                attempt += 1

    async def _once(self, request: dict[str, Any]) -> Any:
        late = (
            f"has not answered in {self.endpoint.timeout_s:g} s; give a larger timeout_s or a "
            "smaller concurrency"
        )
        unreached = "cannot be reached ({error}); start the server, or give another base_url"
        broken = "broke off its answer ({error}); look into the server's log"
        with (  # the last that fits
            refusing((httpx2.TransportError, zlib.error), broken, Passing),
            refusing((TimeoutError, httpx2.TimeoutException), late, Passing),
            refusing(httpx2.ConnectError, unreached, Passing),
        ):
            async with asyncio.timeout(self.endpoint.timeout_s):
                answer, body = await self._received(request)
        if answer.status_code >= 300:
            raise self._refusal(answer, body)
        no_json = f"answered with what is no JSON: {_start(body, 80)!r}; is base_url right?"
        with refusing((ValueError, RecursionError), no_json, Passing):
            return encodable(json.loads(body))

    async def _received(self, request: dict[str, Any]) -> tuple[httpx2.Response, bytes]:
        most = most_bytes(request.get("json"))
        body = bytearray()
        async with self.http.stream(**request) as answer:
            packed = answer.headers.get("content-encoding", "").lower() == "gzip"
            unpack = zlib.decompressobj(GZIP).decompress if packed else lambda part, _: part
            async for part in answer.aiter_raw():
                body += unpack(part, most + 1)
                if len(body) > most:
                    raise Passing(
                        f"answered with more than {most} bytes, which no answer to such a request "
                        "has; look into the server's log"
                    )
        return answer, bytes(body)

    def _refusal(self, answer: httpx2.Response, body: bytes) -> RemoteError:
        status = answer.status_code
        answered = f"answered with status {status}: {_message(body)}"
        if status in PASSING or status >= 500:
            wait = answer.headers.get("retry-after", "")
            return Passing(answered, float(wait) if wait.isdecimal() else None)
        hint = ""
        if status < 400:
            answered = f"answered with status {status}, a redirect"
            target = encodable(answer.headers.get("location", "another address"))
            hint = f" to {short_repr(target)}; give the address that answers itself as base_url"
        elif status in (401, 403):
            name = self.endpoint.key_env
            hint = f"; put the server's API key into the environment variable {name}"
        elif status == 404:
            hint = (
                "; base_url must end with the version, as /v1, and the server offer /completions "
                "(not chat alone)"
            )
        kind = ContentRefused if status in OF_THE_CONTENT else RequestRefused
        return kind(f"{self.endpoint.base_url} {answered}{hint}")


def most_bytes(request: dict[str, Any] | None) -> int:
    """What an answer to a completion request may have, or to another request (None)."""
    tokens = 0 if request is None else len(request["prompt"]) + request["max_tokens"]
    return OTHER_BYTES + tokens * TOKEN_BYTES


def short_repr(value: Any) -> str:
    """What a server has sent, in a message: its beginning, however long or deep it is."""
    short = Repr()
    short.maxlevel, short.maxstring, short.maxother = 4, 120, 120
    return short.repr(value)[:200]


def _start(body: bytes, length: int) -> str:
    return body[: 4 * length].decode("utf-8", "replace")[:length]


def _message(body: bytes) -> str:
    try:
        data = encodable(json.loads(body))
    except (ValueError, RecursionError):
        return repr(_start(body, 200))
    error = data.get("error", data.get("detail", data)) if isinstance(data, dict) else data
    message = error.get("message", error) if isinstance(error, dict) else error
    text = message[:1000] if isinstance(message, str) else short_repr(message)
    return " ".join(text.split())[:300]


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _end(loop: asyncio.AbstractEventLoop, http: httpx2.AsyncClient) -> None:
    async def finish() -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await http.aclose()
        loop.stop()

    asyncio.run_coroutine_threadsafe(finish(), loop)
