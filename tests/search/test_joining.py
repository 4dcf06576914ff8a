"""Problems that join a driver while others are under way, each with its own options, and problems
that are let go."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search import (
    BeamSearch,
    BestOfN,
    Case,
    Expand,
    Greedy,
    Search,
    SearchSteps,
    SelfConsistency,
    Step,
    solve,
)
from search.admission import WINDOW, ProblemAdmission
from search.driver import Driver
from tests.helpers import searches
from tests.helpers.backends import FakeBackend
from tests.helpers.drivers import add, driver_of, run
from tests.helpers.engines import make_engine
from tests.helpers.ownership import assert_nothing_left
from tests.helpers.scripted import Scores
from tests.helpers.tiers import examples
from ttc import Branch, Engine
from ttc.backend import GenerateBatch
from ttc.results import Result
from ttc.text.prompt import PromptTemplate


def length(branch: Branch) -> float:
    return float(sum(branch.generated))


PLAIN = PromptTemplate("{question}", raw=True)
KINDS: list[tuple[Search, dict[str, Any]]] = [
    (Greedy(max_tokens=9), {}),
    (SelfConsistency(n=3, max_tokens=6), {"seed": 1}),
    (BestOfN(n=2, max_tokens=8), {"verifier": Scores(length), "seed": 2, "template": PLAIN}),
    (
        BeamSearch(beam_size=2, beam_width=2, step_tokens=3, max_steps=3),
        {"verifier": Scores(length), "seed": 3},
    ),
    (
        BeamSearch(beam_size=3, beam_width=1, step_tokens=2, max_steps=4),
        {"verifier": Scores(length), "max_tokens": 15},
    ),
]
QUESTIONS = ["1", "22", "333"]


def seen(result: Result) -> Any:
    return *searches.seen(result), result.seed, result.usage.verifier_tokens


@cache
def alone(kind: int, question: str) -> Any:
    search, options = KINDS[kind]
    return seen(solve(search, problem=question, engine=make_engine(context=160), **options))


def add_kind(to: Driver, kind: int, question: str) -> int:
    search, options = KINDS[kind]
    return add(to, search, question, **options)


moves = st.lists(
    st.tuples(
        st.integers(0, len(KINDS) - 1),
        st.sampled_from(QUESTIONS),
        st.integers(0, 12),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.slow
@settings(max_examples=examples(12))
@given(moves)
def test_a_problem_has_the_same_result_whenever_it_joins_and_whoever_leaves(
    moves: list[tuple[int, str, int, bool]],
) -> None:
    engine = make_engine(context=160)
    driver, results, kinds, cancelled = driver_of(engine), dict[int, Any](), {}, set()
    for kind, question, steps, leaves in moves:
        number = add_kind(driver, kind, question)
        kinds[number] = kind, question
        results |= run(driver, steps)
        if leaves and number not in results:
            driver.cancel(number)
            cancelled.add(number)
    results |= run(driver)
    assert not driver.busy and set(results) == set(kinds) - cancelled
    for number, result in results.items():
        assert seen(result) == alone(*kinds[number])
    assert_nothing_left(engine, [])


@pytest.mark.parametrize("by_event", [False, True])
@pytest.mark.parametrize("backend", ["engine", "without a running batch"])
def test_whoever_is_cancelled_at_any_step_is_freed_at_once(backend: str, by_event: bool) -> None:
    search, options = KINDS[3]
    for steps in range(12):
        engine: Any = make_engine(context=160) if backend == "engine" else FakeBackend()
        driver, cancel = driver_of(engine), threading.Event()
        number = add(driver, search, "1", cancel=cancel, **options)
        run(driver, steps)
        if by_event:
            cancel.set()
            run(driver, 1)
        else:
            driver.cancel(number)
        assert not driver.busy and not driver.decoding and not driver.works
        assert list(driver.step()) == []
        if isinstance(engine, Engine):
            assert_nothing_left(engine, [])
        else:
            assert not engine.live


def test_a_problem_may_be_cancelled_by_who_hears_of_it() -> None:
    for events in range(1, 6):
        engine = make_engine(context=160)
        driver, said = driver_of(engine), 0
        number = add_kind(driver, 3, "1")
        for _ in driver.events():
            said += 1
            if said == events:
                driver.cancel(number)
        assert said == events
        assert_nothing_left(engine, [])


def test_a_verifier_is_told_which_branches_a_cancelled_problem_held() -> None:
    verifier, driver = Scores(length), driver_of(make_engine(context=160))
    search = BeamSearch(beam_size=2, beam_width=2, step_tokens=3, max_steps=9)
    number = add(driver, search, "1", verifier=verifier)
    run(driver, 8)
    held = list(driver.active[number].live)
    driver.cancel(number)
    assert held and all(branch in verifier.gone for branch in held)


@dataclass(frozen=True)
class Mistaken(Search):
    """Goes wrong in its second step, in the way that is asked for."""

    needs_verifier = False

    def run(self, root: Branch, case: Case) -> SearchSteps:
        (branch,) = yield Expand([root], 1, Step(2))
        if case.question == "raise":
            raise ZeroDivisionError("a mistake in the search")
        yield Expand([Branch([1], None, 0, branch.usage, str)], 1, Step(2))
        return [branch]


@pytest.mark.parametrize(
    ("question", "error"), [("raise", "ZeroDivisionError: a mis"), ("x", "InvalidInput: the sea")]
)
def test_a_search_at_fault_fails_its_own_problem_alone(question: str, error: str) -> None:
    engine = make_engine(context=160)
    driver = driver_of(engine, contained=True)
    bad, good = add(driver, Mistaken(), question), add_kind(driver, 1, "22")
    results = run(driver)
    assert (results[bad].error or "").startswith(error) and seen(results[good]) == alone(1, "22")
    assert_nothing_left(engine, [])


def test_what_a_wide_search_asked_for_is_forgotten_in_time() -> None:
    admission = ProblemAdmission(GenerateBatch(FakeBackend()), None, 64)
    admission.note_expansion(64, 10, 10)
    admission.note_end()
    assert admission.count(1, 100) == 1
    for _ in range(2 * WINDOW):
        admission.note_expansion(2, 10, 10)
        admission.note_end()
    assert admission.count(1, 100) == 32
