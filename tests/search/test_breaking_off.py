"""Time limits and cancelling between two passes of the model: what ends, what it leaves, whom it
does not touch."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from search import (
    ABMCTS,
    MCTS,
    BeamSearch,
    BestFirst,
    BestOfN,
    BudgetForcing,
    CertaintyProbe,
    Greedy,
    Search,
    SelfConsistency,
    SelfRefine,
    TreeOfThoughts,
    solve,
)
from search.budget import Spending
from tests.helpers.backends import FakeBackend
from tests.helpers.drivers import add, driver_of, run
from tests.helpers.engines import at_pass, make_engine
from tests.helpers.ownership import assert_nothing_left
from tests.helpers.scripted import Scores
from tests.helpers.searches import all_searches, seen
from tests.helpers.tiers import some_quick
from ttc import Branch
from ttc.results import Result
from ttc.text.prompt import PromptTemplate

PLAIN = PromptTemplate("{question}", raw=True)


def length(branch: Branch) -> float:
    return float(sum(branch.generated) % 97)


class Reads(Scores):
    """Runs the model for each branch, a pass of four tokens each time, and goes on for long."""

    def rate(self, branches: Any, questions: Any, backend: Any) -> list[list[float]]:
        for _ in range(4):
            backend.score(branches, [[[1, 2, 3, 4, 5, 6, 7, 8, 9]] for _ in branches]).result()
        return super().rate(branches, questions, backend)


def test_a_search_that_has_ended_is_not_cancelled_any_more() -> None:
    cancel = threading.Event()
    driver = driver_of(make_engine())
    add(driver, Greedy(max_tokens=4), "12", template=PLAIN, cancel=cancel)
    while not any(active.done for active in driver.active.values()):
        assert not run(driver, 1)
    cancel.set()
    (result,) = run(driver, 1).values()
    assert result.stopped is None and len(result.best.tokens) > 4


SEARCHES: list[Search] = [
    SelfConsistency(n=3, max_tokens=12),
    BeamSearch(beam_size=2, beam_width=2, step_tokens=4, max_steps=4),
    BestFirst(beam_size=2, beam_width=2, step_tokens=4, max_steps=4),
]


@pytest.mark.slow
@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: type(search).__name__)
def test_a_cancelled_problem_makes_no_pass_more_and_says_so(search: Search) -> None:
    options: dict[str, Any] = {"template": PLAIN} | (
        {"verifier": Reads(length)} if search.needs_verifier else {}
    )
    engine = make_engine(context=160, prefill_tokens=8)
    with at_pass(engine) as passes:
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
    search, asked = SelfConsistency(n=2, max_tokens=50), {"problem": "1", "template": PLAIN}
    with at_pass(engine, 6, cancel.set):
        result = solve(search, engine=engine, cancel=cancel, **asked)
    whole: Any = solve(search, engine=engine, **asked)
    assert result.stopped == "cancelled"
    entire = {branch.path: branch.generated for branch in whole.branches}
    for cut in result.branches:
        assert 0 < len(cut.generated) < len(entire[cut.path])
        assert cut.generated == entire[cut.path][: len(cut.generated)]
        assert cut.step_reasons == ["interrupted"]
    for node in result.tree[1:]:
        assert node.text and node.status == "kept" and node.tokens == len(node.token_ids)


EVERY = all_searches()


@pytest.mark.parametrize(
    "search",
    some_quick(EVERY, [s for s in EVERY if isinstance(s, BudgetForcing | MCTS | TreeOfThoughts)]),
    ids=lambda search: type(search).__name__,
)
def test_the_first_words_of_a_search_are_its_answer_where_it_has_no_more(search: Search) -> None:
    engine, cancel = make_engine(context=160), threading.Event()
    verifier = {"verifier": Scores(length)} if search.needs_verifier else {}
    with at_pass(engine, 2, cancel.set):
        result = solve(
            search, problem="1", engine=engine, cancel=cancel, template=PLAIN, **verifier
        )
    assert result.stopped == "cancelled" and result.error is None
    assert result.branches and all(len(branch.generated) <= 2 for branch in result.branches)


@pytest.mark.parametrize(
    ("search", "answers"),
    [
        (SelfRefine(max_tokens=2, feedback_tokens=9), 1),
        (CertaintyProbe(every=2, max_tokens=8), 1),
        (ABMCTS(max_tokens=4), 2),
    ],
    ids=lambda search: type(search).__name__,
)
def test_what_a_search_writes_beside_its_answers_is_none(search: Search, answers: int) -> None:
    """Cancelled while it writes a critique, a probe, an answer that was not rated."""
    engine, cancel = make_engine(context=500), threading.Event()
    verifier = {"verifier": Scores(lambda branch: 0.5)} if search.needs_verifier else {}
    with at_pass(engine, 10, cancel.set):
        result = solve(
            search, problem="1", engine=engine, cancel=cancel, template=PLAIN, **verifier
        )
    assert [branch.path for branch in result.branches] == [(n,) for n in range(answers)]


def test_time_that_is_up_ends_a_search_in_the_middle_of_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine(context=160)
    with at_pass(engine) as passes:  # each pass takes a second
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
    with at_pass(engine) as passes:
        monkeypatch.setattr(Spending, "wall_s", property(lambda _: float(len(passes))))
        result = solve(
            Greedy(max_tokens=50), problem="1" * 80, engine=engine, max_wall_s=5, template=PLAIN
        )
    assert passes == [4] * 5 and result.stopped == "max_wall_s" and result.usage.prompt_tokens == 20
    assert result.best is None and result.error is None
    assert [node.status for node in result.tree] == ["root"]
    assert_nothing_left(engine, [])


def test_problems_that_have_not_begun_are_cancelled_too() -> None:
    cancel, ended, questions = threading.Event(), list[Result](), ["1", "2", "3", "4"]
    options: dict[str, Any] = {"engine": make_engine(context=160), "concurrency": 1}

    def first(result: Result) -> None:
        ended.append(result)
        cancel.set()

    search = Greedy(max_tokens=5)
    results = solve(search, problem=questions, cancel=cancel, on_result=first, **options)
    assert [result.stopped for result in results] == [None, "cancelled", "cancelled", "cancelled"]
    assert [result.problem.question for result in results] == questions and len(ended) == 4
    assert all(result.best is None and result.tree == [] for result in results[1:])


def test_a_search_returns_what_it_has_when_it_is_told() -> None:
    """Of a search that keeps finished branches aside these are what is left."""
    backend, cancel = FakeBackend(), threading.Event()
    calls: list[int] = []

    class Tells(Scores):
        def rate(self, *args: Any) -> list[list[float]]:
            calls.append(1)
            if len(calls) == 3:
                cancel.set()
            return super().rate(*args)

    search = BestFirst(beam_size=2, beam_width=3, step_tokens=6, max_steps=30, finish=20)
    result = solve(search, problem="q", engine=backend, verifier=Tells(length), cancel=cancel)
    assert result.stopped == "cancelled" and result.branches and not backend.live
    assert len(calls) == 3


def test_no_last_words_are_written_once_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = FakeBackend(letters="123")
    monkeypatch.setattr(Spending, "wall_s", property(lambda _: float(len(backend.calls))))
    search = BeamSearch(beam_size=1, beam_width=2, step_tokens=4, max_steps=50)
    options: dict[str, Any] = {"max_tokens": 400, "reserve": 20, "final_text": "="}
    result = solve(
        search, problem="q", engine=backend, verifier=Scores(length), max_wall_s=3, **options
    )
    assert (result.stopped, len(backend.calls)) == ("max_wall_s", 3) and not backend.live
    assert "=" not in result.branches[0].text


def test_a_rating_that_is_broken_off_is_made_again_for_the_others() -> None:
    search, rates = BestOfN(n=2, max_tokens=6), {"verifier": Reads(length), "template": PLAIN}
    engine, cancel = make_engine(context=160), threading.Event()
    alone: Any = [solve(search, problem=q, engine=make_engine(context=160), **rates) for q in "12"]
    driver = driver_of(engine)
    for question in "123":
        add(driver, search, question, cancel=cancel if question == "3" else None, **rates)
    with at_pass(engine, 10, cancel.set):  # while branches are rated
        first, second, left = (result for _, result in sorted(run(driver).items()))
    assert left.stopped == "cancelled" and left.branches and left.usage.verifier_tokens > 0
    assert [seen(first), seen(second)] == list(map(seen, alone))
    assert first.usage.verifier_tokens == alone[0].usage.verifier_tokens
    assert_nothing_left(engine, [])


def test_each_step_of_a_driver_makes_one_pass_at_most() -> None:
    engine = make_engine(context=160, prefill_tokens=8)
    driver, search = driver_of(engine), SEARCHES[1]
    for question in ("1" * 50, "2" * 30):
        add(driver, search, question, verifier=Scores(length), template=PLAIN)
    with at_pass(engine) as passes:
        while driver.busy:
            before = len(passes)
            run(driver, 1)
            assert len(passes) <= before + 1
    assert len(passes) > 20
