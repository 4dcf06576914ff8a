"""Time limits and cancelling between two passes of the model: what ends, what it leaves, whom it
does not touch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest

from search import (
    BeamSearch,
    BestFirst,
    BestOfN,
    Greedy,
    Search,
    SelfConsistency,
    solve,
    solve_each,
)
from search.admission import ProblemAdmission
from search.budget import Spending
from search.config import SearchConfig
from search.driver import Driver
from search.options import SolveOptions
from tests.helpers.backends import FakeBackend
from tests.helpers.engines import make_engine
from tests.helpers.ownership import assert_nothing_left
from tests.helpers.searches import seen
from tests.helpers.tiers import some_quick
from ttc import Branch, Engine, InvalidInput, Problem
from ttc.results import Result
from ttc.text.prompt import PromptTemplate

PLAIN = PromptTemplate("{question}", raw=True)


class Length:
    """Rates a branch by its tokens, and knows which branches it was told of that are gone."""

    def __init__(self) -> None:
        self.gone: list[Branch] = []

    def rate(self, branches: Any, questions: Any, backend: Any) -> list[list[float]]:
        return [[float(sum(branch.generated) % 97)] for branch in branches]

    def released(self, branches: Sequence[Branch]) -> None:
        self.gone += branches


class Reads(Length):
    """Runs the model for each branch, a pass of four tokens each time, and goes on for long."""

    def rate(self, branches: Any, questions: Any, backend: Any) -> list[list[float]]:
        for _ in range(4):
            backend.score(branches, [[[1, 2, 3, 4, 5, 6, 7, 8, 9]] for _ in branches]).result()
        return super().rate(branches, questions, backend)


def test_a_search_that_has_ended_is_not_cancelled_any_more() -> None:
    engine, cancel = make_engine(), threading.Event()
    config = SearchConfig.of(
        Greedy(max_tokens=4), engine, SolveOptions.of(template=PLAIN, cancel=cancel)
    )
    driver = Driver(engine, ProblemAdmission.of(engine))
    driver.add(Problem("12"), config)
    while not any(active.done for active in driver.active.values()):
        assert not any(said.result for _, said in driver.step())
    cancel.set()
    (result,) = (said.result for _, said in driver.step() if said.result)
    assert result.stopped is None and len(result.best.tokens) > 4


@contextmanager
def at_pass(engine: Engine, number: int, act: Callable[[], object]) -> Iterator[list[int]]:
    """Something happens while the model makes a pass. Gives the sizes of the passes."""
    forward, passes = engine.runner.forward, list[int]()

    def counted(tokens: Any, *rest: Any) -> Any:
        passes.append(len(tokens))
        if len(passes) == number:
            act()
        return forward(tokens, *rest)

    engine.runner.forward = counted  # type: ignore[method-assign]
    try:
        yield passes
    finally:
        engine.runner.forward = forward  # type: ignore[method-assign]


SEARCHES: list[Search] = [
    Greedy(max_tokens=20),
    SelfConsistency(n=3, max_tokens=12),
    BestOfN(n=3, max_tokens=12),
    BeamSearch(beam_size=2, beam_width=2, step_tokens=4, max_steps=4),
    BestFirst(beam_size=2, beam_width=2, step_tokens=4, max_steps=4),
]


@pytest.mark.slow
@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: type(search).__name__)
def test_a_cancelled_problem_makes_no_pass_more_and_says_so(search: Search) -> None:
    options: dict[str, Any] = {"template": PLAIN} | (
        {"verifier": Reads()} if search.needs_verifier else {}
    )
    engine = make_engine(context=160, prefill_tokens=8)
    with at_pass(engine, 0, lambda: None) as passes:
        whole = solve(search, problem="a" * 40, engine=engine, **options)
    assert whole.stopped is None
    for number in range(1, len(passes) + 1, max(1, len(passes) // 9)):
        engine, cancel = make_engine(context=160, prefill_tokens=8), threading.Event()
        with at_pass(engine, number, cancel.set) as made:
            result = solve(search, problem="a" * 40, engine=engine, cancel=cancel, **options)
        assert len(made) == number
        if number < len(passes) - 1:
            assert result.stopped == "cancelled"
        assert result.usage.generated_tokens <= whole.usage.generated_tokens
        for branch in result.branches:  # what it has is what it would have had
            assert branch.text and any(node.path == list(branch.path) for node in whole.tree)
        assert_nothing_left(engine, [])


def test_a_branch_that_was_being_written_keeps_what_it_has() -> None:
    engine, cancel = make_engine(context=160), threading.Event()
    with at_pass(engine, 6, cancel.set):
        result = solve(
            SelfConsistency(n=2, max_tokens=50),
            problem="1",
            engine=engine,
            cancel=cancel,
            template=PLAIN,
        )
    whole = solve(SelfConsistency(n=2, max_tokens=50), problem="1", engine=engine, template=PLAIN)
    assert result.stopped == "cancelled" and result.best is not None
    for cut, entire in zip(
        sorted(result.branches, key=lambda b: b.path),
        sorted(whole.branches, key=lambda b: b.path),
        strict=True,
    ):
        assert 0 < len(cut.generated) < len(entire.generated)
        assert cut.generated == entire.generated[: len(cut.generated)]
        assert cut.step_reasons == ["interrupted"]
    for node in result.tree[1:]:
        assert node.text and node.status == "kept" and node.tokens == len(node.token_ids)


def test_time_that_is_up_ends_a_search_in_the_middle_of_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine(context=160)
    with at_pass(engine, 0, lambda: None) as passes:  # each pass takes a second
        monkeypatch.setattr(Spending, "wall_s", property(lambda _: float(len(passes))))
        result = solve(
            Greedy(max_tokens=50), problem="1", engine=engine, max_wall_s=7, template=PLAIN
        )
    assert len(passes) == 7 and result.stopped == "max_wall_s"
    assert result.best is not None and len(result.best.generated) in (6, 7)
    assert result.best.step_reasons == ["interrupted"]
    assert_nothing_left(engine, [])


def test_time_counts_from_the_start_of_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(context=160, prefill_tokens=4)
    with at_pass(engine, 0, lambda: None) as passes:
        monkeypatch.setattr(Spending, "wall_s", property(lambda _: float(len(passes))))
        result = solve(
            Greedy(max_tokens=50), problem="1" * 80, engine=engine, max_wall_s=5, template=PLAIN
        )
    assert passes == [4] * 5 and result.stopped == "max_wall_s" and result.usage.prompt_tokens == 20
    assert (
        result.best is None
        and result.error is None
        and [node.status for node in result.tree] == ["root"]
    )
    assert_nothing_left(engine, [])


def test_problems_that_have_not_begun_are_cancelled_too() -> None:
    engine, cancel = make_engine(context=160), threading.Event()
    ended: list[Result] = []

    def first(result: Result) -> None:
        ended.append(result)
        cancel.set()

    questions = ["1", "2", "3", "4"]
    results = solve(
        Greedy(max_tokens=5),
        problem=questions,
        engine=engine,
        concurrency=1,
        cancel=cancel,
        on_result=first,
    )
    assert [result.stopped for result in results] == [None, "cancelled", "cancelled", "cancelled"]
    assert [result.problem.question for result in results] == questions and len(ended) == 4
    assert all(result.best is None and result.tree == [] for result in results[1:])


def test_a_search_returns_what_it_has_when_it_is_told() -> None:
    """Of a search that keeps finished branches aside these are what is left."""
    backend, cancel = FakeBackend(), threading.Event()
    calls: list[int] = []

    class Tells(Length):
        def rate(self, *args: Any) -> list[list[float]]:
            calls.append(1)
            if len(calls) == 3:
                cancel.set()
            return super().rate(*args)

    search = BestFirst(beam_size=2, beam_width=3, step_tokens=6, max_steps=30, finish=20)
    result = solve(search, problem="q", engine=backend, verifier=Tells(), cancel=cancel)
    assert result.stopped == "cancelled" and result.branches and not backend.live
    assert len(calls) == 3


def test_no_last_words_are_written_once_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = FakeBackend(letters="123")
    monkeypatch.setattr(Spending, "wall_s", property(lambda _: float(len(backend.calls))))
    search = BeamSearch(beam_size=1, beam_width=2, step_tokens=4, max_steps=50)
    options: dict[str, Any] = {"max_tokens": 400, "reserve": 20, "final_text": "="}
    result = solve(search, problem="q", engine=backend, verifier=Length(), max_wall_s=3, **options)
    assert (result.stopped, len(backend.calls)) == ("max_wall_s", 3) and not backend.live
    assert "=" not in result.branches[0].text


def test_last_words_that_are_cut_off_are_part_of_the_answer() -> None:
    engine, cancel = make_engine(context=160), threading.Event()
    options: dict[str, Any] = {
        "max_tokens": 30,
        "reserve": 22,
        "final_text": "=",
        "template": PLAIN,
    }
    search = BeamSearch(beam_size=1, beam_width=1, step_tokens=4, max_steps=50)
    with at_pass(engine, 0, lambda: None) as passes:
        whole = solve(search, problem="1", engine=engine, verifier=Length(), **options)
    assert whole.stopped == "max_tokens" and whole.best is not None
    engine = make_engine(context=160)
    with at_pass(engine, len(passes) - 4, cancel.set):
        result = solve(
            search, problem="1", engine=engine, verifier=Length(), cancel=cancel, **options
        )
    assert result.stopped == "cancelled" and result.best is not None
    assert whole.best.generated[: len(result.best.generated)] == result.best.generated
    assert 8 + len("=") < len(result.best.generated) < len(whole.best.generated)
    assert_nothing_left(engine, [])


def test_a_rating_that_is_broken_off_is_made_again_for_the_others() -> None:
    engine, verifier, cancel = make_engine(context=160), Reads(), threading.Event()
    search = BestOfN(n=2, max_tokens=6)
    alone = [
        seen(
            solve(
                search, problem=q, engine=make_engine(context=160), verifier=Reads(), template=PLAIN
            )
        )
        for q in "12"
    ]
    driver = Driver(engine, ProblemAdmission.of(engine))
    for i, question in enumerate("123"):
        options = SolveOptions(verifier=verifier, template=PLAIN, cancel=cancel if i == 2 else None)
        driver.add(Problem(question), SearchConfig.of(search, engine, options))
    spent = solve(
        search, problem="1", engine=make_engine(context=160), verifier=Reads(), template=PLAIN
    ).usage
    with at_pass(engine, 10, cancel.set):  # while branches are rated
        results = {index: progress.result for index, progress in driver.events() if progress.result}
    assert (
        results[2].stopped == "cancelled"
        and results[2].branches
        and results[2].usage.verifier_tokens > 0
    )
    assert [seen(results[0]), seen(results[1])] == alone
    assert results[0].usage.verifier_tokens == spent.verifier_tokens
    assert_nothing_left(engine, [])


def test_each_step_of_a_driver_makes_one_pass_at_most() -> None:
    engine = make_engine(context=160, prefill_tokens=8)
    driver = Driver(engine, ProblemAdmission.of(engine))
    search = BeamSearch(beam_size=2, beam_width=2, step_tokens=4, max_steps=4)
    for question in ("1" * 50, "2" * 30):
        driver.add(
            Problem(question),
            SearchConfig.of(search, engine, SolveOptions(verifier=Length(), template=PLAIN)),
        )
    with at_pass(engine, 0, lambda: None) as passes:
        while driver.busy:
            before = len(passes)
            list(driver.step())
            assert len(passes) <= before + 1
    assert len(passes) > 20


@pytest.mark.parametrize("token", [True, 3, "now"])
def test_what_cannot_be_asked_is_no_way_to_cancel(token: Any) -> None:
    with pytest.raises(InvalidInput, match="cancel="):
        next(iter(solve_each(Greedy(), problems=["q"], engine=FakeBackend(), cancel=token)))


def test_a_thread_that_cancels_frees_the_engine_for_the_next_call() -> None:
    engine, cancel, results = make_engine(context=4096), threading.Event(), list[Result]()
    search = SelfConsistency(n=4, max_tokens=4000)

    def work() -> None:
        results.append(
            solve(search, problem="1", engine=engine, cancel=cancel, template=PLAIN, end=["never"])
        )

    started = threading.Event()
    thread = threading.Thread(target=work)

    def pause() -> None:
        started.set()
        assert cancel.wait(100)

    with at_pass(engine, 5, pause) as passes:
        thread.start()
        assert started.wait(100)
        cancel.set()
        thread.join(100)
    assert not thread.is_alive() and results[0].stopped == "cancelled" and len(passes) == 5
    assert_nothing_left(engine, [])


BEAMS = BeamSearch(beam_size=2, beam_width=2, step_tokens=4, max_steps=4)


@cache
def alone(question: str) -> Any:
    engine = make_engine(context=160)
    return seen(solve(BEAMS, problem=question, engine=engine, verifier=Reads(), template=PLAIN))


@pytest.mark.slow
@pytest.mark.parametrize("number", some_quick([3, 9, 15, 30], [9]))
def test_other_problems_go_on_as_if_nothing_had_been(number: int) -> None:
    questions = ["1", "22" * 20, "333"]
    engine, verifier, cancel = (
        make_engine(context=160, prefill_tokens=8),
        Reads(),
        threading.Event(),
    )
    driver = Driver(engine, ProblemAdmission.of(engine))
    for i, question in enumerate(questions):
        options = SolveOptions(verifier=verifier, template=PLAIN, cancel=cancel if i == 1 else None)
        driver.add(Problem(question), SearchConfig.of(BEAMS, engine, options))
    with at_pass(engine, number, cancel.set):
        results = {index: progress.result for index, progress in driver.events() if progress.result}
    assert results[1].stopped == "cancelled"
    for place in (0, 2):
        assert seen(results[place]) == alone(questions[place])
    assert_nothing_left(engine, [])
