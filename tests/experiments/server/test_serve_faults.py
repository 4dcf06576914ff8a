"""The server where things go wrong: clients that leave or may not call, bad requests, failures, and
its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.server.access import log, show_log
from experiments.server.launch import LOCAL
from experiments.server.service import ENDS, likely_wait
from tests.helpers.own_server import ENDLESS, Running, running, said

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
            found.wait_until(lambda: found.api.service.decoding > 0)
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
            found.complete("go")
        assert int(refused.value.response.headers["retry-after"]) >= 1
        stream.close()
        found.wait_until_free()
        assert found.complete("go").choices


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


def test_requests_that_never_come_to_an_end_keep_nobody_away() -> None:
    with (
        running(header_s=0.2) as found,
        half_open(found.port) as waiting,
        contextlib.suppress(ConnectionResetError),
    ):
        assert waiting.recv(1) == b""  # closed by the server


def test_clients_and_proxies_close_an_idle_connection_before_the_server_does() -> None:
    with running() as found, httpx2.Client(base_url=found.url) as client:
        assert client.get("/health").status_code == 200
        (connection,) = found.web.server_state.connections
        assert connection.timeout_keep_alive > 60  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_client_that_reads_nothing_keeps_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.server.web.WRITE_S", 0.2)
    asked = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 50
    with running(header_s=300) as found:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(200)
        connection.connect(("127.0.0.1", found.port))
        with connection, pytest.raises(ConnectionError):
            while True:  # until the server has closed it
                connection.sendall(asked)
        assert httpx2.get(f"{found.url}/health").status_code == 200


def test_no_more_connections_are_open_than_the_setting_says() -> None:
    with running(header_s=300, max_connections=4) as found:
        with contextlib.ExitStack() as waiting:
            for _ in range(4):
                waiting.enter_context(half_open(found.port))
            refused = httpx2.get(f"{found.url}/health")
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "connections"
        found.wait_until(lambda: not found.web.server_state.connections)
        assert httpx2.get(f"{found.url}/health").status_code == 200


# ---------------------------------------------------------------- what goes wrong


HUGE = 10**400
WEATHER = {"type": "function", "function": {"name": "weather"}}


def best_of(**settings: Any) -> dict[str, Any]:
    return {"search": {"name": "best_of_n"} | settings}


# fields of a request, the one that is named, and the message
BAD: list[tuple[dict[str, Any], str | None, str]] = [
    ({"model": "huge"}, "model", "use tiny, or tiny\\+NAME with NAME one of best_of_n"),
    ({"model": "tiny+nope"}, "model", "does not exist"),
    ({"search": "nope"}, "search", "use one of none, best_of_n"),
    ({"search": {"n": 3}}, "search", "give search.name"),
    (best_of(_target_="os.system"), "search._target_", "_target_ is no setting of BestOfN"),
    (best_of(n=17), "search.n", "search.n=17 is more than this server's 16"),
    (best_of(n=0), "search.n", "search.n=0 must be at least 1"),
    (best_of(n="many"), "search.n", "search.n='many'"),
    (best_of(n=True), "search.n", "search.n=True is of type bool; give a whole number"),
    (best_of(n=[1]), "search.n", "search.n=\\[1\\]: give a finite number, a text"),
    (best_of(n=-HUGE), "search.n", "search.n=-1000.*: must be from -2147483647 to"),
    (best_of(top_k=10**30), "search.top_k", "search.top_k=1000.*: must be from"),
    (best_of(temperature=1e300), "search.temperature", "search.temperature=1e.300: must be"),
    (best_of(thinking="low"), "search.thinking", "thinking=low is"),
    (best_of(aggregation="product"), None, "scores below zero.* use aggregation="),
    ({"search": "greedy", "temperature": 1}, "temperature", "temperature=1.0 samples"),
    ({"model": "tiny+best_of_n", "n": 2}, "n", "a search gives one answer"),
    ({"max_tokens": 901}, "max_tokens", "max_tokens=901 is more than this server's 900"),
    ({"max_completion_tokens": 901}, "max_completion_tokens", "_tokens=901 is more than this"),
    ({"max_generated_tokens": 2001}, "max_generated_tokens", "more than this server's 2000"),
    ({"max_wall_s": 61}, "max_wall_s", "max_wall_s=61.0 is more than this server's 60"),
    ({"max_wall_s": 0}, "max_wall_s", "max_wall_s=0"),
    ({"temperature": -1}, "temperature", "temperature=-1: "),
    ({"top_k": 2**63}, "top_k", "top_k=9223372036854775808: .*less than or equal to 2147483647"),
    ({"seed": HUGE}, "seed", "seed=1000.*: .*less than or equal to 9223372036854775807"),
    ({"tools": [{"type": "function"}]}, "tools.0.function", "is missing"),
    ({"tools": [WEATHER], "tool_choice": "any"}, "tool_choice", "tool_choice='any'"),
    (
        {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "time"}}},
        "tool_choice",
        "tool_choice='time' is unknown; use one of auto, required, weather",
    ),
    ({"tool_choice": "required"}, "tool_choice", "=required, and there are no tools; give tools"),
    ({"prompt": "a", "tool_choice": "required"}, "tool_choice", "'required': Input should be"),
    ({"tools": [WEATHER, WEATHER]}, "tools", "two tools are called weather"),
    ({"chat_template_kwargs": {"x": HUGE}}, "chat_template_kwargs.x", "kwargs.x=1000.*: must be"),
    ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs", "no variable of a"),
    ({"chat_template_kwargs": {"tokenize": 1}}, "chat_template_kwargs", "kwargs.tokenize is no"),
    ({"messages": []}, "messages", "messages=\\[\\]"),
    ({"messages": [{"role": "function"}]}, "messages.0.role", "messages.0.role='function'"),
    ({"messages": [{"role": "tool"}]}, "messages.0", "the tool's content is null"),
    ({"messages": [{"role": "assistant", "content": "x"}]}, "messages", "end with one of the user"),
    ({"messages": [{"role": "user", "content": "x" * 1100}]}, "messages", "context of 1024"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages.0.content.0.type",
        "type='image_url' is not taken",
    ),
    ({"answer_kind": "rhyme"}, "answer_kind", "'rhyme' is unknown"),
    ({"stop": ["a", ""]}, "stop.1", "stop.1='': String should have at least 1 character"),
    ({"logprobs": 0}, "logprobs", "logprobs=0: "),
    ({"top_logprobs": 2}, "top_logprobs", "top_logprobs=2 needs logprobs=true"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "top_logprobs=21: .*equal to 20"),
    ({"repetition_penalty": 0}, "repetition_penalty", "repetition_penalty=0: .*equal to 0.001"),
    ({"temprature": 1}, "temprature", "is not offered here; leave it out, or is it temperature"),
    ({"search": {"name": "best_of_n", "thinking": "low"}}, "search.thinking", "=low is for chat t"),
    ({"prompt": "a", "reasoning_effort": "high"}, "reasoning_effort", "=high is for chat templ"),
    ({"prompt": []}, "prompt", "prompt=\\[\\]"),
    ({"prompt": ["a", " "]}, "prompt", "the prompt is empty"),
    ({"prompt": ["a", "b"], "stream": True}, "prompt", "prompt holds 2 texts"),
    ({"prompt": [1, "a"]}, "prompt", "give a text, the numbers of its tokens, or several"),
    ({"prompt": ["a", [1]]}, "prompt", "all as texts or all as tokens"),
    ({"prompt": [5, 99_999]}, "prompt", "99999"),
    ({"prompt": "a", "logprobs": True}, "logprobs", "logprobs=True: "),
    ({"input": [{"type": "file"}]}, "input.0.type", "use 'message', 'function_call'"),
    ({"input": "a", "max_output_tokens": 901}, "max_output_tokens", "_tokens=901 is more than"),
    ({"input": "a", "reasoning": {"effort": "most"}}, "reasoning.effort", "effort='most': "),
    ({"input": "a", "tools": [{"type": "web_search"}]}, "tools.0.type", "use 'function'"),
    (
        {"input": "a", "text": {"format": {"type": "json_schema"}}},
        "text.format",
        "give schema with type=json_schema",
    ),
    (
        {"search": "budget_forcing", "thinking_token_budget": 0},
        "thinking_token_budget",
        "^Error code.*thinking_token_budget=0 must be at least 1",
    ),
]


def asked(fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The path and the body of a request with these fields."""
    for field, path in (("prompt", "/completions"), ("input", "/responses")):
        if field in fields:
            return path, {"model": "tiny"} | fields
    return "/chat/completions", {"model": "tiny", "messages": said("go")} | fields


@pytest.mark.few(8)
@pytest.mark.parametrize(("fields", "param", "message"), BAD, ids=lambda value: str(value)[:40])
def test_a_request_that_cannot_be_used_is_refused_by_name(
    shared: Running, fields: dict[str, Any], param: str | None, message: str
) -> None:
    path, body = asked(fields)
    with pytest.raises(openai.APIStatusError, match=message) as refused:
        shared.client().post(path, body=body, cast_to=object)
    assert refused.value.status_code == (404 if param == "model" else 400)
    assert refused.value.param == param and refused.value.type
    if "context" in message:
        assert refused.value.code == "context_length_exceeded"


BODIES: dict[bytes, str] = {
    b"{": "the body is no JSON",
    b'["x"]': "the body is list",
    b'{"prompt": "x"}': "model is missing",
    b'{"model": "tiny+best_of_n", "prompt": "a", "search": {"min_p": NaN}}': "search.min_p=nan: ",
    b'{"model": "tiny", "prompt": "a\\ud800"}': "hex escape at line 1 column 37",
    b'{"model": ' + b"[" * 900 + b"]" * 900 + b"}": "recursion limit exceeded",
    b'{"seed": ' + b"9" * 5000 + b"}": "number out of range",
}


def test_a_body_that_cannot_be_read_is_refused(shared: Running) -> None:
    url, json_type = f"{shared.url}/v1/completions", {"Content-Type": "application/json"}
    for body, message in BODIES.items():
        reply = httpx2.post(url, content=body, headers=json_type)
        assert reply.status_code == 400 and message in reply.json()["error"]["message"]
    long = httpx2.post(url, json={"prompt": "x" * 30_000})
    assert long.status_code == 413 and "longer than 20000 bytes" in long.text
    text = httpx2.post(url, content="{}", headers={"Content-Type": "text/plain"})
    assert text.status_code == 415 and "send it with the header" in text.text


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


@pytest.mark.parametrize("private", [True, False])
def test_the_log_of_a_server_repeats_a_question_only_if_it_may(
    private: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "handlers", [])
    monkeypatch.setattr(log, "propagate", True)
    monkeypatch.setattr(log, "disabled", True)  # as Hydra leaves it
    show_log(private)
    log.info("'127.0.0.1' asked for %r", "/v1/models")
    try:
        raise ValueError("Which zebra?")
    except ValueError:
        log.exception("the problem is to blame that begins with %r", "Which zebra?")
    shown = capsys.readouterr().err
    assert "'/v1/models'" in shown and "to blame that begins with" in shown
    assert ("zebra" in shown) is not private


def test_an_engine_that_fails_once_fails_what_is_under_way_and_the_server_goes_on() -> None:
    with running() as found:
        forward = found.engine.runner.forward

        def failing(*_: Any) -> Any:
            found.engine.runner.forward = forward  # type: ignore[method-assign]
            raise RuntimeError("device lost")

        found.engine.runner.forward = failing  # type: ignore[method-assign]
        with pytest.raises(openai.InternalServerError, match="device lost"):
            found.complete("go")
        found.wait_until_free()
        assert found.complete("go").choices


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
