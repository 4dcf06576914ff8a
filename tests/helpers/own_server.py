"""The project's own server in a thread, over a tiny model, and what is asked of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import Any

import httpx2
import openai
import torch

from experiments.server.app import Api
from experiments.server.launch import bind
from experiments.server.offer import Offer
from experiments.server.service import Service
from experiments.server.settings import ServeConfig
from experiments.server.web import server
from search import (
    BeamSearch,
    BestOfN,
    BudgetForcing,
    Case,
    Greedy,
    Search,
    SearchSteps,
    SelfConsistency,
    solve,
)
from search.budget import Budget
from search.options import SolveOptions
from tests.helpers.models import small
from tests.helpers.tokenizers import EOS, Chatting
from ttc import Branch, Engine
from ttc.backend import Backend
from ttc.protocols import Verifier
from ttc.results import Result
from ttc.text.conversation import Conversation


class Asks:
    """Rates a branch by how likely it goes on with a letter, which costs verifier tokens."""

    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> list[list[float]]:
        return [
            [float(rows[0][0])]
            for rows in backend.score(branches, [[[ord("e")]]] * len(branches)).result()
        ]


@dataclass(frozen=True)
class Broken(Search):
    """Raises where the question says so."""

    @property
    def needs_verifier(self) -> bool:
        return False

    def run(self, root: Branch, case: Case) -> SearchSteps:
        if "break" in case.question:
            raise ZeroDivisionError("a mistake in the search")
        return (yield from Greedy(max_tokens=4).run(root, case))


SEARCHES = {
    "best_of_n": BestOfN(n=3, max_tokens=12),
    "beam_search": BeamSearch(beam_size=2, beam_width=2, step_tokens=4, max_steps=3),
    "self_consistency": SelfConsistency(n=3, max_tokens=8),
    "broken": Broken(),
    "greedy": Greedy(),
    "budget_forcing": BudgetForcing(),
}


ENDLESS: dict[str, Any] = {"model": "tiny", "prompt": "abc", "max_tokens": 900, "temperature": 0}
"""A request whose answer has no end of its own."""


def make_engine(pass_s: float = 0.0) -> Engine:
    """pass_s: what each pass takes at least."""
    engine = Engine(small(context=1024, eos=EOS), Chatting())
    forward = engine.runner.forward

    def slow(*given: Any) -> torch.Tensor:
        time.sleep(pass_s)
        return forward(*given)

    if pass_s:
        engine.runner.forward = slow  # type: ignore[method-assign]
    return engine


@dataclass
class Running:
    """A server in a thread."""

    api: Api
    url: str
    web: Any
    thread: Thread

    @property
    def engine(self) -> Engine:
        assert isinstance(self.api.service.engine, Engine)
        return self.api.service.engine

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0, **options)

    def chat(self, text: str, model: str = "tiny", **options: Any) -> Any:
        """The reply to a chat that `said` gives."""
        return self.client().chat.completions.create(model=model, messages=said(text), **options)

    def complete(self, prompt: Any, model: str = "tiny", **options: Any) -> Any:
        return self.client().completions.create(model=model, prompt=prompt, **options)

    def posted(self, path: str, **body: Any) -> Any:
        """The JSON of a reply."""
        reply = httpx2.post(f"{self.url}/v1/{path}", json={"model": "tiny"} | body, timeout=60)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def wait_until_free(self) -> None:
        """Until no problem is open and no KV is left."""
        self.wait_until(lambda: not self.api.service.open and not self.engine.kv_bytes())

    def wait_until_counted(self, requests: int, search: str, status: int) -> None:
        """Until /metrics has so many requests; one is counted a moment after its last byte."""
        counted = self.api.metrics.registry.get_sample_value
        labels = {"search": search, "status": str(status)}
        self.wait_until(lambda: counted("ttc_requests_total", labels) == requests)

    @staticmethod
    def wait_until(reached: Callable[[], bool]) -> None:
        until = time.monotonic() + 200
        while not reached():
            assert time.monotonic() < until, "something is left"
            time.sleep(0.01)


@contextmanager
def running(
    *,
    most: int = 256,
    key: str | None = None,
    hosts: Any = None,
    pass_s: float = 0.0,
    searches: Mapping[str, Search] = SEARCHES,
    verifier: Verifier | None = None,
    **serve: Any,
) -> Iterator[Running]:
    offer = Offer("tiny", searches, 900, 16)
    service = Service(make_engine(pass_s), most)
    options = SolveOptions(
        verifier=verifier or Asks(), budget=Budget(max_generated_tokens=2000, max_wall_s=60)
    )
    api = Api(service, offer, options, 20_000)
    socket = bind("127.0.0.1", 0)
    web = server(api, key, hosts, ServeConfig(**{"shutdown_s": 20} | serve))
    thread = Thread(target=lambda: web.run(sockets=[socket]), daemon=True)
    thread.start()
    while not web.started:
        time.sleep(0.01)
    try:
        yield Running(api, f"http://127.0.0.1:{socket.getsockname()[1]}", web, thread)
    finally:
        web.should_exit = True
        thread.join(30)
        assert not thread.is_alive() and not api.service.thread.is_alive()
        assert api.service.engine.kv_bytes() == 0  # type: ignore[attr-defined]


def said(text: str) -> list[Any]:
    return [{"role": "system", "content": "be kind"}, {"role": "user", "content": text}]


def solved_here(search: Search, question: str, **options: Any) -> Result:
    """What the library makes of the same chat."""
    template = Conversation(earlier=tuple(said(question)[:1]))
    options = {"verifier": Asks(), "seed": 7, "template": template} | options
    result: Result = solve(search, problem=question, engine=make_engine(), **options)
    assert result.best is not None
    return result
