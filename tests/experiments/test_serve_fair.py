"""Many clients of one server: nobody waits for all that another one asks. Time is counted in passes
of the model."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("openai")

from experiments.serve.fair_driver import LEAST_ROWS, PASS_S, FairDriver, Pace
from search import Greedy, Search, SelfConsistency, solve
from search.config import SearchConfig
from search.options import SolveOptions
from tests.helpers.own_server import make_engine
from ttc import Engine
from ttc.protocols import Problem
from ttc.results import Result
from ttc.text.prompt import PromptTemplate

RAW = PromptTemplate("{question}", raw=True)
LONG = [chr(ord("a") + i) * 600 for i in range(8)]


class Counted:
    """A driver over a tiny model, whose passes are counted."""

    def __init__(self, rows: int = 16, max_rows: int | None = None):
        self.engine: Engine = make_engine()
        self.engine.runtime.prefill_tokens = rows
        self.driver = FairDriver.of(self.engine, None)
        if max_rows is not None:
            self.driver.max_rows = max_rows
            self.driver.admission.max_rows = max_rows
        self.passes = 0
        self.most_at_once = 0
        self.ended: dict[int, Result] = {}
        forward = self.engine.runner.forward

        def counting(*given: Any) -> Any:
            self.passes += 1
            return forward(*given)

        self.engine.runner.forward = counting  # type: ignore[method-assign,assignment]

    def add(self, search: Search, question: str, client: object) -> int:
        config = SearchConfig.of(search, self.engine, SolveOptions(seed=1, template=RAW))
        return self.driver.add_from(Problem(question), config, client, len(question))

    def step(self) -> None:
        before = self.passes
        for number, progress in self.driver.step():
            if progress.result is not None:
                self.ended[number] = progress.result
        self.most_at_once = max(self.most_at_once, self.passes - before)

    def passes_until(self, number: int) -> int:
        before = self.passes
        while number not in self.ended:
            self.step()
        return self.passes - before


def text_of(search: Search, question: str) -> str:
    result = solve(search, problem=question, engine=make_engine(), seed=1, template=RAW)
    assert result.best is not None
    return result.best.text


def test_a_short_request_does_not_wait_for_long_prompts() -> None:
    """Eight prompts take 38 passes each. A token more comes after one of them, its own prompt and a
    token of others."""
    counted, one = Counted(), Greedy(max_tokens=1)
    numbers = [counted.add(one, question, client) for client, question in enumerate(LONG)]
    for _ in range(20):
        counted.step()
    assert not counted.ended
    short = counted.add(one, "hi there", "small")
    assert counted.passes_until(short) <= 6
    assert counted.most_at_once == 1  # so that whoever drives may act between any two
    for number in numbers:
        counted.passes_until(number)
    texts = [counted.ended[number].best for number in (*numbers, short)]
    assert [best and best.text for best in texts] == [
        text_of(one, question) for question in (*LONG, "hi there")
    ]
    assert counted.engine.kv_bytes() == 0


def test_those_that_decode_get_a_token_between_two_passes_of_a_prompt() -> None:
    counted = Counted()
    writing = counted.add(Greedy(max_tokens=10), "hi", "small")
    while not counted.driver.decoding:
        counted.step()
    counted.add(Greedy(max_tokens=1), LONG[0], "large")
    assert counted.passes_until(writing) <= 2 * 10 + 1
    counted.driver.close()


def test_a_client_that_leaves_in_the_middle_of_its_prompt_leaves_nothing() -> None:
    counted = Counted()
    numbers = [
        counted.add(Greedy(max_tokens=1), question, client) for client, question in enumerate(LONG)
    ]
    for _ in range(12):
        counted.step()
    assert counted.engine.kv_bytes() > 0
    stays = numbers.pop()
    for number in numbers:
        counted.driver.cancel(number)
    assert counted.passes_until(stays) <= 39
    assert counted.engine.kv_bytes() == 0 and not counted.driver.busy and not counted.driver.origins


def test_many_branches_of_one_client_do_not_keep_another_one_waiting() -> None:
    """800 branches of 20 tokens share 8 rows, which takes 2,000 tokens. The other one gets its rows
    at once."""
    counted, many, few = (
        Counted(max_rows=8),
        SelfConsistency(n=8, max_tokens=20),
        SelfConsistency(n=3, max_tokens=4),
    )
    large = [counted.add(many, f"many {i}", "large") for i in range(100)]
    for _ in range(60):
        counted.step()
    small = counted.add(few, "few", "small")
    assert counted.passes_until(small) <= 12
    assert len(counted.ended) < 20
    assert counted.ended[small].best is not None and counted.ended[small].best.text == text_of(
        few, "few"
    )
    for number in large:
        counted.driver.cancel(number)
    assert counted.engine.kv_bytes() == 0


def test_a_pass_over_a_prompt_has_as_many_rows_as_take_a_moment() -> None:
    engine = make_engine()
    most = engine.runtime.prefill_tokens
    pace = Pace(engine)
    for _ in range(10):
        pace.note(PASS_S / 10)
    assert engine.runtime.prefill_tokens == most
    pace.note(2 * PASS_S)
    assert engine.runtime.prefill_tokens == most // 2
    for _ in range(10):
        pace.note(10 * PASS_S)
    assert engine.runtime.prefill_tokens == LEAST_ROWS
