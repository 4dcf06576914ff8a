"""Many clients of one server: nobody waits for all that another one asks. Time is counted in passes
of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from experiments.server.fair_driver import LEAST_ROWS, PASS_S, FairDriver, PassPace
from search import BestOfN, Greedy, Search, SelfConsistency, solve
from search.config import SearchConfig
from search.options import SolveOptions
from tests.helpers.own_server import make_engine
from ttc import Branch, Engine
from ttc.attention.plan import Plan
from ttc.passes.ratings import pass_by_pass
from ttc.protocols import Verifier
from ttc.results import Problem, Result
from ttc.task import Passes
from ttc.text.prompt import PromptTemplate
from ttc.text.thinking_marks import ThinkingMarks

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
        self.prompt_rows: list[int] = []
        """Rows of prompts since those that decode had a token, after each pass."""
        forward = self.engine.runner.forward

        def counting(tokens: Sequence[int], plan: Plan, *given: Any) -> Any:
            self.passes += 1
            of_prompts = len(tokens) > len(plan.runs)
            before = self.prompt_rows[-1] if self.prompt_rows else 0
            self.prompt_rows.append(before + len(tokens) if of_prompts else 0)
            return forward(tokens, plan, *given)

        self.engine.runner.forward = counting  # type: ignore[method-assign,assignment]

    def add(
        self, search: Search, question: str, client: object, verifier: Verifier | None = None
    ) -> int:
        options = SolveOptions(seed=1, template=RAW, verifier=verifier)
        config = SearchConfig.of(search, self.engine, options)
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


class Rereads:
    """Rates a branch by how likely it goes on with a letter after a long text, which takes many
    passes."""

    text = "again " * 50

    @pass_by_pass
    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Any
    ) -> Passes[list[list[float]]]:
        words, given = [[[ord("e")]]] * len(branches), [[ord(c) for c in self.text]] * len(branches)
        scores = yield from backend.score(branches, words, given=given).passes()
        return [[float(rows[0][0])] for rows in scores]

    def price(self, branches: Sequence[Branch], questions: Sequence[str], backend: Any) -> int:
        return len(branches) * (len(self.text) + 1)


class RereadsLess(Rereads):
    """The same with a text so short that its ratings are made together with others."""

    text = "again " * 10


class Waits:
    """Rates after it has been looked at so often. waited: how often it was. ended: whether its
    rating is over."""

    def __init__(self, looks: int):
        self.looks = looks
        self.waited = 0
        self.ended = False

    @pass_by_pass
    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Any
    ) -> Passes[list[list[float]]]:
        try:
            while self.waited < self.looks:
                self.waited += 1
                yield
            return [[0.5]] * len(branches)
        finally:
            self.ended = True


def text_of(search: Search, question: str, verifier: Verifier | None = None) -> str:
    result = solve(
        search, problem=question, engine=make_engine(), seed=1, template=RAW, verifier=verifier
    )
    assert result.best is not None
    return result.best.text


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_first_of_many_short_prompts_does_not_wait_for_the_last() -> None:
    """60 clients send prompts of 21 or 22 tokens at once, three of which fit a pass of 64 rows.
    Whoever has its prompt gets tokens while those of others are computed."""
    counted, search = Counted(rows=64), Greedy(max_tokens=4)
    questions = [f"{i:02} {chr(ord('a') + i % 26) * 18}" for i in range(60)]
    numbers = [counted.add(search, question, i) for i, question in enumerate(questions)]
    while numbers[0] not in counted.ended:
        counted.step()
    assert sum(1 for rows in counted.prompt_rows if rows) <= 6
    for number in numbers:
        counted.passes_until(number)
    assert max(counted.prompt_rows) <= 64
    texts = [counted.ended[number].best for number in numbers]
    assert [best and best.text for best in texts] == [text_of(search, q) for q in questions]
    assert counted.engine.kv_bytes() == 0


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


def test_a_long_rating_does_not_keep_others_waiting() -> None:
    """A rating of three branches takes 57 passes. Others get a token after each, and a short
    request is answered in the middle of it."""
    counted, search, one = Counted(), BestOfN(n=3, max_tokens=4), Greedy(max_tokens=1)
    rated = counted.add(search, "rate me", "large", Rereads())
    while not counted.driver.works or not counted.driver.works[0].tokens > 900:
        counted.step()
    writing = counted.add(Greedy(max_tokens=10), "hi", "small")
    assert counted.passes_until(writing) <= 2 * 10 + 4
    assert rated not in counted.ended
    short = counted.add(one, "hi there", "other")
    assert counted.passes_until(short) <= 6
    assert rated not in counted.ended and counted.most_at_once == 1
    counted.passes_until(rated)
    best = counted.ended[rated].best
    assert best is not None and best.text == text_of(search, "rate me", Rereads())
    assert counted.engine.kv_bytes() == 0


def test_the_first_of_many_short_ratings_does_not_wait_for_the_last() -> None:
    """Six searches begin with two passes and are to be rated by one verifier after four tokens, in
    3 passes each. Every other pass is for the first of them."""
    counted, search, verifier = Counted(rows=64), BestOfN(n=3, max_tokens=4), RereadsLess()
    numbers = [counted.add(search, f"rate {i}", i, verifier) for i in range(6)]
    assert counted.passes_until(numbers[0]) <= 2 + 4 + 2 * 3
    for number in numbers[1:]:
        counted.passes_until(number)
    texts = [counted.ended[number].best for number in numbers]
    assert [best and best.text for best in texts] == [
        text_of(search, f"rate {i}", verifier) for i in range(6)
    ]


def test_programs_that_run_keep_nobody_waiting() -> None:
    """A rating that waits for something else, as for a program, takes turns as passes do."""
    counted, rated = Counted(), list[int]()
    verifiers = [Waits(300), Waits(3), Waits(3)]
    for i, verifier in enumerate(verifiers):
        rated.append(counted.add(BestOfN(n=2, max_tokens=2 + i), f"rate {i}", i, verifier))
    for number in rated[1:]:
        while number not in counted.ended:
            counted.step()
            assert verifiers[0].waited < 60
    writing = counted.add(Greedy(max_tokens=10), "hi", "small")
    assert counted.passes_until(writing) <= 12 and rated[0] not in counted.ended
    counted.driver.cancel(rated[0])
    assert verifiers[0].ended and counted.engine.kv_bytes() == 0


def test_many_wide_requests_on_connections_of_their_own_leave_rows_for_a_small_one() -> None:
    """20 clients have 45 branches each for 40 rows, in parts of 22 and 23. Spare rows are for few
    branches, so that one part decodes at a time, and the small client gets some at once."""
    counted, many = Counted(max_rows=40), SelfConsistency(n=45, max_tokens=20)
    few = SelfConsistency(n=3, max_tokens=4)
    for i in range(20):
        counted.add(many, f"many {i}", i)
    for _ in range(50):
        counted.step()
        assert len(counted.driver.admission.batch) <= 40
    small = counted.add(few, "few", "small")
    assert counted.passes_until(small) <= 12
    counted.driver.close()


def test_a_search_wider_than_all_rows_keeps_nobody_waiting() -> None:
    """One expansion has 60 branches for 8 rows. The other client gets its rows at once, and the
    wide search's answer is the one that it has alone."""
    wide, few = SelfConsistency(n=60, max_tokens=12), SelfConsistency(n=3, max_tokens=4)
    counted = Counted(max_rows=8)
    large = counted.add(wide, "many", "large")
    for _ in range(9):
        counted.step()
        assert len(counted.driver.admission.batch) <= 8
    small = counted.add(few, "few", "small")
    assert counted.passes_until(small) <= 12 and large not in counted.ended
    counted.passes_until(large)
    best = counted.ended[large].best
    assert best is not None and best.text == text_of(wide, "many")
    assert counted.engine.kv_bytes() == 0


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
    pace = PassPace(engine)
    for _ in range(10):
        pace.note(PASS_S / 10)
    assert engine.runtime.prefill_tokens == most
    pace.note(2 * PASS_S)
    assert engine.runtime.prefill_tokens == most // 2
    for _ in range(10):
        pace.note(10 * PASS_S)
    assert engine.runtime.prefill_tokens == LEAST_ROWS


@pytest.mark.parametrize("others", [0, 1])
def test_a_thought_is_closed_in_several_passes_while_no_one_decodes(others: int) -> None:
    closing = ">" + "so " * 20
    search = Greedy(max_tokens=8, thinking_tokens=3)
    counted = Counted()
    options = SolveOptions(
        seed=1, template=RAW, thinking_marks=ThinkingMarks("<", ">", closing=closing)
    )
    config = SearchConfig.of(search, counted.engine, options)
    thinks = counted.driver.add_from(Problem("go<"), config, "me", 3)
    for number in range(others):
        counted.add(Greedy(max_tokens=1), LONG[number], "another")
    counted.passes_until(thinks)
    alone = solve(search, problem="go<", engine=make_engine(), **vars(options))
    (branch,) = counted.ended[thinks].branches
    assert closing in branch.text and branch.text == alone.branches[0].text
