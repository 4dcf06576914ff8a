"""A server that misbehaves: what may pass is asked again, seed and all, and what does not is
named."""

from __future__ import annotations

import gzip
import json
import math
import socket
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import httpx2
import pytest

from search import BeamSearch, BestOfN, Greedy, solve
from tests.helpers.engines import GREEDY
from tests.helpers.servers import Fault, Handler, ServedModel, connected
from ttc import Branch, RemoteError
from ttc.step import Step
from verifiers import ConfidenceVerifier


def status(number: int, **headers: str) -> Fault:
    return lambda handler, body: handler.refuse(number, **headers)


def answer(change: Callable[[dict[str, Any]], object]) -> Fault:
    """An answer that is right but for one thing."""

    def send(handler: Handler, body: dict[str, Any]) -> None:
        data = handler.served.complete(body)
        assert isinstance(data, dict)
        change(data)
        handler.answer(data)

    return send


def hang_up(handler: Handler, body: dict[str, Any]) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


def change_choice(**fields: Any) -> Fault:
    return answer(lambda data: data["choices"][0].update(fields))


def change_usage(**counts: Any) -> Fault:
    return answer(lambda data: data["usage"].update(counts))


def change_logprobs(**lists: Any) -> Fault:
    """Each of them in place of the last token's."""

    def change(data: dict[str, Any]) -> None:
        for name, value in lists.items():
            data["choices"][0]["logprobs"][name][-1] = value

    return answer(change)


UNREAD = "cannot be read"
NO_LOGPROBS = "without the log-probabilities that were asked for"
MANY = {"tokens": [], "token_logprobs": [-1] * 99, "top_logprobs": [{"L": -1}] * 99}
ONE = {"tokens": ["L"], "token_logprobs": [-1], "top_logprobs": [{"L": -1}]}


def sent(status: int, data: bytes, length: int | None = None) -> Fault:
    return lambda handler, body: handler.send(status, data, length)


FAULTS: dict[str, tuple[Fault, str]] = {
    "too many requests": (status(429, Retry_After="0"), "status 429: not like this"),
    "an error inside": (status(500), "status 500"),
    "no JSON": (sent(200, b"<html>busy"), "no JSON: '<html>busy'"),
    "half of the JSON": (sent(200, b'{"choices": [{"te'), "no JSON"),
    "deep JSON": (sent(200, b'{"a":' * 10**5 + b"1" + b"}" * 10**5), "no JSON"),
    "a number of thousands of digits": (sent(200, b'{"a": ' + b"9" * 9000 + b"}"), "no JSON"),
    "an answer that breaks off": (sent(200, b'{"ch', 999), "broke off its answer"),
    "a connection that ends": (hang_up, "broke off its answer"),
    "no object": (sent(200, b"[]"), UNREAD),
    "no choice": (answer(lambda data: data["choices"].clear()), "choices: .* at least 1"),
    "two choices": (answer(lambda data: data["choices"].append({})), "choices: .* at most 1"),
    "no text": (change_choice(text=None), "without a text"),
    "a text that is a list": (change_choice(text=[]), "choices.0.text"),
    "no finish reason": (change_choice(finish_reason=None), "=None where stop or length"),
    "an answer that was given up": (change_choice(finish_reason="abort"), "finish_reason='abort'"),
    "tokens that are no numbers": (change_choice(token_ids=["a"]), "token_ids.0"),
    "a token that is true": (change_choice(token_ids=[True] * 6), "token_ids.0"),
    "more tokens than figures": (change_choice(token_ids=[65] * 7), "log-probabilities of"),
    "another form": (change_choice(logprobs={"token_logprobs": [[]]}), UNREAD),
    "no log-probabilities any more": (change_choice(logprobs=None), NO_LOGPROBS),
    "no log-probability of a token": (change_logprobs(token_logprobs=None), NO_LOGPROBS),
    "no likeliest token": (change_logprobs(top_logprobs=None), NO_LOGPROBS),
    "a positive log-probability": (change_logprobs(token_logprobs=0.5), "no log-probability"),
    "one beyond all": (change_logprobs(token_logprobs=-1e300), "no log-probability"),
    "a whole number beyond floats": (change_logprobs(token_logprobs=-(10**400)), UNREAD),
    "no number": (change_logprobs(token_logprobs=float("nan")), "no log-probability"),
    "a likeliest token of text": (change_logprobs(top_logprobs={"a": "b"}), "no log-probability"),
    "a token's name that is no text": (change_logprobs(tokens=5), "logprobs.tokens"),
    "one of six": (change_choice(token_ids=None, logprobs=ONE), NO_LOGPROBS),
    "ninety-nine": (change_choice(token_ids=None, logprobs=MANY), "99 tokens where 6 were"),
    "nothing but a count": (change_choice(text="", token_ids=None, logprobs=None), NO_LOGPROBS),
    "a usage of halves": (change_usage(completion_tokens=5.5), "completion_tokens: "),
    "negative usage": (change_usage(prompt_tokens=-3), "prompt_tokens: "),
    "usage beyond all": (change_usage(completion_tokens=10**30), "completion_tokens: "),
    "a usage that is a list": (answer(lambda data: data.update(usage=[7])), "usage: "),
    "more tokens than asked for": (change_usage(completion_tokens=99), "99 tokens where 6 were"),
    "log-probability -inf": (change_logprobs(token_logprobs=-math.inf), "no log-probability"),
    "a prompt that was not sent": (change_usage(prompt_tokens=10**8), "where 2 tokens were sent"),
    "more cached than sent": (
        change_usage(prompt_tokens_details={"cached_tokens": 10**6}),
        "cached_tokens=1000000 of prompt_tokens=",
    ),
    "a text without tokens": (change_usage(completion_tokens=0), "completion_tokens=0"),
    "a text without token numbers": (change_choice(token_ids=[], logprobs=None), "no token_ids"),
    "a text that is too long": (
        change_choice(token_ids=None, logprobs=None, text="a" * 10_000),
        "10,000 characters where 6 tokens were asked for",
    ),
    "a digit that is no number": (status(429, Retry_After="\u00b2"), "status 429"),
    "a wait that is no number": (status(429, Retry_After="nan"), "status 429"),
    "an error that is deep": (sent(500, b'{"error":' + b"[" * 10**5), "status 500"),
    "an error that is a number": (sent(500, b"7"), "status 500: 7"),
    "a date to wait for": (status(503, Retry_After="Wed, 21 Oct 2015"), "status 503"),
    "a negative wait": (status(429, Retry_After="-1"), "status 429"),
}
"""What may pass: faults that are over the next time, and servers that lie."""


def best_of_3(served: ServedModel) -> list[tuple[Any, list[int]]]:
    with connected(served, concurrency=1) as backend:
        result = solve(
            BestOfN(n=3, max_tokens=6),
            problem="1 + 1",
            engine=backend,
            verifier=ConfidenceVerifier(),
        )
    assert result.error is None
    return [(branch.path, branch.tokens) for branch in result.branches]


@cache
def untroubled() -> list[tuple[Any, list[int]]]:
    served = ServedModel()
    found = best_of_3(served)
    assert len(served.requests) == 3
    return found


@pytest.mark.parametrize("fault", ["an error inside", "half of the JSON", "no finish reason"])
def test_what_may_pass_is_asked_again_with_the_same_seed(fault: str) -> None:
    served = ServedModel(faults=[FAULTS[fault][0]] * 2)
    assert best_of_3(served) == untroubled()
    assert len(served.requests) == 3 + 2
    assert all(request == served.requests[0] for request in served.requests[:3])


def test_what_does_not_pass_is_named() -> None:
    served = ServedModel()
    with connected(served, retries=1) as backend:
        for name, (made, reason) in FAULTS.items():
            served.faults = [made] * 2
            branch = backend.root([65, 66])
            with pytest.raises(RemoteError, match=reason) as raised:
                backend.generate([branch], 6, sampling=GREEDY)
            told = str(raised.value)
            assert "http://127.0.0.1" in told and "(2 times)" in told and len(told) < 800, name
            assert branch.generated == [] and branch.usage.prompt_tokens == 0, name
        backend.generate([branch], 6, sampling=GREEDY)
        assert len(branch.generated) == 6


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (status(400), "status 400: not like this"),
        (status(401), "OPENAI_API_KEY"),
        (status(404), "must end with the version"),
        (change_choice(token_ids=[70] * 6), "give the tokenizer of the model that it serves"),
        (
            change_choice(token_ids=[200] * 6, text="\ufffd"),
            "holds token 200, outside the model's vocabulary",
        ),
        (change_choice(token_ids=[-1] * 6), "holds token -1, outside the model's vocabulary"),
        (change_choice(token_ids=[10**12] * 6), "holds token 1000000000000, outside"),
        (
            status(307, Location="https://elsewhere.example/v1/"),
            "a redirect to 'https://elsewhere.example/v1/'; give the address",
        ),
    ],
)
def test_what_cannot_pass_is_not_asked_again(fault: Fault, reason: str) -> None:
    served = ServedModel(faults=[fault])
    with connected(served) as backend:
        with pytest.raises(Exception, match=reason):
            backend.generate([backend.root([65, 66])], 6, sampling=GREEDY)
        assert len(served.requests) == 1


REFUSALS: dict[str, tuple[Fault, str]] = {
    "a bad request": (status(400), "status 400: not like this"),
    "too large": (status(413), "status 413"),
    "what cannot be processed": (status(422), "status 422"),
    "a filter of contents": (
        change_choice(finish_reason="content_filter"),
        "finish_reason='content_filter'",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refusal_belongs_to_its_own_problem(refusal: str) -> None:
    """Whatever holds a Z is refused. The other problems end as they would without it."""
    fault, reason = REFUSALS[refusal]
    search = BeamSearch(beam_size=2, beam_width=2, step_tokens=4, max_steps=2)
    options: dict[str, Any] = {"verifier": ConfidenceVerifier(), "max_rows": 5, "concurrency": 3}
    with connected(ServedModel()) as backend:
        without = solve(search, problem=["1 + 1", "2 + 2"], engine=backend, **options)
    served = ServedModel(touchy={"Z": fault})
    with connected(served) as backend:
        problems = ["Z + 1", "1 + 1", "Z", "2 + 2"]
        results = solve(search, problem=problems, engine=backend, **options)
        assert not backend.live
    refused = [result for result in results if result.error is not None]
    assert [result.problem.question for result in refused] == ["Z + 1", "Z"]
    assert all(reason in str(result.error) and not result.branches for result in refused)
    for result, alone in zip((results[1], results[3]), without, strict=True):
        assert [branch.tokens for branch in result.branches] == [
            branch.tokens for branch in alone.branches
        ]
    asked = [chr(token) for request in served.requests for token in request["prompt"]]
    assert asked.count("Z") <= 2 * 4  # each of the first step's requests at most once


def test_a_refusal_of_a_rating_belongs_to_its_own_problem() -> None:
    with connected(ServedModel(touchy={"?Z": status(400)})) as backend:

        class Asking:
            """Asks of each branch how likely a letter is after it, and of one what the server
            refuses."""

            def rate(self, branches: Any, questions: Any, backend: Any) -> list[list[float]]:
                marks = ["?Z" if question == "b" else "?" for question in questions]
                texts = [
                    [*b.tokens, *map(ord, mark)] for b, mark in zip(branches, marks, strict=True)
                ]
                made = backend.side_branches(branches, texts).result()
                try:
                    return [
                        [row[0][0]] for row in backend.score(made, [[[70]]] * len(made)).result()
                    ]
                finally:
                    backend.release(made)

        search = BestOfN(n=2, max_tokens=4)
        results = solve(search, problem=["a", "b", "c"], engine=backend, verifier=Asking())
    assert [result.error is None for result in results] == [True, False, True]
    assert "status 400" in str(results[1].error)


def test_a_key_that_is_refused_stops_every_problem() -> None:
    served = ServedModel(touchy={"Z": status(401)})
    with connected(served) as backend, pytest.raises(RemoteError, match="OPENAI_API_KEY"):
        solve(Greedy(max_tokens=4), problem=["1 + 1", "Z"], engine=backend)


def test_a_server_that_writes_nothing_is_not_asked_for_ever() -> None:
    def change(data: dict[str, Any]) -> None:
        data["choices"][0].update(token_ids=[], text="", finish_reason="length", logprobs=None)
        data["usage"]["completion_tokens"] = 0

    served = ServedModel(faults=[answer(change)] * 50)
    with (
        connected(served) as backend,
        pytest.raises(RemoteError, match=r"no token .* where 30 were asked for"),
    ):
        backend.generate([backend.root([65, 66])], 30, sampling=GREEDY)
    assert len(served.requests) == 1


def test_an_answer_that_does_not_come_in_time_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = ServedModel()
    with connected(served, retries=2) as backend:
        http, late = backend.server.client.http, iter(range(5))
        send = http.send

        async def answered(*args: Any, **options: Any) -> Any:
            if next(late) in (0, 2, 3, 4):
                raise httpx2.ReadTimeout("no answer")
            return await send(*args, **options)

        monkeypatch.setattr(http, "send", answered)
        branch = backend.root([65, 66])
        backend.generate([branch], 3, sampling=GREEDY)
        assert len(branch.generated) == 3 and len(served.requests) == 1
        with pytest.raises(
            RemoteError, match=r"not answered in 600 s; give a larger timeout_s .* \(3 times\)"
        ):
            backend.generate([branch], 3, sampling=GREEDY)


def test_an_answer_that_drips_has_its_time_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A blank now and then keeps a connection alive, and is no answer."""
    gone = threading.Event()

    def drip(handler: Handler, body: dict[str, Any]) -> None:
        handler.send(200, b"", 10**6)
        try:
            while not gone.wait(0.02):
                handler.wfile.write(b" ")
        except OSError:
            gone.set()

    served = ServedModel()
    with connected(served, retries=0) as backend:
        endpoint = backend.server.client.endpoint
        monkeypatch.setattr(backend.server.client, "endpoint", replace(endpoint, timeout_s=0.3))
        served.faults = [drip]
        with pytest.raises(RemoteError, match=r"not answered in 0\.3 s"):
            backend.generate([backend.root([65, 66])], 3, sampling=GREEDY)
        assert gone.wait(100)  # the connection was closed


@pytest.mark.few(1)
@pytest.mark.parametrize("status_code", [200, 500])
def test_an_answer_without_an_end_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, status_code: int
) -> None:
    gone = threading.Event()

    def pour(handler: Handler, body: dict[str, Any]) -> None:
        handler.send(status_code, b"", 10**12)
        try:
            while True:
                handler.wfile.write(b" " * 2**16)
        except OSError:
            gone.set()

    monkeypatch.setattr("ttc.remote.client.OTHER_BYTES", 2**20)
    with connected(ServedModel(faults=[pour]), retries=0) as backend:
        with pytest.raises(RemoteError, match="more than 1069056 bytes"):
            backend.generate([backend.root([65, 66])], 3, sampling=GREEDY)
        assert gone.wait(100)


@pytest.mark.slow
def test_packed_answers_are_read_and_bombs_are_not_unpacked() -> None:
    def packed(data: bytes, encoding: str = "gzip") -> Fault:
        return lambda handler, body: handler.send(200, data, Content_Encoding=encoding)

    right = answer_of(ServedModel())
    bomb = gzip.compress(b" " * 10**8)
    served = ServedModel()
    with connected(served, retries=0) as backend:
        served.faults = [packed(gzip.compress(right))]
        branch = backend.root([65, 66])
        backend.generate([branch], 6, sampling=GREEDY)
        assert len(branch.generated) == 6
        for data, encoding, reason in (
            (bomb, "gzip", "answered with more than"),
            (gzip.compress(bomb), "gzip, gzip", "no JSON"),
            (right, "gzip", "broke off its answer"),
            (gzip.compress(right)[:-20], "gzip", "no JSON"),
            (zlib.compress(right), "deflate", "no JSON"),
        ):
            served.faults = [packed(data, encoding)]
            with pytest.raises(RemoteError, match=reason):
                backend.generate([backend.root([65, 66])], 6, sampling=GREEDY)


def answer_of(served: ServedModel) -> bytes:
    """To what `backend.generate([branch], 6, sampling=GREEDY)` asks of the prompt AB."""
    with connected(served) as backend:
        backend.generate([backend.root([65, 66])], 6, sampling=GREEDY)
    return json.dumps(served.complete(served.requests[-1])).encode()


def test_a_text_that_is_longer_than_was_asked_for_here_is_refused() -> None:
    served = ServedModel(ids_out=False, logprobs=0)
    with connected(served) as backend:
        served.faults = [change_choice(text="a" * 6000)]
        with pytest.raises(RemoteError, match="a text of 6,000 tokens where 6 were asked for"):
            backend.generate([backend.root([65, 66])], 6, sampling=GREEDY)


@pytest.mark.slow
def test_half_of_a_pair_in_an_answer_is_a_character_that_is_not_known() -> None:
    """In a text, in the names of tokens and in a refusal."""
    half = change_choice(text="a\ud800b", token_ids=None, logprobs=None, finish_reason="stop")
    served = ServedModel(ids_out=False, logprobs=0)
    with connected(served, retries=0) as backend:
        served.faults = [half]
        branch = backend.root([65, 66])
        backend.generate([branch], 6, sampling=GREEDY)
        assert branch.text == "a\ufffdb"
    named = change_logprobs(top_logprobs={"\udfff": -1.0})
    with connected(ServedModel(faults=[named])) as backend:
        branch = backend.root([65, 66])
        backend.generate([branch], 6, sampling=GREEDY)
        assert len(branch.generated) == 6
    refusal = json.dumps({"error": {"message": "not \ud83d this"}}).encode()
    with (
        connected(ServedModel(faults=[lambda h, b: h.send(400, refusal)])) as backend,
        pytest.raises(RemoteError, match="not \ufffd this"),
    ):
        backend.generate([backend.root([65, 66])], 6, sampling=GREEDY)


@pytest.mark.slow
def test_no_more_requests_are_under_way_than_the_setting_says() -> None:
    served = ServedModel(pause_s=0.02)
    with connected(served, concurrency=3) as backend:
        children = backend.fork(backend.root([65, 66]), 12)
        backend.generate(children, 2)
        assert served.most == 3 and len(served.requests) == 12
        served.most = 0
        batch = backend.running_batch(max_rows=2)
        batch.add(children, Step(2))
        assert len(batch) == 12
        ended = list[Branch]()
        while len(batch):
            ended += batch.step()
        assert served.most == 2 and sorted(map(id, ended)) == sorted(map(id, children))


def test_a_batch_that_is_closed_or_whose_branches_go_waits_for_nothing() -> None:
    served = ServedModel()
    with connected(served) as backend:
        served.pause_s = 300.0
        children = backend.fork(backend.root([65, 66]), 3)
        batch = backend.running_batch()
        started = time.monotonic()
        batch.add(children, Step(2))
        backend.release(children[:1])
        assert len(batch) == 2 and children[0].released
        batch.close()
        assert len(batch) == 0 and batch.step() == []
        assert time.monotonic() - started < 100 and all(not child.generated for child in children)


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["cancel", "max_wall_s"])
def test_a_search_that_is_to_end_waits_for_no_answer(limit: str) -> None:
    served = ServedModel()
    with connected(served) as backend:
        served.pause_s = 300.0
        cancel = threading.Event()
        threading.Timer(0.2, cancel.set).start()
        options: dict[str, Any] = {"cancel": cancel} if limit == "cancel" else {"max_wall_s": 0.2}
        started = time.monotonic()
        result = solve(Greedy(max_tokens=8), problem="1", engine=backend, **options)
        assert time.monotonic() - started < 100 and not backend.live
        assert result.stopped == ("cancelled" if limit == "cancel" else limit)
