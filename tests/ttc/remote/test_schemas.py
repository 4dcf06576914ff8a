"""Answers by a schema on a server: what is sent, over the project's own server and over others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress

import pytest

pytest.importorskip("starlette")
pytest.importorskip("openai")

from search import BeamSearch, ComputeOptimal, Search, SelfConsistency, solve
from search.base import Case, SearchSteps, expand
from tests.helpers.chat_server import serving
from tests.helpers.engines import GREEDY, bytes_engine
from tests.helpers.searches import Costly
from tests.helpers.servers import ServedModel, connected
from tests.helpers.thinking import OPENING, TURNS, thinker
from ttc import Branch, Endpoint, InvalidInput, RemoteBackend, RemoteError, Step, Unsupported

SCHEMA = {
    "type": "object",
    "properties": {"yes": {"type": "boolean"}, "n": {"type": "integer", "maximum": 9}},
    "required": ["yes", "n"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def remote() -> Iterator[RemoteBackend]:
    tokenizer = thinker(TURNS)
    with serving(bytes_engine(tokenizer)) as client:
        backend = RemoteBackend(Endpoint(str(client.base_url).rstrip("/"), model="m"), tokenizer)
        yield backend
        backend.close()


def test_searches_on_a_server_get_answers_that_fit(remote: RemoteBackend) -> None:
    search = SelfConsistency(n=5, max_tokens=120)
    result = solve(search, problem="?", engine=remote, schema=SCHEMA)
    ended = [branch for branch in result.branches if branch.finish_reason == "eos"]
    assert ended
    for branch in ended:
        answer = json.loads(branch.text)
        assert list(answer) == ["yes", "n"] and answer["n"] <= 9
    assert json.loads(str(result.answer))["yes"] in (True, False)


def test_what_a_server_cannot_be_asked_is_refused(remote: RemoteBackend) -> None:
    steps = BeamSearch(beam_size=2, beam_width=2, step_tokens=4)
    for one in (steps, ComputeOptimal(strategies=(steps,))):
        message = f"{type(one).__name__} writes answers step by step, and a server"
        with pytest.raises(InvalidInput, match=message):
            solve(one, problem="?", engine=remote, verifier=Costly(0), schema=SCHEMA)
    search = SelfConsistency(n=2, max_tokens=9)
    with pytest.raises(Unsupported, match="RemoteBackend keeps to no grammar"):
        solve(search, problem="?", engine=remote, grammar="start: /a/")


class ForksHalfWay(Search):
    """It does not say that it goes in steps."""

    needs_verifier = False

    def run(self, root: Branch, case: Case) -> SearchSteps:
        (begun,) = yield from expand([root], 1, Step(1), GREEDY)
        return (yield from expand([begun], 2, case.answer(99), GREEDY))


def test_an_answer_that_is_begun_is_never_begun_again(remote: RemoteBackend) -> None:
    (result,) = solve(ForksHalfWay(), problem=["?"], engine=remote, schema=SCHEMA)
    assert "a server begins a schema anew with each request, and this" in str(result.error)
    assert all(branch.finish_reason is None for branch in result.branches)
    assert not remote.live


def test_a_server_that_keeps_to_no_schema_is_told() -> None:
    with connected(ServedModel()) as backend:
        search = SelfConsistency(n=2, max_tokens=40, temperature=1.5)
        with pytest.raises(RemoteError, match=r"was asked for JSON by a schema .* and answered"):
            solve(search, problem=["?"], engine=backend, schema=SCHEMA)


def test_the_request_names_the_schema() -> None:
    model = ServedModel()
    with connected(model) as backend, suppress(RemoteError):
        solve(SelfConsistency(n=1, max_tokens=2), problem="?", engine=backend, schema=SCHEMA)
    asked = model.requests[-1]["response_format"]
    named = {"name": "answer", "schema": SCHEMA, "strict": True}
    assert asked == {"type": "json_schema", "json_schema": named}


def test_an_open_thought_is_refused_and_a_limited_one_is_sent_without_the_schema() -> None:
    tokenizer = thinker(OPENING, special=("<think>", "</think>"))
    with serving(bytes_engine(tokenizer)) as client:
        backend = RemoteBackend(Endpoint(str(client.base_url).rstrip("/"), model="m"), tokenizer)
        search = SelfConsistency(n=1, max_tokens=90, thinking_tokens=6)
        (result,) = solve(search, problem=["?"], engine=backend, schema=SCHEMA)
        if backend.writes_ahead:
            assert "a thought is open there; give thinking_tokens=N" in str(result.error)
        else:
            assert list(json.loads(str(result.best and result.best.answer_text))) == ["yes", "n"]
        backend.close()
