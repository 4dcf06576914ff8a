"""Searches in asyncio: their results, their steps and tokens as they come, and the end of a
task."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import pytest

from search import BudgetForcing, Greedy, Search, SelfConsistency, asolve, astream, solve, stream
from tests.helpers.backends import FakeBackend
from tests.helpers.engines import at_pass, make_engine
from tests.helpers.ownership import assert_nothing_left
from ttc.results import Progress
from ttc.text.prompt import PromptTemplate

PLAIN = PromptTemplate("{question}", raw=True)
LONG = SelfConsistency(n=2, max_tokens=4000)


def test_asolve_gives_what_solve_gives() -> None:
    search = SelfConsistency(n=3, max_tokens=6)
    expected = solve(search, problem=["1", "2"], engine=make_engine(context=160))
    given = asyncio.run(asolve(search, problem=["1", "2"], engine=make_engine(context=160)))
    for one, other in zip(given, expected, strict=True):
        assert [b.tokens for b in one.branches] == [b.tokens for b in other.branches]
        assert one.answer == other.answer and one.stopped is None


def test_a_timeout_is_a_cancelled_task() -> None:
    engine = make_engine(context=8192)

    async def late() -> None:
        async with asyncio.timeout(0.2):
            await asolve(LONG, problem="1", engine=engine, template=PLAIN)

    with pytest.raises(TimeoutError):
        asyncio.run(late())
    assert_nothing_left(engine, [])


def test_the_callers_own_token_cancels_too() -> None:
    cancel = threading.Event()
    cancel.set()
    result = asyncio.run(asolve(Greedy(), problem="1", engine=make_engine(), cancel=cancel))
    assert result.stopped == "cancelled" and result.best is None


def seen(events: list[Progress]) -> Any:
    return [(e.did, [(n.id, n.text, n.tokens, n.score) for n in e.nodes]) for e in events]


@pytest.mark.parametrize("tokens", [False, True])
def test_astream_gives_what_stream_gives(tokens: bool) -> None:
    search = SelfConsistency(n=2, max_tokens=5)
    options: dict[str, Any] = {"problem": "1", "tokens": tokens, "template": PLAIN}

    async def read() -> list[Progress]:
        return [
            event async for event in astream(search, engine=make_engine(context=160), **options)
        ]

    expected = list(stream(search, engine=make_engine(context=160), **options))
    given = asyncio.run(read())
    assert seen(given) == seen(expected)
    assert given[-1].result is not None and given[-1].result.answer == expected[-1].result.answer


def test_leaving_an_astream_ends_the_search() -> None:
    engine = make_engine(context=8192)

    async def some() -> int:
        count = 0
        async with aclosing(
            astream(LONG, problem="1", engine=engine, tokens=True, template=PLAIN)
        ) as events:
            async for _ in events:
                count += 1
                if count == 3:
                    break
        return count

    assert asyncio.run(some()) == 3
    assert_nothing_left(engine, [])


def test_an_astream_raises_what_its_search_raises() -> None:
    backend = FakeBackend()
    backend.fail_at = 1

    async def read() -> list[Progress]:
        return [event async for event in astream(Greedy(), problem="1", engine=backend)]

    with pytest.raises(RuntimeError, match="device lost"):
        asyncio.run(read())


# ---------------------------------------------------------------- tokens as they come


IN_PARTS = BudgetForcing(waits=2, thinking_tokens=4, answer_tokens=5, wait="ab", final="c")


@pytest.mark.parametrize(
    ("search", "budget"),
    [
        (IN_PARTS, {}),
        (Greedy(max_tokens=9), {"max_tokens": 9, "reserve": 4, "final_text": "ab"}),
    ],
)
def test_what_is_told_begins_what_a_step_comes_to_after_words_of_a_search(
    search: Search, budget: dict[str, Any]
) -> None:
    engine = make_engine(context=160)
    *events, end = stream(search, problem="1", engine=engine, tokens=True, template=PLAIN, **budget)
    assert end.result is not None
    last = {node.id: node for node in end.result.tree}
    told = [node for event in events if event.did == "wrote" for node in event.nodes]
    assert len({node.id for node in told}) > 1
    for node in told:
        assert node.text and last[node.id].text.startswith(node.text)


class Ending(PromptTemplate):
    """Answers end before these characters of the model's own text."""

    place = 0

    def ends(self, tokenizer: Any) -> tuple[str, ...]:
        text = solve(LONGER, problem="1", engine=make_engine(context=160), template=PLAIN)
        return (text.branches[0].text[self.place : self.place + 4],)


LONGER = SelfConsistency(n=2, max_tokens=30)


@pytest.mark.parametrize("place", [3, 8, 14])
def test_no_part_of_a_templates_end_is_told(place: int) -> None:
    """It may come in several tokens, and one branch may have ended while others go on."""
    template, engine = Ending("{question}", raw=True), make_engine(context=160)
    object.__setattr__(template, "place", place)
    (end,) = template.ends(engine.tokenizer)
    *events, last = stream(LONGER, problem="1", engine=engine, tokens=True, template=template)
    assert last.result is not None
    ended = [branch for branch in last.result.branches if branch.finish_reason == "end"]
    assert ended and all(end not in branch.text for branch in ended)
    came_to = {node.id: node.text for node in last.result.tree}
    told = [node for event in events if event.did == "wrote" for node in event.nodes]
    assert told and all(came_to[node.id].startswith(node.text) for node in told)


def test_each_token_is_told_as_it_comes() -> None:
    engine, search = make_engine(context=160), SelfConsistency(n=2, max_tokens=6)
    events = list(stream(search, problem="1", engine=engine, tokens=True, template=PLAIN))
    result = events[-1].result
    assert result is not None
    lengths = [len(branch.generated) for branch in result.branches]
    wrote = [event for event in events if event.did == "wrote"]
    assert len(wrote) == max(lengths) - 1  # the last token of a step is told with the step
    for before, after in pairwise(wrote):
        assert after.usage.generated_tokens > before.usage.generated_tokens
    last = {node.id: node for node in result.tree}
    for event in wrote:
        for node in event.nodes:
            assert last[node.id].text.startswith(node.text)
            assert last[node.id].token_ids[: node.tokens] == node.token_ids


@pytest.mark.parametrize("times", [1, 3])
def test_a_task_that_is_cancelled_waits_for_its_search_which_ends_within_a_pass(times: int) -> None:
    engine, begun, cancelled = make_engine(context=8192), threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert cancelled.wait(100)

    async def left() -> None:
        task = asyncio.create_task(asolve(LONG, problem="1", engine=engine, template=PLAIN))
        assert await asyncio.to_thread(begun.wait, 100)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)  # the task hears of it
        assert not task.done()
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 100)
        assert engine.kv_bytes() == 0

    with at_pass(engine, 5, hold) as passes:
        asyncio.run(left())
        assert len(passes) == 5
    assert_nothing_left(engine, [])
