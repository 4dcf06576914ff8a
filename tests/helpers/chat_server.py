"""A server of this project over a backend that writes what it is told, and a client of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Thread
from typing import Any

import openai

from experiments.runs.grading import AnswerReading
from experiments.server.app import Api
from experiments.server.launch import bind
from experiments.server.offer import Offer
from experiments.server.service import Service
from experiments.server.web import server
from search import SelfConsistency
from search.options import SolveOptions
from tests.helpers.thinking import Written
from ttc.branch import Branch


@contextmanager
def served(
    says: Sequence[str] | Callable[[Branch], str],
    tokenizer: Any,
    chat_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Iterator[openai.OpenAI]:
    with serving(Written(says, tokenizer), chat_options, **options) as client:
        yield client


@contextmanager
def serving(
    engine: Any,
    chat_options: Mapping[str, Any] | None = None,
    longest: int = 200,
    **options: Any,
) -> Iterator[openai.OpenAI]:
    """A client of a server of this engine."""
    offer = Offer("m", {"self_consistency": SelfConsistency(n=3, max_tokens=90)}, longest, 16)
    read = AnswerReading("number").options()  # as `ttc-serve` has it
    solving = SolveOptions(**read | options)
    api = Api(Service(engine, 16), offer, solving, 20_000, chat_options=chat_options or {})
    socket = bind("127.0.0.1", 0)
    web = server(api)
    thread = Thread(target=lambda: web.run(sockets=[socket]), daemon=True)
    thread.start()
    until = time.monotonic() + 200
    while not web.started:
        assert time.monotonic() < until, "the server has not started"
        time.sleep(0.01)
    url = f"http://127.0.0.1:{socket.getsockname()[1]}/v1"
    try:
        with openai.OpenAI(base_url=url, api_key="unused", max_retries=0, timeout=300) as client:
            yield client
    finally:
        web.should_exit = True  # its end takes a quarter of a second, for which nobody waits
