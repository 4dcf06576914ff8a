"""The batch of branches that a server continues, over answers that come when a test lets them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.admission import ProblemAdmission
from tests.helpers.servers import ServedModel, serving
from tests.helpers.tiers import examples
from tests.helpers.tokenizers import Ascii
from ttc import Endpoint, InvalidInput, RemoteBackend, RemoteError, Step
from ttc.branch import Branch
from ttc.errors import ContentRefused
from ttc.model.generation_settings import GenerationSettings
from ttc.model.limits import ModelLimits
from ttc.remote.batch import RemoteBatch
from ttc.remote.capabilities import Capabilities
from ttc.remote.replies import Reply
from ttc.remote.server import Server
from ttc.sampling import random_key
from ttc.tree.branch import MOST_ROWS
from ttc.tree.segment import Segment
from ttc.usage import Usage


@pytest.fixture(autouse=True, scope="module")
def without_waiting() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ttc.remote.batch.LOOK_S", 0.001)
        yield


TOKENIZER = Ascii()


class Letting:
    """A server that answers when it is told to. sent: the requests, by the first token."""

    def __init__(self) -> None:
        can = Capabilities("m", None, True, True, True, seeds=True, varied=True, stops=True)
        limits = ModelLimits(len(TOKENIZER), None, frozenset())
        inner = Server(None, can, TOKENIZER, limits, GenerationSettings())  # type: ignore[arg-type]
        self.sent: dict[int, Future[Reply]] = {}
        self.can, self.limits, self.tokenizer = inner.can, inner.limits, inner.tokenizer
        self.settings, self.decode, self.is_end = inner.settings, inner.decode, inner.is_end
        self.count_prompt, self.penalty = inner.count_prompt, inner.penalty

    def complete(self, tokens: Sequence[int], *_: Any, **__: Any) -> Future[Reply]:
        future: Future[Reply] = Future()
        self.sent[tokens[0]] = future
        return future

    def answer(self, first: int, *written: int) -> None:
        """Let the request of the branch that begins with this token have its answer."""
        future = self.sent[first]
        if future.set_running_or_notify_cancel():
            future.set_result(Reply("", list(written), "length", None, [], 1, 0, len(written)))

    def batch(self, max_rows: int | None = None) -> RemoteBatch:
        return RemoteBatch(self, max_rows)  # type: ignore[arg-type]

    def branches(self, count: int) -> list[Branch]:
        trunk = Segment([], None, None)
        return [
            Branch([i + 1, 99], trunk, random_key(0), Usage(), self.decode) for i in range(count)
        ]


def test_an_answer_that_is_too_short_is_asked_for_again_before_others() -> None:
    server = Letting()
    batch, branches = server.batch(max_rows=1), server.branches(2)
    batch.add(branches, Step(3))
    server.answer(1, 7)
    assert batch.step() == [] or list(server.sent) == [1]
    assert not server.sent[1].done() and len(batch) == 2  # the rest of its step
    server.answer(1, 8, 9)
    assert batch.step() == [branches[0]] and branches[0].tokens == [1, 99, 7, 8, 9]


def test_a_branch_that_has_left_is_neither_waited_for_nor_asked_for() -> None:
    server = Letting()
    batch, branches = server.batch(max_rows=1), server.branches(3)
    batch.add(branches, Step(1))
    batch.forget([branches[0], branches[1]])
    assert server.sent[1].cancelled() and list(server.sent) == [1, 3] and len(batch) == 1
    server.answer(3, 7)
    assert batch.step() == [branches[2]] and len(batch) == 0
    batch.add(branches[:1], Step(1))  # it may come back
    server.answer(1, 5)
    assert batch.step() == [branches[0]] and branches[0].tokens == [1, 99, 5]


def test_a_branch_is_in_the_batch_once() -> None:
    server = Letting()
    batch, branches = server.batch(max_rows=1), server.branches(2)
    batch.add(branches, Step(1))
    for branch in branches:
        with pytest.raises(InvalidInput, match="decoding already"):
            batch.add([branch], Step(1))


def test_a_refused_branch_is_said_once_and_an_error_breaks_off_all() -> None:
    server = Letting()
    batch, branches = server.batch(), server.branches(3)
    batch.add(branches, Step(2))
    server.sent[2].set_exception(ContentRefused("not this"))
    with pytest.raises(RemoteError, match="not this"):
        batch.step()
    assert len(batch) == 2
    server.answer(1, 5)
    batch.step()
    server.sent[3].set_exception(RemoteError("gone"))
    with pytest.raises(RemoteError, match="gone"):
        batch.step()
    assert len(batch) == 0 and branches[0].step_reasons == ["interrupted"]


@settings(max_examples=examples(40))
@given(st.data())
def test_whatever_comes_in_whatever_order_every_branch_ends_or_leaves(data: st.DataObject) -> None:
    server = Letting()
    rows = data.draw(st.integers(1, 4))
    batch, branches = server.batch(rows), server.branches(6)
    batch.add(branches, Step(2))
    left, ended = set(branches), list[Branch]()
    while left:
        open_requests = [first for first, future in server.sent.items() if not future.done()]
        assert len(open_requests) <= rows and len(batch) == len(left)
        first = data.draw(st.sampled_from(open_requests))
        if data.draw(st.booleans()):
            server.answer(first, *data.draw(st.sampled_from([(5,), (5, 6)])))
            done = batch.step() if server.sent[first].done() else []
            ended += done
            left -= set(done)
        else:
            gone = data.draw(st.sampled_from(sorted(left, key=lambda b: b.tokens[0])))
            batch.forget([gone])
            left.discard(gone)
    assert len(batch) == 0 and all(b.tokens[2:] in ([5, 6], [5, 5], [5, 5, 6]) for b in ended)


def test_the_rows_of_a_server_are_its_concurrency() -> None:
    with serving(ServedModel()) as url:
        for concurrency, rows in ((300, 300), (4, MOST_ROWS)):
            backend = RemoteBackend(Endpoint(url, retries=0, concurrency=concurrency), Ascii())
            assert ProblemAdmission.of(backend).max_rows == rows
            backend.close()
