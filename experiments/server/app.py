"""The web application: its paths, and what a request goes through."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from experiments.server.access import REFUSED, AccessLog, log
from experiments.server.exchange import EventStream, Exchange
from experiments.server.guard import Guard
from experiments.server.metrics import Metrics
from experiments.server.offer import PLAIN, Offer
from experiments.server.prepare import Preparer
from experiments.server.refusal import Refusal
from experiments.server.replies import ServerReply
from experiments.server.requests import (
    Body,
    ChatBody,
    Common,
    CompletionBody,
    body_of,
    read,
)
from experiments.server.responses_reply import ResponsesReply
from experiments.server.responses_request import ResponsesBody
from experiments.server.service import STOPPING, Service, Ticket
from search.options import SolveOptions

KINDS: Mapping[str, type[Common]] = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
    "/v1/responses": ResponsesBody,
}
"""What is asked of the model, by its path."""


@dataclass
class Api:
    """What the paths do. options, max_prompt_tokens, chat_options: see `Preparer`. ignore_unknown:
    see `read`."""

    service: Service
    offer: Offer
    options: SolveOptions
    max_body_bytes: int
    max_prompt_tokens: int | None = None
    chat_options: Mapping[str, Any] = field(default_factory=dict)
    ignore_unknown: bool = False

    def __post_init__(self) -> None:
        self.preparer = Preparer(
            self.service.engine,
            self.options,
            self.max_prompt_tokens,
            self.chat_options,
            self.service.stopping,
        )
        self.metrics = Metrics(self.service)
        self.started = int(time.time())

    def app(self, key: str | None, hosts: Sequence[str] | None) -> Starlette:
        """The application, with which the service ends. key, hosts: see `Guard`."""

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
                *(
                    Route(path, partial(self.answer, kind=kind), methods=["POST"])
                    for path, kind in KINDS.items()
                ),
            ],
            middleware=[Middleware(AccessLog), Middleware(Guard, key=key, hosts=hosts)],
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
        return JSONResponse(
            {"object": "list", "data": [self._about(name) for name in self.offer.names()]}
        )

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        self.offer.check_model(name)
        return JSONResponse(self._about(name))

    def _about(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self.started, "owned_by": "ttc"}

    # ------------------------------------------------------------ what is asked of the model

    async def answer(self, request: Request, kind: type[Common]) -> Response:
        """One request, from its body to its reply, or to the beginning of its stream."""
        began = time.monotonic()
        name = "unknown"
        names: Mapping[str, str] = {}
        try:
            received = read(kind, await body_of(request, self.max_body_bytes), self.ignore_unknown)
            body = received
            if isinstance(received, ResponsesBody):
                names, body = received.names, received.as_chat()
            assert isinstance(body, Body)
            name, search = self.offer.search(body)
            prepared = await asyncio.to_thread(self.preparer.prepare, body, name, search)
            reply = ServerReply(self.service.engine, prepared)
            if isinstance(received, ResponsesBody):
                reply = ResponsesReply(self.service.engine, prepared, received=received)
            follow = body.stream and name == PLAIN and reply.follows
            tickets = [
                Ticket(
                    problem,
                    config,
                    follow=follow,
                    client=request.client,
                    address=None if request.client is None else request.client.host,
                    model=self.offer.model if name == PLAIN else f"{self.offer.model}+{name}",
                    prompt_tokens=tokens,
                )
                for (problem, config), tokens in zip(
                    prepared.problems, prepared.prompt_lengths, strict=True
                )
            ]
            self.service.submit(tickets)
        except Refusal as refusal:
            self.metrics.ended(name, refusal.status, time.monotonic() - began)
            raise refusal.renamed(names) from refusal
        exchange = Exchange(self.service, self.metrics, tickets, reply, began)
        return EventStream(exchange) if body.stream else await exchange.whole(request)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    request.scope[REFUSED] = error.param
    return error.response()


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}; there are {', '.join(KINDS)} "
    message += "(POST), /v1/models, /health and /metrics (GET)"
    return Refusal(error.status_code, message, headers=error.headers).response()


async def _broken(_: Request, error: Exception) -> Response:
    log.error("a request failed", exc_info=error)
    return Refusal(500, f"the server failed: {type(error).__name__}").response()
