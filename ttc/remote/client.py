"""Requests to a server: so many at once, from a thread of their own, and again where that may help."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from random import Random
from threading import Thread
from typing import Any, TypeVar

import httpx2

from ttc.errors import RemoteError
from ttc.remote.endpoint import Endpoint

LONGEST_WAIT_S, CONNECT_S = 30.0, 10.0
PASSING = frozenset({408, 409, 425, 429})
"""Refusals that may be over the next time, as every status from 500 on may be."""
OWN = frozenset({400, 413, 422})
"""Refusals of what one request holds."""

T = TypeVar("T")


class Passing(RemoteError):
    """A failure that may be over the next time. wait_s: how long the server asks to wait, None where it does not."""

    def __init__(self, message: str, wait_s: float | None = None):
        super().__init__(message)
        self.wait_s = wait_s


class Refused(RemoteError):
    """A request that the server will never answer as it is."""


class ContentRefused(Refused):
    """A request that is refused for what is in it, so that it says nothing of other requests."""


class Client:
    """Sends requests to one endpoint, and repeats those that fail in a way that may pass: no connection, no answer in
    time, an answer that breaks off, a status of 429 or from 500 on, or an answer that the reader cannot use.

    A request is repeated as it was, its seed included. Cancelling the future of a request closes its connection, so
    that the server stops working on it.
    """

    def __init__(self, endpoint: Endpoint):
        self.endpoint = endpoint
        key = endpoint.key()
        self.http = httpx2.AsyncClient(
            base_url=endpoint.base_url.rstrip("/") + "/",
            headers={} if key is None else {"Authorization": f"Bearer {key}"},
            timeout=httpx2.Timeout(endpoint.timeout_s, connect=min(CONNECT_S, endpoint.timeout_s)),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=endpoint.concurrency),
            trust_env=not endpoint.local,  # a proxy does not know this machine's own servers
        )
        self._slots = asyncio.Semaphore(endpoint.concurrency)
        self._random = Random()
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=_run, args=(self._loop,), name="remote", daemon=True)
        self._thread.start()
        self._end = weakref.finalize(self, _end, self._loop, self.http)

    def get(self, path: str, read: Callable[[Any], T], *, retries: int | None = None) -> T:
        """The answer to a question, as `read` makes it of its JSON."""
        return self._submit("GET", path, None, read, retries).result()

    def post(
        self, path: str, body: dict[str, Any], read: Callable[[Any], T], *, retries: int | None = None
    ) -> Future[T]:
        """Send a request. The future gives what `read` makes of the answer, or raises RemoteError."""
        return self._submit("POST", path, body, read, retries)

    def close(self) -> None:
        """Break off what is under way, and end the thread."""
        self._end()
        self._thread.join(CONNECT_S)

    def _submit(
        self, method: str, path: str, body: dict[str, Any] | None, read: Callable[[Any], T], retries: int | None
    ) -> Future[T]:
        if not self._end.alive:
            raise RemoteError(f"the connection to {self.endpoint.base_url} was closed; make a new backend")
        most = self.endpoint.retries if retries is None else retries
        return asyncio.run_coroutine_threadsafe(self._answer(method, path, body, read, most), self._loop)

    async def _answer(
        self, method: str, path: str, body: dict[str, Any] | None, read: Callable[[Any], T], retries: int
    ) -> T:
        async with self._slots:
            for attempt in count():
                try:
                    return await self._once(method, path, body, read)
                except Passing as failure:
                    if attempt == retries:
                        times = f" ({attempt + 1} times)" if attempt else ""
                        raise RemoteError(f"{self.endpoint.base_url} {failure}{times}") from failure
                    longest = min(LONGEST_WAIT_S, self.endpoint.wait_s * 2**attempt)
                    wait_s = failure.wait_s if failure.wait_s is not None else longest * self._random.uniform(0.5, 1)
                await asyncio.sleep(min(wait_s, LONGEST_WAIT_S))
        raise AssertionError("count() has no end")

    async def _once(self, method: str, path: str, body: dict[str, Any] | None, read: Callable[[Any], T]) -> T:
        try:
            answer = await self.http.request(method, path, json=body)
        except httpx2.ConnectError as error:
            raise Passing(f"cannot be reached ({error}); start the server, or give another base_url") from error
        except httpx2.TimeoutException as error:
            raise Passing(
                f"has not answered in {self.endpoint.timeout_s:g} s; give a larger timeout_s or a smaller concurrency"
            ) from error
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise Passing(f"broke off its answer ({error}); look into the server's log") from error
        if answer.status_code >= 400:
            raise self._refusal(answer)
        try:
            data = answer.json()
        except ValueError as error:
            raise Passing(f"answered with what is no JSON: {answer.text[:80]!r}; is base_url right?") from error
        return read(data)

    def _refusal(self, answer: httpx2.Response) -> RemoteError:
        status, said = answer.status_code, _message(answer)
        if status in PASSING or status >= 500:
            asked = answer.headers.get("retry-after", "")
            wait_s = float(asked) if asked.replace(".", "", 1).isdigit() else None
            return Passing(f"answered with status {status}: {said}", wait_s)
        hint = ""
        if status in (401, 403):
            hint = f"; put the server's API key into the environment variable {self.endpoint.key_env}"
        elif status == 404:
            hint = "; base_url must end with the version, as /v1, and the server offer /completions (not chat alone)"
        kind = ContentRefused if status in OWN else Refused
        return kind(f"{self.endpoint.base_url} answered with status {status}: {said}{hint}")


def _message(answer: httpx2.Response) -> str:
    """What a server says of an error, in a line."""
    try:
        data = answer.json()
    except ValueError:
        return repr(answer.text[:200])
    error = data.get("error", data.get("detail", data)) if isinstance(data, dict) else data
    said = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(said).split())[:300]


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _end(loop: asyncio.AbstractEventLoop, http: httpx2.AsyncClient) -> None:
    """Cancel what is under way and stop the loop; it may be called from any thread, the loop's own too."""

    async def finish() -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await http.aclose()
        loop.stop()

    asyncio.run_coroutine_threadsafe(finish(), loop)
