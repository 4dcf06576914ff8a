"""The web application: paths, who may call them, and what a request goes through."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from secrets import randbelow
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from experiments.runs.grading import Reading
from experiments.serve.conversation import Conversation
from experiments.serve.metrics import Metrics
from experiments.serve.offer import PLAIN, Offer
from experiments.serve.refusal import Refusal
from experiments.serve.replies import Reply, comment, event
from experiments.serve.requests import Body, ChatBody, CompletionBody, read
from experiments.serve.service import STOPPING, Service, Ticket
from search import Search
from search.budget import Budget
from search.config import SearchConfig
from search.options import SolveOptions
from ttc.errors import ContextExceeded, InvalidInput
from ttc.protocols import Problem
from ttc.results import Result
from ttc.text.prompt import PromptTemplate

BODY_S = 30
"""Seconds within which a request's body must have come."""

QUIET_S = 15
"""Seconds after which a stream that has nothing to say says so, that nobody takes the connection for dead."""

MOST_STOPS = 16
"""Stop strings of one request: each is looked for after every token."""

CLIENT_LEFT = 499
"""The status under which requests are counted whose client has left."""


@dataclass
class Api:
    """What the paths do.

    options: how problems are solved where a request does not say: the verifier for searches that rate, how answers are
    read, what tells thoughts from them, and the most that one problem may cost.
    max_prompt_tokens: None for what the model's context holds.
    chat_options: further variables for the chat template.
    """

    service: Service
    offer: Offer
    options: SolveOptions
    max_body_bytes: int
    max_prompt_tokens: int | None = None
    chat_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.metrics, self.started = Metrics(self.service), int(time.time())

    def app(self, key: str | None, hosts: Sequence[str] | None) -> Starlette:
        """The application. key, hosts: see `Guard`. The service ends with it."""

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            yield
            await asyncio.to_thread(self.service.close)

        return Starlette(
            routes=[
                Route("/health", self.health),
                Route("/metrics", self.show_metrics),
                Route("/v1/models", self.models),
                Route("/v1/models/{name:path}", self.model),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/completions", self.completions, methods=["POST"]),
            ],
            middleware=[Middleware(Guard, key=key, hosts=hosts)],
            exception_handlers={Refusal: _refused, HTTPException: _not_found, Exception: _broken},
            lifespan=lifespan,
        )

    # ------------------------------------------------------------ what is asked about the server

    async def health(self, _: Request) -> Response:
        if not self.service.healthy:
            raise Refusal(503, STOPPING)
        return JSONResponse({"status": "ok", "model": self.offer.model})

    async def show_metrics(self, _: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._about(name) for name in self.offer.names()]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self.offer.names():
            known = ", ".join(self.offer.names())
            raise Refusal(404, f"the model {name!r} does not exist; use one of {known}", code="model_not_found")
        return JSONResponse(self._about(name))

    def _about(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self.started, "owned_by": "ttc"}

    # ------------------------------------------------------------ what is asked of the model

    async def chat(self, request: Request) -> Response:
        return await self._answer(request, ChatBody)

    async def completions(self, request: Request) -> Response:
        return await self._answer(request, CompletionBody)

    async def _answer(self, request: Request, kind: type[Body]) -> Response:
        """One request, from its body to its reply, or to the beginning of its stream."""
        began, name = time.monotonic(), "unknown"
        try:
            body = read(kind, await self._body(request))
            name, search = self.offer.search(body)
            config, problems, prompt_tokens, begun = await asyncio.to_thread(self._prepared, body, search)
            tickets = [Ticket(p, config, follow=body.stream and name == PLAIN) for p in problems]
            about = body.model, name, config.options.seed, config.end, body.most_tokens, prompt_tokens
            reply = Reply(self.service.engine, isinstance(body, ChatBody), *about, config.thoughts, begun)
            self.service.submit(tickets)
            if body.stream:
                over = partial(self._stream_over, tickets[0], reply, began)
                return EventStream(self._stream(tickets[0], reply, body), over)
            results = await self._results(tickets, reply, request)
        except Refusal as refusal:
            self.metrics.ended(name, refusal.status, time.monotonic() - began)
            raise
        self.metrics.ended(name, 200, time.monotonic() - began)
        return JSONResponse(reply.whole(results))

    async def _body(self, request: Request) -> bytes:
        """The bytes of a body. Raises Refusal for one that is too long, or no JSON by its own word: a web page may send
        other kinds to any address without asking."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refusal(415, "the body must be JSON; send it with the header Content-Type: application/json")
        most, body = self.max_body_bytes, bytearray()
        too_long = Refusal(
            413,
            f"the body is longer than {most} bytes; send less, or have the server started with serve.max_body_bytes=N",
            headers={"Connection": "close"},
        )
        length = request.headers.get("content-length", "")
        if length.isdecimal() and (len(length) > 18 or int(length) > most):
            raise too_long
        try:
            async with asyncio.timeout(BODY_S):
                async for part in request.stream():
                    body += part
                    if len(body) > most:
                        raise too_long
        except TimeoutError:
            raise Refusal(408, f"the body did not come within {BODY_S} s", headers={"Connection": "close"}) from None
        except ClientDisconnect:
            raise Refusal(CLIENT_LEFT, "the client has left") from None
        return bytes(body)

    def _prepared(self, body: Body, search: Search) -> tuple[SearchConfig, list[Problem], int, bool]:
        """A request as problems with a configuration, the number of their prompts' tokens, and whether the last prompt
        begins a thought. Raises Refusal for what cannot be."""
        if len(body.stops) > MOST_STOPS:
            raise Refusal(400, f"stop holds {len(body.stops)} strings; give at most {MOST_STOPS}", param="stop")
        field = "messages" if isinstance(body, ChatBody) else "prompt"
        if isinstance(body, ChatBody):
            *earlier, last = body.messages
            if last.role != "user":
                raise Refusal(400, f"the last message is the {last.role}'s; end with one of the user", param=field)
            questions = [last.text]
            template: PromptTemplate = Conversation(
                earlier=tuple(message.as_template() for message in earlier), options=self.chat_options
            )
        else:
            assert isinstance(body, CompletionBody)
            questions, template = body.prompts, PromptTemplate("{question}", raw=True)
            if len(questions) != 1 and (body.stream or not questions):
                raise Refusal(400, f"prompt holds {len(questions)} texts; give one, or leave stream out", param=field)
        try:
            config = SearchConfig.of(search, self.service.engine, self._options(body, search, template))
        except InvalidInput as error:
            raise Refusal.of(error) from error
        try:
            prompts = [self._prompt(template, question) for question in questions]
        except InvalidInput as error:
            raise Refusal.of(error, field) from error
        end = template.end_of_prompt(questions[-1], self.service.engine.tokenizer)
        begun = config.thoughts is not None and config.thoughts.begun(prompts[-1], end)
        return config, [Problem(question) for question in questions], sum(map(len, prompts)), begun

    def _options(self, body: Body, search: Search, template: PromptTemplate) -> SolveOptions:
        """The server's options with what a request says itself. Raises InvalidInput and Refusal for what cannot be."""
        given: dict[str, Any] = Reading(body.answer_kind).options() if body.answer_kind else {}
        return replace(
            self.options,
            verifier=self.options.verifier if search.needs_verifier else None,
            seed=randbelow(2**31) if body.seed is None else body.seed,
            template=template,
            end=body.stops,
            budget=self._budget(body),
            **given,
        )

    def _budget(self, body: Body) -> Budget:
        """What each problem may cost: what the server allows, or less."""
        budget, tokens = self.options.budget, body.max_generated_tokens
        if tokens is None:
            return budget
        limit = budget.max_generated_tokens
        if limit is not None and tokens > limit:
            raise Refusal(
                400,
                f"max_generated_tokens={tokens} is more than this server's {limit}; give less",
                param="max_generated_tokens",
            )
        return replace(budget, max_generated_tokens=tokens)

    def _prompt(self, template: PromptTemplate, question: str) -> list[int]:
        """The tokens of a prompt. Raises InvalidInput for one that is too long."""
        engine: Any = self.service.engine
        tokens, most = template.tokens(question, engine.tokenizer), self.max_prompt_tokens
        engine.limits.check_prompt(len(tokens))
        if most is not None and len(tokens) > most:
            raise ContextExceeded(f"the prompt has {len(tokens)} tokens, and this server takes {most}; shorten it")
        return tokens

    # ------------------------------------------------------------ replies

    async def _results(self, tickets: Sequence[Ticket], reply: Reply, request: Request) -> list[Result]:
        """The results of a request that is answered as a whole. A client that leaves ends its searches."""
        found: asyncio.Future[Any] = asyncio.ensure_future(asyncio.gather(*(ticket.end() for ticket in tickets)))
        left: asyncio.Future[Any] = asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait([found, left], return_when=asyncio.FIRST_COMPLETED)
            if not found.done():
                raise Refusal(CLIENT_LEFT, "the client has left")
            results = found.result()
            for result in results:
                _check(result)
            return results
        finally:
            found.cancel()
            left.cancel()
            for ticket in tickets:
                self._close(ticket, reply)

    async def _stream(self, ticket: Ticket, reply: Reply, body: Body) -> AsyncIterator[str]:
        """The plain model's tokens as they come; the answer of a search when it is found, and comments until then."""
        sent: dict[int, dict[str, str]] = {index: {} for index in range(body.n)}
        try:
            for index in sent if reply.chat else ():
                yield event(reply.piece(index, "", first=True))
            while not ticket.ended:
                try:
                    await asyncio.wait_for(ticket.changed.wait(), QUIET_S)
                except TimeoutError:
                    yield comment("waiting" if ticket.progress is None else "searching")
                    continue
                ticket.changed.clear()
                for index, tokens in ticket.written.items():
                    for field, more in _news(sent[index], reply.settled(tokens)):
                        yield event(reply.piece(index, more, field=field))
                if not ticket.follow and ticket.progress is not None:
                    did, spent = ticket.progress.did, ticket.progress.usage
                    yield comment(f"{did}; {spent.generated_tokens} tokens, {spent.verifier_tokens} of the verifier")
            result = ticket.outcome()
            _check(result)
            for index, choice in enumerate(reply.choices(result)):
                parts = reply.streamed(choice.token_ids) if ticket.follow else reply.said(choice)
                for field, more in _news(sent[index], parts):
                    yield event(reply.piece(index, more, field=field))
                account = {"search": reply.account([result])}
                yield event(reply.piece(index, "", choice.finish_reason) | account)
            if body.stream_options.include_usage:
                yield event(reply.last_piece([result]))
            yield event("[DONE]")
        except Refusal as refusal:
            yield event(refusal.body())

    def _stream_over(self, ticket: Ticket, reply: Reply, began: float) -> None:
        """A stream has ended, or its client has left, perhaps before anything was sent."""
        status = CLIENT_LEFT
        if ticket.ended:
            try:
                _check(ticket.outcome())
                status = 200
            except Refusal as refusal:
                status = refusal.status
        self._close(ticket, reply)
        self.metrics.ended(reply.search, status, time.monotonic() - began)

    def _close(self, ticket: Ticket, reply: Reply) -> None:
        """Count what a ticket has used, and give it up if it has not ended."""
        if not ticket.ended:
            self.service.cancel(ticket)
        if ticket.progress is not None:
            self.metrics.used(reply.search, ticket.progress.usage)


def _news(sent: dict[str, str], parts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What each part of a reply has beyond what was sent of it, which is kept in `sent`."""
    for name, text in parts.items():
        before = sent.get(name, "")
        if text.startswith(before) and text != before:
            sent[name] = text
            yield name, text[len(before) :]


class EventStream(StreamingResponse):
    """A stream that says when it is over, whatever was sent of it."""

    def __init__(self, events: AsyncIterator[str], over: Callable[[], None]):
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self.over = over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.over()


class Guard:
    """Turns away who may not call.

    key: what callers must send as `Authorization: Bearer KEY`, None for nothing; /health is open to all. hosts: the
    names under which the server may be called, None for any: a web page that has its own name lead to this machine
    (DNS rebinding) is refused, where no key keeps it out.
    """

    def __init__(self, app: ASGIApp, key: str | None, hosts: Sequence[str] | None):
        self.app, self.hosts = app, hosts
        self.digest = None if key is None else _digest(key.encode("utf-8", "surrogateescape"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope["path"], Headers(scope=scope)) if scope["type"] == "http" else None
        answer = self.app if refusal is None else refusal.response()
        await answer(scope, receive, send)

    def _refusal(self, path: str, headers: Headers) -> Refusal | None:
        if self.digest is not None and path != "/health":
            scheme, _, key = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(
                _digest(key.strip().encode("latin-1")), self.digest
            ):
                said = "wrong" if key else "missing"
                message = f"the API key is {said}; send Authorization: Bearer KEY with the key of this server"
                headers_back = {"WWW-Authenticate": "Bearer"}
                return Refusal(401, message, code="invalid_api_key", headers=headers_back)
        host = headers.get("host", "").strip().lower()
        name = host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]
        if self.hosts is not None and name not in self.hosts:
            return Refusal(
                403, f"the host {host!r} is not this server's; call {self.hosts[0]}, or have the server ask for a key"
            )
        return None


def _digest(key: bytes) -> bytes:
    """Of one length for all keys, so that comparing takes the same time for all."""
    return hashlib.sha256(key).digest()


async def _left(request: Request) -> None:
    """Return when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _check(result: Result) -> None:
    """Raise Refusal for a problem that failed."""
    if result.error is not None:
        ours = not result.error.startswith((InvalidInput.__name__, ContextExceeded.__name__))
        raise Refusal(500 if ours else 400, result.error)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return error.response()


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}; there are /v1/chat/completions and "
    message += "/v1/completions (POST), /v1/models, /health and /metrics (GET)"
    return Refusal(error.status_code, message, headers=error.headers).response()


async def _broken(_: Request, error: Exception) -> Response:
    return Refusal(500, f"the server failed: {type(error).__name__}").response()
