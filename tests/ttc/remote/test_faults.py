"""A server that misbehaves: what may pass is asked again, seed and all, and what does not is
named."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import httpx2
import pytest

from search import BeamSearch, BestOfN, Greedy, solve
from tests.helpers.engines import GREEDY
from tests.helpers.servers import Fault, Handler, ServedModel, connected
from tests.helpers.tiers import some_quick
from ttc import Branch, RemoteError
from ttc.protocols import Step
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


FAULTS: dict[str, tuple[Fault, str]] = {
    "too many requests": (status(429, Retry_After="0"), "status 429: not like this"),
    "an error inside": (status(500), "status 500"),
    "a proxy without a server": (status(503), "status 503"),
    "no JSON": (lambda handler, body: handler.send(200, b"<html>busy"), "no JSON: '<html>busy'"),
    "half of the JSON": (lambda handler, body: handler.send(200, b'{"choices": [{"te'), "no JSON"),
    "an answer that breaks off": (
        lambda handler, body: handler.send(200, b'{"ch', 999),
        "broke off its answer",
    ),
    "a connection that ends": (hang_up, "broke off its answer"),
    "an answer that is no object": (
        lambda handler, body: handler.answer([]),
        "no choices where one",
    ),
    "no choice": (
        answer(lambda data: data["choices"].clear()),
        "0 choices where one was asked for",
    ),
    "two choices": (
        answer(lambda data: data["choices"].append({})),
        "2 choices where one was asked for",
    ),
    "no text": (change_choice(text=None), "without a text"),
    "no finish reason": (
        change_choice(finish_reason=None),
        "finish_reason=None where stop or length",
    ),
    "an answer that was given up": (change_choice(finish_reason="abort"), "finish_reason='abort'"),
    "tokens that are no numbers": (change_choice(token_ids=["a"]), "no numbers"),
    "too few log-probabilities": (
        change_choice(token_ids=[65, 65, 65, 65, 65, 65, 65]),
        "log-probabilities of",
    ),
    "log-probabilities of another form": (
        change_choice(logprobs={"token_logprobs": [[]]}),
        "cannot be read",
    ),
}


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


@pytest.mark.parametrize(
    "fault", some_quick(FAULTS, ["an error inside", "half of the JSON", "no finish reason"])
)
def test_what_may_pass_is_asked_again_with_the_same_seed(fault: str) -> None:
    served = ServedModel(faults=[FAULTS[fault][0]] * 2)
    assert best_of_3(served) == untroubled()
    assert len(served.requests) == 3 + 2
    assert all(request == served.requests[0] for request in served.requests[:3])


@pytest.mark.parametrize(
    "fault", some_quick(FAULTS, ["too many requests", "no JSON", "two choices", "no text"])
)
def test_what_does_not_pass_is_named(fault: str) -> None:
    made, reason = FAULTS[fault]
    with connected(ServedModel(faults=[made] * 9), retries=2) as backend:
        branch = backend.root([65, 66])
        with pytest.raises(RemoteError, match=reason) as raised:
            backend.generate([branch], 6, sampling=GREEDY)
        assert "(3 times)" in str(raised.value) and "http://127.0.0.1" in str(raised.value)
        assert branch.generated == []


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
                made = backend.side_branches(branches, texts)
                try:
                    return [[row[0][0]] for row in backend.score(made, [[[70]]] * len(made))]
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
        pytest.raises(RemoteError, match="no token of 30 that were asked for"),
    ):
        backend.generate([backend.root([65, 66])], 30, sampling=GREEDY)
    assert len(served.requests) == 1


def test_an_answer_that_does_not_come_in_time_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = ServedModel()
    with connected(served, retries=2) as backend:
        http, late = backend.server.client.http, iter(range(5))
        request = http.request

        async def answered(*args: Any, **options: Any) -> Any:
            if next(late) in (0, 2, 3, 4):
                raise httpx2.ReadTimeout("no answer")
            return await request(*args, **options)

        monkeypatch.setattr(http, "request", answered)
        branch = backend.root([65, 66])
        backend.generate([branch], 3, sampling=GREEDY)
        assert len(branch.generated) == 3 and len(served.requests) == 1
        with pytest.raises(
            RemoteError, match=r"not answered in 600 s; give a larger timeout_s .* \(3 times\)"
        ):
            backend.generate([branch], 3, sampling=GREEDY)


def test_after_an_error_branches_keep_what_they_have() -> None:
    served = ServedModel()
    with connected(served, retries=0) as backend:
        branch = backend.root([65, 66])
        backend.generate([branch], 3, sampling=GREEDY)
        before = list(branch.tokens)
        served.faults = [status(500)]
        with pytest.raises(RemoteError):
            backend.generate([branch], 3, sampling=GREEDY)
        assert branch.tokens == before and branch.step_reasons == ["length"]
        backend.generate([branch], 3, sampling=GREEDY)
        assert len(branch.tokens) == 8


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
