"""The server where things go wrong: clients that leave or may not call, bad requests, failures, and
its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("openai")

import httpx2
import openai
from hypothesis import given
from hypothesis import strategies as st

from experiments.server.access import show_log
from experiments.server.launch import LOCAL
from experiments.server.service import ENDS, likely_wait
from experiments.server.web import Patience
from search import BestOfN, BudgetForcing, Greedy
from tests.helpers.own_server import ENDLESS, Running, running, said


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    with running() as found:
        yield found
        found.wait_until_free()


# ---------------------------------------------------------------- who leaves, and who finds no
# place


def test_clients_that_leave_midway_leave_nothing_behind() -> None:
    with running(pass_s=0.003) as found:
        for seed in range(2):
            stream = found.client().completions.create(**ENDLESS, seed=seed, stream=True)
            for _ in range(5):
                next(stream)
            stream.close()
        with asking(found.port, ENDLESS):
            until_it_decodes(found)
        found.wait_until_free()
        found.wait_until_counted(3, search="none", status=499)
        counted = found.api.metrics.registry.get_sample_value
        assert counted("ttc_requests_total", {"search": "none", "status": "200"}) is None
        assert (counted("ttc_tokens_total", {"search": "none", "kind": "generated"}) or 0) >= 10
        assert (counted("ttc_tokens_total", {"search": "none", "kind": "prompt"}) or 0) >= 2


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


@given(
    at_once=st.integers(1, 20),
    each_s=st.floats(0.1, 60),
    waves=st.integers(1, 50),
    part=st.floats(0, 0.9),
    places=st.integers(1, 40),
)
def test_the_wait_is_that_of_the_work_ahead(
    at_once: int, each_s: float, waves: int, part: float, places: int
) -> None:
    """So many problems at once that take so long each, in a server that is always full: places are
    free when they are told to be, but for the time of two problems."""
    busy_since, now = 1000.0, 1000.0 + (waves + part) * each_s
    before = [10.0, 900.0]  # of another time
    ends = [busy_since + (wave + 1) * each_s for wave in range(waves) for _ in range(at_once)]
    true = busy_since + (waves + -(-places // at_once)) * each_s - now
    told = likely_wait(places, now, busy_since, [*before, *ends][-ENDS:])
    assert true / 2 - 2 * each_s <= told <= 2 * (true + each_s)


def test_before_any_problem_has_ended_the_wait_is_as_long_again() -> None:
    assert likely_wait(1, 1007.0, 1000.0, [900.0]) == 7
    assert likely_wait(3, 1007.0, 1000.0, []) == 21


def test_places_are_left_for_addresses_that_have_none() -> None:
    """A proxy on this machine says who asks. One user may have 3 of 4 places, and another one finds
    the last."""
    with running(most=4, pass_s=0.003) as found:

        def ask(user: str, **fields: Any) -> Any:
            headers = {"X-Forwarded-For": user}
            body = ENDLESS | {"max_tokens": 3} | fields
            return found.client().completions.create(**body, extra_headers=headers)

        many = ask("10.0.0.1", max_tokens=900, stream=True)
        next(many)
        with pytest.raises(openai.RateLimitError, match="room for 3 of this client"):
            ask("10.0.0.1", prompt=["a", "b", "c"])
        assert len(ask("10.0.0.2", prompt=["a", "b", "c"]).choices) == 3
        assert len(ask("10.0.0.1", prompt=["a", "b"]).choices) == 2
        many.close()
        found.wait_until_free()


def test_a_client_may_bound_the_time_of_its_search() -> None:
    with running(pass_s=0.01) as found:
        reply = found.client().completions.create(**ENDLESS, extra_body={"max_wall_s": 0.2})
        assert (
            reply.model_extra is not None and reply.model_extra["search"]["stopped"] == "max_wall_s"
        )
        assert reply.usage is not None and reply.usage.completion_tokens < 100


def half_open(port: int) -> socket.socket:
    """A connection whose request has a beginning and no end."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=200)
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n")
    return connection


def asking(port: int, body: dict[str, Any]) -> socket.socket:
    """A connection on which a completion has been asked for."""
    data = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", port), timeout=200)
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data)
    )
    return connection


def until_it_decodes(found: Running) -> None:
    until = time.monotonic() + 100
    while not found.api.service.decoding:
        assert time.monotonic() < until, "nothing is decoded"
        time.sleep(0.01)


def test_requests_that_never_come_to_an_end_keep_nobody_away() -> None:
    with (
        running(patience=Patience(20, header_s=0.2)) as found,
        half_open(found.port) as waiting,
        contextlib.suppress(ConnectionResetError),
    ):
        assert waiting.recv(1) == b""  # closed by the server


@pytest.mark.slow
def test_a_client_that_reads_nothing_keeps_no_connection() -> None:
    asked = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 50
    with running(patience=Patience(20, header_s=300, write_s=0.2)) as found:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(200)
        connection.connect(("127.0.0.1", found.port))
        with connection, pytest.raises(ConnectionError):
            while True:  # until the server has closed it
                connection.sendall(asked)
        assert httpx2.get(f"{found.url}/health").status_code == 200


def test_no_more_connections_are_open_than_the_setting_says() -> None:
    with running(patience=Patience(20, header_s=300, max_connections=4)) as found:
        with contextlib.ExitStack() as waiting:
            for _ in range(4):
                waiting.enter_context(half_open(found.port))
            refused = httpx2.get(f"{found.url}/health")
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "connections"
        until = time.monotonic() + 100
        while found.web.server_state.connections:
            assert time.monotonic() < until, "connections are left"
            time.sleep(0.01)
        assert httpx2.get(f"{found.url}/health").status_code == 200


# ---------------------------------------------------------------- what goes wrong


WEATHER = {"type": "function", "function": {"name": "weather"}}
BAD: list[tuple[dict[str, Any], int, str]] = [
    ({"model": "huge"}, 404, "use tiny, or tiny\\+NAME with NAME one of best_of_n"),
    ({"model": "tiny+nope"}, 404, "does not exist"),
    ({"search": "nope"}, 400, "use one of none, best_of_n"),
    (
        {"search": {"name": "best_of_n", "_target_": "os.system"}},
        400,
        "_target_ is no setting of BestOfN",
    ),
    ({"search": {"name": "best_of_n", "n": 17}}, 400, "search.n=17 is more than this server's 16"),
    ({"search": {"name": "best_of_n", "n": 0}}, 400, "n=0 must be at least 1"),
    ({"search": {"name": "best_of_n", "n": "many"}}, 400, "search.n='many'|n='many'"),
    ({"search": {"n": 3}}, 400, "give search.name"),
    ({"model": "tiny+best_of_n", "n": 2}, 400, "a search gives one answer"),
    ({"max_tokens": 901}, 400, "max_tokens=901 is more than this server's 900"),
    ({"max_generated_tokens": 2001}, 400, "more than this server's 2000"),
    ({"max_wall_s": 61}, 400, "max_wall_s=61.0 is more than this server's 60"),
    ({"max_wall_s": 0}, 400, "max_wall_s=0"),
    ({"temperature": -1}, 400, "temperature=-1: "),
    ({"tools": [{"type": "function"}]}, 400, "tools.0.function"),
    ({"tools": [WEATHER], "tool_choice": "required"}, 400, "tool_choice='required'"),
    ({"tools": [WEATHER, WEATHER]}, 400, "two tools are called weather"),
    ({"top_k": 2**63}, 400, "top_k=9223372036854775808: .*less than or equal to 2147483647"),
    ({"top_k": 10**30}, 400, "top_k=1000"),
    ({"top_k": 10**400}, 400, "top_k=1000"),
    ({"seed": 10**400}, 400, "seed=1000.*: .*less than or equal to 9223372036854775807"),
    ({"temperature": 10**400}, 400, "temperature=1000"),
    ({"max_tokens": 10**400}, 400, "max_tokens=1000"),
    (
        {"search": {"name": "best_of_n", "top_k": 10**30}},
        400,
        "search.top_k=1000.* is more than this server's 2147",
    ),
    (
        {"search": {"name": "best_of_n", "temperature": 1e300}},
        400,
        "search.temperature=1e.300 is more than .* 100;",
    ),
    (
        {"search": {"name": "best_of_n", "n": -(10**400)}},
        400,
        "search.n=-1000.* must be at least -16",
    ),
    ({"chat_template_kwargs": {"x": 10**400}}, 400, "chat_template_kwargs.x=1000.* is beyond"),
    (
        {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}},
        400,
        "chat_template is no variable of a template",
    ),
    ({"chat_template_kwargs": {"tokenize": False}}, 400, "tokenize"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        400,
        "type='image_url' is not taken",
    ),
    ({"messages": []}, 400, "messages=\\[\\]"),
    ({"messages": [{"role": "function", "content": "x"}]}, 400, "messages.0.role='function'"),
    ({"messages": [{"role": "tool"}]}, 400, "the tool's content is null"),
    ({"messages": [{"role": "assistant", "content": "x"}]}, 400, "end with one of the user"),
    ({"messages": [{"role": "user", "content": "x" * 1100}]}, 400, "model's context of 1024"),
    ({"answer_kind": "rhyme"}, 400, "rhyme"),
    ({"stop": [""]}, 400, "at least 1 character"),
    ({"logprobs": 0}, 400, "logprobs is not offered"),
    (
        {"search": {"name": "best_of_n", "aggregation": "product"}},
        400,
        "scores below zero.* use aggregation=mean, min or last",
    ),
]


@pytest.mark.few(8)
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


BLAMED: list[tuple[dict[str, Any], str, str]] = [
    ({"reasoning_effort": "low"}, "reasoning_effort", "'low' is not taken: this model's chat temp"),
    ({"search": {"name": "best_of_n", "thinking": "low"}}, "search.thinking", "thinking=low is"),
    ({"max_completion_tokens": 901}, "max_completion_tokens", "_tokens=901 is more than this"),
    ({"stop": ["a", ""]}, "stop.1", "stop.1='': String should have at least 1 character"),
    ({"stop": ""}, "stop", "stop='': "),
    ({"answer_kind": "rhyme"}, "answer_kind", "'rhyme' is unknown"),
    ({"search": {"n": 3}}, "search", "settings and no name"),
    (
        {"search": {"name": "best_of_n", "n": True}},
        "search.n",
        "search.n=True is of type bool; give a whole number",
    ),
    (
        {"search": {"name": "best_of_n", "temperature": False}},
        "search.temperature",
        "search.temperature=False is of type bool; give a number",
    ),
    ({"search": {"name": "best_of_n", "n": 0}}, "search.n", "search.n=0 must be at least 1"),
    ({"search": {"name": "best_of_n", "x": 1}}, "search.x", "search.x is no setting of BestOfN"),
    (
        {"search": {"name": "budget_forcing"}, "thinking_token_budget": 0},
        "thinking_token_budget",
        "^Error code.*thinking_token_budget=0 must be at least 1",
    ),
    ({"search": "greedy", "temperature": 1}, "temperature", "temperature=1.0 samples"),
    ({"chat_template_kwargs": {"tools": 1}}, "chat_template_kwargs", "kwargs.tools is no variable"),
    ({"chat_template_kwargs": {"tokenize": 1}}, "chat_template_kwargs", "kwargs.tokenize is no"),
    ({"messages": [{"role": "user"}]}, "messages.0", "'user'}: the user's content is null"),
    ({"prompt": []}, "prompt", "prompt holds no text"),
    ({"prompt": ["a", " "]}, "prompt", "the prompt is empty"),
    ({"prompt": "a", "reasoning_effort": "high"}, "reasoning_effort", "goes through no chat templ"),
]


@pytest.fixture(scope="module")
def more_searches() -> Iterator[Running]:
    searches = {"best_of_n": BestOfN(), "greedy": Greedy(), "budget_forcing": BudgetForcing()}
    with running(searches=searches) as found:
        yield found


@pytest.mark.few(1)
@pytest.mark.parametrize(("fields", "param", "message"), BLAMED, ids=lambda value: str(value)[:40])
def test_a_refusal_names_the_field_as_the_client_has_sent_it(
    more_searches: Running, fields: dict[str, Any], param: str, message: str
) -> None:
    path = "/completions" if "prompt" in fields else "/chat/completions"
    asked = {} if "prompt" in fields else {"messages": said("go")}
    body: Any = {"model": "tiny"} | asked | fields
    with pytest.raises(openai.BadRequestError, match=message) as refused:
        more_searches.client().post(path, body=body, cast_to=object)
    assert refused.value.param == param


def of_json(text: str) -> dict[str, Any]:
    """A request whose body is this text."""
    return {"content": text, "headers": {"Content-Type": "application/json"}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (of_json("{"), 400, "the body is no JSON"),
        (
            of_json('{"model": "tiny+best_of_n", "prompt": "a", "search": {"min_p": NaN}}'),
            400,
            "search.min_p=nan: ",
        ),
        (
            {"content": "{}", "headers": {"Content-Type": "text/plain"}},
            415,
            "send it with the header",
        ),
        ({"json": {"prompt": "x" * 30_000}}, 413, "longer than 20000 bytes"),
        ({"json": {"prompt": "x"}}, 400, "model is missing"),
        ({"json": ["x"]}, 400, "the body is list"),
        (
            of_json('{"model": "tiny", "prompt": "a\\ud800"}'),
            400,
            "prompt holds '\\ud800' at character 1",
        ),
        (of_json('{"model": "tiny", "prompt": "a", "\\ud800": 1}'), 400, "a name holds '\\ud800'"),
        (
            of_json('{"model": "tiny", "messages": [{"content": "\\udfff"}]}'),
            400,
            "messages.0.content holds",
        ),
        ({"json": {"model": "tiny", "prompt": [1, 2]}}, 400, "prompt=[1, 2]"),
        (of_json('{"model": ' + "[" * 9000), 400, "the body is nested too deep"),
        (of_json('{"model": ' + "[" * 900 + "]" * 900 + "}"), 400, "the body is nested too deep"),
        (of_json('{"seed": ' + "9" * 5000 + "}"), 400, "a number of thousands of digits"),
    ],
    ids=[
        "no JSON",
        "NaN",
        "text",
        "long",
        "no model",
        "list",
        "surrogate",
        "surrogate key",
        "earlier message",
        "numbers",
        "deep",
        "deep JSON",
        "digits",
    ],
)
def test_a_body_that_cannot_be_read_is_refused(
    shared: Running, options: dict[str, Any], status: int, message: str
) -> None:
    reply = httpx2.post(f"{shared.url}/v1/completions", **options)
    assert reply.status_code == status and message in reply.json()["error"]["message"]


def test_an_unknown_path_says_which_there_are(shared: Running) -> None:
    for reply in (httpx2.get(f"{shared.url}/v2"), httpx2.get(f"{shared.url}/v1/completions")):
        assert (
            reply.status_code in (404, 405)
            and "/v1/chat/completions" in reply.json()["error"]["message"]
        )


def test_a_search_that_breaks_fails_its_own_request_alone(shared: Running) -> None:
    async def both() -> list[Any]:
        async with openai.AsyncOpenAI(
            base_url=f"{shared.url}/v1", api_key="unused", max_retries=0
        ) as client:
            asked = (
                client.completions.create(model="tiny+broken", prompt=p, seed=1)
                for p in ("go", "break", "on")
            )
            return await asyncio.gather(*asked, return_exceptions=True)

    first, broken, last = asyncio.run(both())
    assert isinstance(broken, openai.InternalServerError) and "a mistake in the search" in str(
        broken
    )
    assert first.choices[0].text and last.choices[0].text


class Logarithms:
    """Rates below zero, and does not say so before."""

    def rate(self, branches: Any, questions: Any, backend: Any) -> list[list[float]]:
        return [[-2.5, -0.5]] * len(branches)


def test_a_product_of_scores_below_zero_is_the_fault_of_the_request() -> None:
    with running(verifier=Logarithms()) as found:
        with pytest.raises(openai.BadRequestError) as caught:
            found.client().chat.completions.create(
                model="tiny+best_of_n",
                messages=said("1"),
                extra_body={"search": {"aggregation": "product"}},
            )
        assert "Logarithms, which gave the score -2.5" in str(caught.value)
        assert "use aggregation=mean, min or last" in str(caught.value)
        found.client().chat.completions.create(model="tiny+best_of_n", messages=said("1"))


ASKED_OF_TOOLS: list[dict[str, Any]] = [
    {"tool_choice": "none"},
    {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
    {"chat_template_kwargs": {"enable_thinking": False}},
]


@pytest.mark.slow
@pytest.mark.parametrize("fields", ASKED_OF_TOOLS, ids=str)
def test_fields_that_ask_for_nothing_change_nothing(
    shared: Running, fields: dict[str, Any]
) -> None:
    body = {"model": "tiny", "messages": said("go"), "seed": 1, "max_tokens": 5}
    plain, same = (
        httpx2.post(f"{shared.url}/v1/chat/completions", json=body | more, timeout=60).json()
        for more in ({}, fields)
    )
    assert same["choices"] == plain["choices"]


@pytest.mark.slow
def test_a_problem_that_breaks_a_shared_pass_fails_alone(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "ttc.serve")
    asked = [
        {"model": "tiny", "prompt": p, "max_tokens": 20, "seed": 3, "n": 2}
        for p in ("abc", "xyz", "go")
    ]
    with running(pass_s=0.003) as found:
        alone = [found.client().completions.create(**body).choices for body in asked]
        stream = found.client().completions.create(**ENDLESS, stream=True)
        next(stream)  # so that the culprit is never alone, however early the others end
        forward = found.engine.runner.forward

        def failing(tokens: list[int], *rest: Any) -> Any:
            if "@@@@@" in "".join(map(chr, tokens)):
                raise RuntimeError("index out of range")
            return forward(tokens, *rest)

        found.engine.runner.forward = failing  # type: ignore[method-assign]

        async def together() -> list[Any]:
            async with openai.AsyncOpenAI(
                base_url=f"{found.url}/v1", api_key="unused", max_retries=0
            ) as client:
                bodies = [*asked, {"model": "tiny", "prompt": "@@@@@b", "max_tokens": 5}]
                calls = (client.completions.create(**body) for body in bodies)
                return await asyncio.gather(*calls, return_exceptions=True)

        *right, culprit = asyncio.run(together())
        assert isinstance(culprit, openai.InternalServerError) and "index out of range" in str(
            culprit
        )
        assert [[c.text for c in reply.choices] for reply in right] == [
            [c.text for c in choices] for choices in alone
        ]
        stream.close()
        found.wait_until_free()
    assert any("/v1/completions" in line and " 500 " in line for line in caplog.messages)
    assert any("to blame" in line and "@@@@@b" in line for line in caplog.messages)


def test_the_log_is_shown_although_the_logger_was_switched_off(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = logging.getLogger("ttc.serve")
    try:
        log.disabled = True  # as Hydra leaves it
        show_log()
        log.info("shown")
        assert "INFO shown" in capsys.readouterr().err
    finally:
        log.handlers.clear()
        log.propagate = True


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


def test_a_key_keeps_others_out_and_a_strange_host_name_is_refused() -> None:
    with running(key="secret-é") as found:
        assert httpx2.get(f"{found.url}/health").status_code == 200
        for headers in (
            {},
            {"Authorization": "Bearer secret"},
            {"Authorization": "Basic secret-é".encode()},
        ):
            reply = httpx2.get(f"{found.url}/v1/models", headers=headers)  # type: ignore[arg-type]
            assert reply.status_code == 401 and reply.json()["error"]["code"] == "invalid_api_key"
            assert httpx2.get(f"{found.url}/metrics", headers=headers).status_code == 401
        right = {"Authorization": "Bearer secret-é".encode()}
        assert httpx2.get(f"{found.url}/v1/models", headers=right).status_code == 200
    with running(hosts=LOCAL) as found:
        assert httpx2.get(f"{found.url}/health").status_code == 200
        strange = httpx2.get(f"{found.url}/health", headers={"Host": "evil.example:8000"})
        assert strange.status_code == 403 and "evil.example" in strange.json()["error"]["message"]


# ---------------------------------------------------------------- the end


@pytest.mark.slow
def test_a_server_that_is_stopped_ends_what_is_under_way() -> None:
    ask = ENDLESS | {"max_tokens": 200}
    with running(shutdown_s=200, pass_s=0.002) as found:
        whole = found.client().completions.create(**ask).choices[0].text
        stream = found.client().completions.create(**ask, stream=True)
        text = next(stream).choices[0].text
        found.web.should_exit = True
        assert text + "".join(chunk.choices[0].text for chunk in stream) == whole
        found.thread.join(200)
        with pytest.raises(openai.APIConnectionError):
            found.client().completions.create(**ask)


def test_what_takes_too_long_is_broken_off_when_the_server_stops() -> None:
    with running(shutdown_s=0, pass_s=0.003) as found:
        stream = found.client().completions.create(**ENDLESS, stream=True)
        next(stream)
        found.web.should_exit = True
        found.thread.join(200)
        assert not found.thread.is_alive() and found.engine.kv_bytes() == 0


def test_who_waits_when_the_server_ends_is_told_so() -> None:
    with running(shutdown_s=0, pass_s=0.003) as found, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(httpx2.post, f"{found.url}/v1/completions", json=ENDLESS, timeout=300)
        until_it_decodes(found)
        found.web.should_exit = True
        reply = asked.result(300)
        assert (
            reply.status_code == 503
            and "the server is stopping" in reply.json()["error"]["message"]
        )
