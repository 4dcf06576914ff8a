"""The server, by real HTTP on this machine: what clients get, alone and in a crowd, and what those leave who go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import Any

import pytest
import torch

pytest.importorskip("starlette")
pytest.importorskip("openai")

import httpx2
import openai

from experiments.serve.app import Api
from experiments.serve.conversation import Conversation
from experiments.serve.job import LOCAL, bind, server
from experiments.serve.offer import Offer
from experiments.serve.service import Service
from search import BeamSearch, BestOfN, Case, Greedy, Search, SearchSteps, SelfConsistency, solve
from tests.helpers.models import small
from tests.helpers.servers import EOS, Ascii
from ttc import Branch, Engine
from ttc.protocols import Backend
from ttc.text.prompt import PromptTemplate


class Chatting(Ascii):
    """A chat template that writes each role's first letter before its words."""

    chat_template = "made by apply_chat_template"  # type: ignore[assignment]

    def apply_chat_template(self, messages: Sequence[dict[str, str]], **_: Any) -> str:
        return "".join(f"{m['role'][0]}:{m['content']}\n" for m in messages) + "a:"


class Asks:
    """Rates a branch by how likely it goes on with a letter, which costs verifier tokens."""

    def rate(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> list[list[float]]:
        return [[float(rows[0][0])] for rows in backend.score(branches, [[[ord("e")]]] * len(branches))]


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
}


ENDLESS: dict[str, Any] = {"model": "tiny", "prompt": "abc", "max_tokens": 900, "temperature": 0}
"""A request whose answer has no end of its own."""


def make_engine(pass_s: float = 0.0) -> Engine:
    """pass_s: what each pass takes at least."""
    engine = Engine(small(context=1024), Chatting())
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

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0, **options)

    def wait_until_free(self) -> None:
        """Until no problem is open and no KV is left."""
        until = time.monotonic() + 20
        while self.api.service.open or self.engine.kv_bytes():
            assert time.monotonic() < until, "something is left"
            time.sleep(0.01)


@contextmanager
def running(
    *, most: int = 256, key: str | None = None, hosts: Any = None, shutdown_s: int = 20, pass_s: float = 0.0
) -> Iterator[Running]:
    offer = Offer("tiny", SEARCHES, 900, 16)
    service = Service(make_engine(pass_s), most)
    api = Api(service, offer, Asks(), 20_000, budget={"max_generated_tokens": 2000})
    socket = bind("127.0.0.1", 0)
    web = server(api, key, hosts, shutdown_s)
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


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    with running() as found:
        yield found
        found.wait_until_free()


def said(text: str) -> list[Any]:
    return [{"role": "system", "content": "be kind"}, {"role": "user", "content": text}]


PROMPT = "s:be kind\nu:12 + 3\na:"

# ---------------------------------------------------------------- answers


def test_the_plain_model_at_temperature_0_writes_what_hugging_face_does(shared: Running) -> None:
    model, tokens = small(context=1024), torch.tensor([[ord(c) for c in PROMPT]])
    out = model.generate(tokens, max_new_tokens=20, do_sample=False, eos_token_id=EOS, pad_token_id=0)
    expected = Chatting().decode(out[0, tokens.shape[1] :].tolist(), skip_special_tokens=True)
    reply = shared.client().chat.completions.create(model="tiny", messages=said("12 + 3"), temperature=0, max_tokens=20)
    assert reply.choices[0].message.content == expected
    raw = shared.client().completions.create(model="tiny", prompt=PROMPT, temperature=0, max_tokens=20)
    assert raw.choices[0].text == expected
    assert raw.usage is not None and raw.usage.prompt_tokens == len(PROMPT)


@pytest.mark.parametrize("name", ["best_of_n", "beam_search"])
def test_a_search_answers_as_the_library_does_and_says_what_it_cost(shared: Running, name: str) -> None:
    template = Conversation(earlier=({"role": "system", "content": "be kind"},))
    right = solve(SEARCHES[name], problem="12 + 3", engine=make_engine(), verifier=Asks(), seed=7, template=template)
    by_name = shared.client().chat.completions.create(model=f"tiny+{name}", messages=said("12 + 3"), seed=7)
    by_field = shared.client().chat.completions.create(
        model="tiny", messages=said("12 + 3"), seed=7, extra_body={"search": name}
    )
    assert right.best is not None
    for reply in (by_name, by_field):
        assert reply.choices[0].message.content == right.best.text
        assert reply.usage is not None and reply.model_extra is not None
        usage, search = reply.usage.to_dict(), reply.model_extra["search"]
        assert usage["completion_tokens"] == right.usage.generated_tokens
        assert usage["verifier_tokens"] == right.usage.verifier_tokens > 0
        details: Any = usage["completion_tokens_details"]
        assert details["reasoning_tokens"] == right.usage.generated_tokens - len(right.best.generated)
        assert (search["name"], search["seed"], search["score"]) == (name, 7, right.best.score)
        assert (search["nodes"], search["branches"]) == (len(right.tree), len(right.branches))


def test_a_search_takes_settings_and_a_budget_from_the_request(shared: Running) -> None:
    reply = shared.client().chat.completions.create(
        model="tiny+best_of_n",
        messages=said("1"),
        seed=1,
        top_p=0.9,
        extra_body={"search": {"n": 5, "max_tokens": 6}, "max_generated_tokens": 20},
    )
    search = BestOfN(n=5, max_tokens=6, top_p=0.9)
    template = Conversation(earlier=({"role": "system", "content": "be kind"},))
    options: Any = {"verifier": Asks(), "seed": 1, "template": template, "max_generated_tokens": 20}
    right = solve(search, problem="1", engine=make_engine(), **options)
    assert right.best is not None and right.stopped == "budget"
    assert reply.choices[0].message.content == right.best.text
    assert reply.model_extra is not None and reply.model_extra["search"]["stopped"] == "budget"


def test_a_seed_fixes_the_answer_and_without_one_answers_differ(shared: Running) -> None:
    def ask(**options: Any) -> tuple[str, int]:
        reply = shared.client().completions.create(model="tiny", prompt="abc", max_tokens=30, **options)
        return reply.choices[0].text, (reply.model_extra or {})["search"]["seed"]

    assert ask(seed=5) == ask(seed=5) != ask(seed=6)
    text, seed = ask()
    assert ask()[0] != text and ask(seed=seed)[0] == text  # the seed that was chosen is told


def test_samples_and_prompts_are_choices_in_order(shared: Running) -> None:
    reply = shared.client().completions.create(model="tiny", prompt=["abc", "xyz"], n=2, seed=3, max_tokens=9)
    expected = []
    for prompt in ("abc", "xyz"):
        search, template = SelfConsistency(n=2, max_tokens=9, temperature=1.0), PromptTemplate("{question}", raw=True)
        expected += solve(search, problem=prompt, engine=make_engine(), seed=3, template=template).branches
    assert [choice.text for choice in reply.choices] == [branch.text for branch in expected]


def test_a_stop_string_ends_an_answer_and_is_left_out(shared: Running) -> None:
    ask: Any = {"model": "tiny", "prompt": "abc", "temperature": 0, "max_tokens": 40}
    whole = shared.client().completions.create(**ask).choices[0]
    stop = whole.text[10:12]
    cut = shared.client().completions.create(**ask, stop=stop).choices[0]
    assert (whole.finish_reason, cut.finish_reason) == ("length", "stop")
    assert cut.text == whole.text[: whole.text.index(stop)]
    parts = shared.client().completions.create(**ask, stop=[stop, "never"], stream=True)
    assert "".join(part.choices[0].text for part in parts) == cut.text


# ---------------------------------------------------------------- streams


def test_a_stream_gives_the_same_text_in_pieces_and_then_the_usage(shared: Running) -> None:
    ask: Any = {"model": "tiny", "messages": said("go"), "seed": 4, "max_tokens": 200, "n": 2}
    whole = shared.client().chat.completions.create(**ask)
    chunks = list(shared.client().chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    for choice in whole.choices:
        pieces = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == choice.index]
        assert "".join(piece.delta.content or "" for piece in pieces) == choice.message.content
        assert len(pieces) > 5 and pieces[0].delta.role == "assistant"
        assert [piece.finish_reason for piece in pieces if piece.finish_reason] == [choice.finish_reason]
    assert not chunks[-1].choices and chunks[-1].usage == whole.usage


def test_the_stream_of_a_search_is_kept_alive_by_comments(shared: Running) -> None:
    body = {"model": "tiny+beam_search", "messages": said("go"), "seed": 4}
    whole = shared.client().chat.completions.create(**body)  # type: ignore[call-overload]
    lines = httpx2.post(f"{shared.url}/v1/chat/completions", json=body | {"stream": True}, timeout=60).text.splitlines()
    assert any(line.startswith(": rated; ") for line in lines) and lines[-2] == "data: [DONE]"
    chunks = shared.client().chat.completions.create(**body, stream=True)  # type: ignore[call-overload]
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content


# ---------------------------------------------------------------- many clients


REQUESTS: list[dict[str, Any]] = [
    {"model": "tiny", "temperature": 0, "max_tokens": 30},
    {"model": "tiny", "seed": 1, "max_tokens": 25, "n": 3},
    {"model": "tiny+best_of_n", "seed": 2},
    {"model": "tiny+best_of_n", "seed": 3, "extra_body": {"search": {"n": 6}}},
    {"model": "tiny+beam_search", "seed": 4},
    {"model": "tiny+self_consistency", "seed": 5, "temperature": 0.5},
    {"model": "tiny+beam_search", "seed": 6, "extra_body": {"search": {"delimiter": "e"}}},
    {"model": "tiny", "seed": 7, "max_tokens": 12, "stop": ["a"]},
]


def test_64_requests_at_once_get_what_each_gets_alone(shared: Running) -> None:
    def texts(reply: Any) -> list[Any]:
        return [(choice.message.content, choice.finish_reason) for choice in reply.choices]

    alone = [texts(shared.client().chat.completions.create(messages=said("go"), **ask)) for ask in REQUESTS]

    async def all_at_once() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{shared.url}/v1", api_key="unused", max_retries=0) as client:
            asked = (client.chat.completions.create(messages=said("go"), **REQUESTS[i % 8]) for i in range(64))
            return await asyncio.gather(*asked)

    assert [texts(reply) for reply in asyncio.run(all_at_once())] == alone * 8
    shared.wait_until_free()


def test_clients_that_leave_midway_leave_nothing_behind() -> None:
    with running(pass_s=0.003) as found:
        for seed in range(2):
            stream = found.client().completions.create(**ENDLESS, seed=seed, stream=True)
            for _ in range(5):
                next(stream)
            stream.close()
        with pytest.raises(openai.APITimeoutError):
            found.client(timeout=0.3).completions.create(**ENDLESS)
        found.wait_until_free()
        counted = found.api.metrics.registry.get_sample_value
        assert counted("ttc_requests_total", {"search": "none", "status": "499"}) == 3
        assert counted("ttc_requests_total", {"search": "none", "status": "200"}) is None


def test_who_finds_no_place_is_told_when_to_come_back() -> None:
    with running(most=1, pass_s=0.003) as found:
        stream = found.client().completions.create(**ENDLESS, stream=True)
        next(stream)
        with pytest.raises(openai.RateLimitError, match="room for 1") as refused:
            found.client().completions.create(model="tiny", prompt="go")
        assert int(refused.value.response.headers["retry-after"]) >= 1
        stream.close()
        found.wait_until_free()
        assert found.client().completions.create(model="tiny", prompt="go").choices


# ---------------------------------------------------------------- what goes wrong


BAD: list[tuple[dict[str, Any], int, str]] = [
    ({"model": "huge"}, 404, "use one of tiny, tiny\\+best_of_n"),
    ({"model": "tiny+nope"}, 404, "does not exist"),
    ({"search": "nope"}, 400, "use one of none, best_of_n"),
    ({"search": {"name": "best_of_n", "_target_": "os.system"}}, 400, "_target_ is no setting of BestOfN"),
    ({"search": {"name": "best_of_n", "n": 17}}, 400, "search.n=17 is more than this server's 16"),
    ({"search": {"name": "best_of_n", "n": 0}}, 400, "n=0 must be at least 1"),
    ({"search": {"name": "best_of_n", "n": "many"}}, 400, "search.n='many'|n='many'"),
    ({"search": {"n": 3}}, 400, "give search.name"),
    ({"model": "tiny+best_of_n", "n": 2}, 400, "a search gives one answer"),
    ({"max_tokens": 901}, 400, "max_tokens=901 is more than this server's 900"),
    ({"max_generated_tokens": 2001}, 400, "more than this server's 2000"),
    ({"temperature": -1}, 400, "temperature=-1: "),
    ({"tools": [{"type": "function"}]}, 400, "tools is not offered here"),
    ({"messages": []}, 400, "messages=\\[\\]"),
    ({"messages": [{"role": "tool", "content": "x"}]}, 400, "messages.0.role='tool'"),
    ({"messages": [{"role": "assistant", "content": "x"}]}, 400, "end with one of the user"),
    ({"messages": [{"role": "user", "content": "x" * 1100}]}, 400, "model's context of 1024"),
    ({"answer_kind": "rhyme"}, 400, "rhyme"),
    ({"stop": [""]}, 400, "at least one character"),
]


@pytest.mark.parametrize(("fields", "status", "message"), BAD, ids=lambda value: str(value)[:40])
def test_a_request_that_cannot_be_used_is_refused_by_name(
    shared: Running, fields: dict[str, Any], status: int, message: str
) -> None:
    body: Any = {"model": "tiny", "messages": said("go")} | fields
    with pytest.raises(openai.APIStatusError, match=message) as refused:
        shared.client().post("/chat/completions", body=body, cast_to=object)
    assert refused.value.status_code == status
    assert isinstance(refused.value.body, dict) and refused.value.body["type"]
    if "context" in message:
        assert refused.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        ({"content": "{", "headers": {"Content-Type": "application/json"}}, 400, "the body is no JSON"),
        ({"content": "{}", "headers": {"Content-Type": "text/plain"}}, 415, "send it with the header"),
        ({"json": {"prompt": "x" * 30_000}}, 413, "longer than 20000 bytes"),
        ({"json": {"prompt": "x"}}, 400, "model is missing"),
        ({"json": ["x"]}, 400, "the body is list"),
    ],
    ids=["no JSON", "text", "long", "no model", "list"],
)
def test_a_body_that_cannot_be_read_is_refused(
    shared: Running, options: dict[str, Any], status: int, message: str
) -> None:
    reply = httpx2.post(f"{shared.url}/v1/completions", **options)
    assert reply.status_code == status and message in reply.json()["error"]["message"]


def test_an_unknown_path_says_which_there_are(shared: Running) -> None:
    for reply in (httpx2.get(f"{shared.url}/v2"), httpx2.get(f"{shared.url}/v1/completions")):
        assert reply.status_code in (404, 405) and "/v1/chat/completions" in reply.json()["error"]["message"]


def test_a_search_that_breaks_fails_its_own_request_alone(shared: Running) -> None:
    async def both() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{shared.url}/v1", api_key="unused", max_retries=0) as client:
            asked = (client.completions.create(model="tiny+broken", prompt=p, seed=1) for p in ("go", "break", "on"))
            return await asyncio.gather(*asked, return_exceptions=True)

    first, broken, last = asyncio.run(both())
    assert isinstance(broken, openai.InternalServerError) and "a mistake in the search" in str(broken)
    assert first.choices[0].text and last.choices[0].text


def test_an_engine_that_fails_once_fails_what_is_under_way_and_the_server_goes_on() -> None:
    with running() as found:
        forward = found.engine.runner.forward

        def failing(*_: Any) -> Any:
            found.engine.runner.forward = forward  # type: ignore[method-assign]
            raise RuntimeError("device lost")

        found.engine.runner.forward = failing  # type: ignore[method-assign]
        with pytest.raises(openai.InternalServerError, match="device lost"):
            found.client().completions.create(model="tiny", prompt="go")
        found.wait_until_free()
        assert found.client().completions.create(model="tiny", prompt="go").choices


# ---------------------------------------------------------------- who may call


def test_models_health_and_metrics_can_be_asked_for(shared: Running) -> None:
    names = [model.id for model in shared.client().models.list()]
    assert names == ["tiny", *(f"tiny+{name}" for name in SEARCHES)]
    assert shared.client().models.retrieve("tiny+beam_search").id == "tiny+beam_search"
    assert httpx2.get(f"{shared.url}/health").json() == {"status": "ok", "model": "tiny"}
    shared.client().completions.create(model="tiny+best_of_n", prompt="go", seed=1)
    shared.wait_until_free()
    lines = httpx2.get(f"{shared.url}/metrics").text.splitlines()
    counts = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}
    assert counts["ttc_kv_bytes"] == counts["ttc_problems_open"] == counts["ttc_branches_decoding"] == 0
    assert counts['ttc_requests_total{search="best_of_n",status="200"}'] >= 1
    for kind in ("generated", "verifier", "prompt"):
        assert counts[f'ttc_tokens_total{{kind="{kind}",search="best_of_n"}}'] > 0


def test_a_key_keeps_others_out_and_a_strange_host_name_is_refused() -> None:
    with running(key="secret-é") as found:
        assert httpx2.get(f"{found.url}/health").status_code == 200
        for headers in ({}, {"Authorization": "Bearer secret"}, {"Authorization": "Basic secret-é".encode()}):
            reply = httpx2.get(f"{found.url}/v1/models", headers=headers)  # type: ignore[arg-type]
            assert reply.status_code == 401 and reply.json()["error"]["code"] == "invalid_api_key"
            assert httpx2.get(f"{found.url}/metrics", headers=headers).status_code == 401  # type: ignore[arg-type]
        right = {"Authorization": "Bearer secret-é".encode()}
        assert httpx2.get(f"{found.url}/v1/models", headers=right).status_code == 200  # type: ignore[arg-type]
    with running(hosts=LOCAL) as found:
        assert httpx2.get(f"{found.url}/health").status_code == 200
        strange = httpx2.get(f"{found.url}/health", headers={"Host": "evil.example:8000"})
        assert strange.status_code == 403 and "evil.example" in strange.json()["error"]["message"]


# ---------------------------------------------------------------- the end


def test_a_server_that_is_stopped_ends_what_is_under_way() -> None:
    ask = ENDLESS | {"max_tokens": 200}
    with running(pass_s=0.002) as found:
        whole = found.client().completions.create(**ask).choices[0].text
        stream = found.client().completions.create(**ask, stream=True)
        text = next(stream).choices[0].text
        found.web.should_exit = True
        assert text + "".join(chunk.choices[0].text for chunk in stream) == whole
        found.thread.join(20)
        with pytest.raises(openai.APIConnectionError):
            found.client().completions.create(**ask)


def test_what_takes_too_long_is_broken_off_when_the_server_stops() -> None:
    with running(shutdown_s=0, pass_s=0.003) as found:
        stream = found.client().completions.create(**ENDLESS, stream=True)
        next(stream)
        found.web.should_exit = True
        found.thread.join(20)
        assert not found.thread.is_alive() and found.engine.kv_bytes() == 0
