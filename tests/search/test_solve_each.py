"""Results that are read one by one: they come as problems end, and long lists of problems take no
more memory."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from search import SelfConsistency, solve, solve_each
from search.base import Case, Search, SearchSteps
from tests.helpers.engines import make_engine
from tests.helpers.ownership import assert_nothing_left
from tests.helpers.searches import seen
from ttc import Branch, Engine, InvalidInput, Problem, Result, Sampling
from ttc.protocols import Expand
from ttc.residency.resident import Resident
from ttc.step import Step

FEW = [Problem(f"1 + {i}", str(i)) for i in range(8)]


class Steps(Search):
    """Steps of one token, as many as the question says."""

    needs_verifier = False

    def run(self, root: Branch, case: Case) -> SearchSteps:
        branches = [root]
        for _ in range(int(case.question)):
            branches = yield Expand(branches, 1, Step(1), Sampling())
        return list(branches)


def test_results_are_those_of_a_list_whatever_is_under_way() -> None:
    search, engine = SelfConsistency(n=3, max_tokens=6), make_engine(context=160)
    expected = list(map(seen, solve(search, problem=FEW, engine=engine, seed=3)))
    for room in ({}, {"concurrency": 1}, {"concurrency": 3}, {"max_rows": 5}):
        results = solve_each(search, problems=FEW, engine=engine, seed=3, **room)
        assert list(map(seen, sorted(results, key=lambda r: r.problem.id))) == expected
    assert_nothing_left(engine, [])


def test_a_slow_problem_holds_nobody_back() -> None:
    engine, questions = make_engine(context=160), ["30", "2", "3", "4", "5", "6", "7", "40"]
    results = solve_each(Steps(), problems=questions, engine=engine, concurrency=2)
    # one of two places is the slow problem's, and in the other one problem follows upon the other
    assert [r.problem.question for r in results] == ["2", "3", "4", "5", "6", "7", "30", "40"]


def test_reading_no_further_frees_everything() -> None:
    engine = make_engine(context=160)
    results = solve_each(SelfConsistency(n=2, max_tokens=5), problems=FEW, engine=engine)
    next(results)
    assert engine.kv_bytes() > 0
    results.close()
    assert_nothing_left(engine, [])


def test_what_others_have_found_is_given_before_an_error() -> None:
    """A search breaks at the token that ends two other problems."""

    class Broken(Steps):
        def run(self, root: Branch, case: Case) -> SearchSteps:
            branches = yield from super().run(root, Case(case.question.strip("!")))
            if "!" in case.question:
                raise ZeroDivisionError("a mistake in the search")
            return branches

    engine, read = make_engine(context=160), list[str]()
    problems = ["1", "4", "4!", "4 ", "9"]
    with pytest.raises(ZeroDivisionError):
        for result in solve_each(Broken(), problems=problems, engine=engine, concurrency=5):
            read.append(result.problem.question)
    assert read == ["1", "4"]
    assert_nothing_left(engine, [])


@pytest.mark.parametrize("room", [{"concurrency": 0}, {"max_rows": 0}, {"seed": 1.5}, {"end": "x"}])
def test_a_wrong_option_is_refused_by_the_call_itself(room: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(room))):
        solve_each(Steps(), problems=["1"], engine=make_engine(), **room)


@pytest.mark.parametrize("one", ["1", Problem("1"), [{"role": "user", "content": "1"}]])
def test_one_problem_is_no_list_of_them(one: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^problems is one problem; give a list"):
        solve_each(Steps(), problems=one, engine=make_engine())


# ---------------------------------------------------------------- hundreds of problems


def peak_of(engine: Engine, count: int) -> int:
    """Solve so many problems and give the most bytes of KV that there were."""
    search = SelfConsistency(n=2, max_tokens=8)
    problems = [f"{i} + {i * i}" for i in range(count)]
    assert sum(1 for _ in solve_each(search, problems=problems, engine=engine, max_rows=8)) == count
    assert_nothing_left(engine, [])
    return engine.memory.device.peak_bytes


@pytest.mark.slow
def test_hundreds_of_problems_take_no_more_memory_than_a_few() -> None:
    few, many = (peak_of(make_engine(context=160), count) for count in (30, 300))
    assert many <= 1.3 * few  # questions with more digits are longer


@pytest.mark.slow
def test_prompts_are_computed_only_when_there_is_room() -> None:
    """With memory for a few problems, hundreds pass through it one after the other."""
    free = make_engine(context=160)
    budget = peak_of(free, 30)
    engine = make_engine(context=160, memory=Resident(budget / 2**30))
    started = list[int]()
    begin = engine.roots

    def begun(*arguments: Any, **options: Any) -> Any:
        prefill = begin(*arguments, **options)
        started.append(len(prefill.branches))
        return prefill

    engine.roots = begun  # type: ignore[method-assign]
    ended = 0
    search, problems = SelfConsistency(n=2, max_tokens=8), [f"{i} + 1" for i in range(200)]
    for _ in solve_each(search, problems=problems, engine=engine):
        assert sum(started) - ended <= 8
        ended += 1
    assert ended == sum(started) == 200 and engine.memory.device.peak_bytes <= budget


def test_a_result_that_was_read_is_not_kept() -> None:
    given, search = list[weakref.ref[Result]](), SelfConsistency(n=2, max_tokens=2)
    for result in solve_each(search, problems=FEW * 5, engine=make_engine(context=160)):
        given.append(weakref.ref(result))
        # this one and, until the next token, the one before
        assert sum(one() is not None for one in given) <= 2
    assert len(given) == 40
