"""Problems that join a driver while others are under way, each with its own options, and problems
that are let go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from search.config import SearchConfig
from search.driver import Driver
from search.options import SolveOptions
from tests.helpers import searches
from tests.helpers.backends import FakeBackend
from tests.helpers.engines import make_engine
from tests.helpers.ownership import assert_nothing_left
from tests.helpers.tiers import examples
from ttc import Branch, Engine, Problem
from ttc.backend import GenerateBatch
from ttc.results import Result
from ttc.text.prompt import PromptTemplate


class Length:
    """Rates a branch by its length; remembers which branches it was told of that are gone."""

    def __init__(self) -> None:
        self.gone: list[Branch] = []

    def rate(self, branches: Any, questions: Any, backend: Any) -> list[list[float]]:
        return [[float(sum(branch.generated))] for branch in branches]

    def released(self, branches: Sequence[Branch]) -> None:
        self.gone += branches


PLAIN = PromptTemplate("{question}", raw=True)
KINDS: list[tuple[Search, dict[str, Any]]] = [
    (Greedy(max_tokens=9), {}),
    (SelfConsistency(n=3, max_tokens=6), {"seed": 1}),
    (BestOfN(n=2, max_tokens=8), {"verifier": Length(), "seed": 2, "template": PLAIN}),
    (
        BeamSearch(beam_size=2, beam_width=2, step_tokens=3, max_steps=3),
        {"verifier": Length(), "seed": 3},
    ),
    (
        BeamSearch(beam_size=3, beam_width=1, step_tokens=2, max_steps=4),
        {"verifier": Length(), "max_tokens": 15},
    ),
]
QUESTIONS = ["1", "22", "333"]


def seen(result: Result) -> Any:
    return *searches.seen(result), result.seed, result.usage.verifier_tokens


def alone(kind: int, question: str) -> Any:
    search, options = KINDS[kind]
    return seen(solve(search, problem=question, engine=make_engine(context=160), **options))


ALONE = {(kind, question): None for kind in range(len(KINDS)) for question in QUESTIONS}


def driver(engine: Any, **options: Any) -> Driver:
    return Driver(engine, ProblemAdmission.of(engine), **options)


def add(to: Driver, kind: int, question: str) -> int:
    search, options = KINDS[kind]
    return to.add(Problem(question), SearchConfig.of(search, to.engine, SolveOptions.of(**options)))


def run(to: Driver, steps: int, results: dict[int, Result]) -> None:
    """Take so many steps, or fewer where there is nothing left to do."""
    for _ in range(steps):
        if not to.busy:
            return
        results |= {
            number: progress.result for number, progress in to.step() if progress.result is not None
        }


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
    driving, results, kinds, cancelled = driver(engine), dict[int, Result](), {}, set()
    for kind, question, steps, leaves in moves:
        number = add(driving, kind, question)
        kinds[number] = kind, question
        run(driving, steps, results)
        if leaves and number not in results:
            driving.cancel(number)
            cancelled.add(number)
    run(driving, 10_000, results)
    assert not driving.busy and set(results) == set(kinds) - cancelled
    for number, result in results.items():
        if ALONE[kinds[number]] is None:
            ALONE[kinds[number]] = alone(*kinds[number])
        assert seen(result) == ALONE[kinds[number]]
    assert_nothing_left(engine, [])


@pytest.mark.parametrize("backend", ["engine", "without a running batch"])
def test_whoever_is_cancelled_at_any_step_is_freed_at_once(backend: str) -> None:
    for steps in range(12):
        engine: Any = make_engine(context=160) if backend == "engine" else FakeBackend()
        driving = driver(engine)
        number = add(driving, 3, "1")
        run(driving, steps, {})
        driving.cancel(number)
        assert not driving.busy and not driving.decoding
        assert list(driving.step()) == []
        if isinstance(engine, Engine):
            assert_nothing_left(engine, [])
        else:
            assert not engine.live


def test_a_verifier_is_told_which_branches_a_cancelled_problem_held() -> None:
    verifier, engine = Length(), make_engine(context=160)
    driving, results = driver(engine), dict[int, Result]()
    search = BeamSearch(beam_size=2, beam_width=2, step_tokens=3, max_steps=9)
    number = driving.add(
        Problem("1"), SearchConfig.of(search, engine, SolveOptions(verifier=verifier))
    )
    run(driving, 8, results)
    held = list(driving.active[number].live)
    driving.cancel(number)
    assert held and all(branch in verifier.gone for branch in held)


@dataclass(frozen=True)
class Mistaken(Search):
    """Goes wrong in its second step, in the way that is asked for."""

    @property
    def needs_verifier(self) -> bool:
        return False

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
    driving, results = driver(engine, contained=True), dict[int, Result]()
    bad = driving.add(Problem(question), SearchConfig.of(Mistaken(), engine, SolveOptions()))
    good = add(driving, 1, "22")
    run(driving, 10_000, results)
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
