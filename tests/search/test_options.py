"""The options of a call are one value, with one list of names."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from search import BestOfN, Greedy, Problem, SelfConsistency, solve, solve_each, stream
from search.budget import LIMITS, Budget
from search.config import SearchConfig
from search.options import BUDGET_NAMES, OPTION_NAMES, CallKeywords, SolveKeywords, SolveOptions
from search.solving import results_of
from tests.helpers.backends import FakeBackend
from tests.helpers.searches import Costly, seen
from ttc import InvalidInput

CALL = ("concurrency", "max_rows", "on_result", "on_step")


def test_type_checkers_and_the_program_know_the_same_options() -> None:
    declared = get_type_hints(SolveKeywords)
    for kind in (SolveOptions, Budget):
        types = get_type_hints(kind)
        assert {field.name: types[field.name] for field in fields(kind)}.items() <= declared.items()
    own = {field.name for field in fields(SolveOptions)}
    assert {*declared} == {*OPTION_NAMES} == own | {*BUDGET_NAMES}
    assert {*get_type_hints(CallKeywords)} == {*declared, *CALL}


def test_every_limit_is_a_number_of_the_budget_that_is_none_by_default() -> None:
    budget = Budget()
    assert [name for name in BUDGET_NAMES if getattr(budget, name) is None] == list(LIMITS)
    assert budget.limits == {}
    given = dict(zip(LIMITS, (4, 3, 2, 1, 0.5), strict=True))
    assert Budget(**given).limits == given  # type: ignore[arg-type]


def test_the_docstring_of_solve_says_what_each_option_means() -> None:
    documented = set(re.findall(r"(\w+): ", f"{solve.__doc__} {Budget.__doc__}"))
    assert {*OPTION_NAMES, *CALL} <= documented


@pytest.mark.parametrize(
    ("call", "own"), [(solve, CALL), (solve_each, CALL[:2]), (stream, ("tokens",))]
)
def test_a_wrong_option_is_answered_with_the_list_of_the_right_ones(
    call: Any, own: tuple[str, ...]
) -> None:
    problem = {"problems": ["1"]} if call is solve_each else {"problem": "1"}
    names = ", ".join((*OPTION_NAMES, *own))
    with pytest.raises(
        InvalidInput,
        match=rf"^max_token is no option of {call.__name__}; is it max_tokens. use one of {names}$",
    ):
        call(Greedy(), **problem, engine=FakeBackend(), max_token=9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 2}, "beam is no option; use one of verifier, seed,"),
        ({"budget": 30}, "budget=30 is of type int; give a search.budget.Budget"),
        (
            {"budget": Budget(30), "max_calls": 2, "reserve": 1},
            "budget= holds max_calls, reserve already",
        ),
        ({"max_calls": 0}, "max_calls=0 must be at least 1"),
        ({"max_calls": 2.0}, "max_calls=2.0 is of type float"),
        ({"max_tokens": "9"}, "max_tokens='9' is of type str; give a whole number or None"),
        ({"max_generated_tokens": 0}, "max_generated_tokens=0 must be at least 1"),
        ({"max_wall_s": 0.0}, "max_wall_s=0.0 must be more than 0"),
        ({"reserve": None}, "reserve=None is of type NoneType"),
        ({"reserve": 5}, "give max_tokens or max_calls"),
        ({"reserve": -1, "max_tokens": 9}, "reserve=-1"),
        ({"reserve": 9, "max_tokens": 9}, "leaves nothing of max_tokens=9"),
        ({"reserve": 9, "max_generated_tokens": 8}, "leaves nothing of max_generated_tokens=8"),
        ({"final_text": "?"}, "give reserve=N"),
        ({"final_text": 3, "reserve": 1}, "final_text=3 is of type int; give text"),
        ({"answer_kind": "numbers"}, "numbers"),
        ({"answer_kind": 3}, "answer_kind=3 is of type int"),
        ({"extract": "number"}, "extract='number' cannot be called"),
        ({"template": "Q: {question}"}, "template='Q: {question}' is of type str"),
        ({"seed": "1"}, "seed='1' is of type str; give a whole number"),
        ({"seed": None}, "seed=None is of type NoneType; give a whole number"),
        ({"end": "abc"}, "end='abc' is one string; give a list of strings"),
        ({"end": 3}, "end=3 is of type int; give a list of strings"),
        ({"end": [3]}, "end holds 3; give strings with at least one character"),
        ({"cancel": True}, "cancel=True is of type bool; give a threading.Event"),
        ({"cancel": "now"}, "cancel='now'"),
    ],
)
def test_options_that_cannot_be_used_are_refused_before_any_work(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        SolveOptions.of(**options)


def test_a_whole_budget_and_its_numbers_are_the_same() -> None:
    limits: Any = {"max_tokens": 40, "reserve": 6, "final_text": ",0"}
    search, rated = BestOfN(n=5, max_tokens=20), {"verifier": Costly(2), "seed": 3}
    by_name, whole = (
        solve(search, problem="1", engine=FakeBackend(), **rated, **budget)
        for budget in (limits, {"budget": Budget(**limits)})
    )
    assert seen(by_name) == seen(whole) and whole.stopped == "max_tokens"


def test_a_configuration_that_is_made_already_solves_as_solve_does() -> None:
    problems, backend = [Problem(f"{i} + 2", f"p{i}") for i in range(4)], FakeBackend()
    options = SolveOptions(seed=5, end=["9"], budget=Budget(max_calls=1))
    search = SelfConsistency(n=3, max_tokens=6)
    config = SearchConfig.of(search, backend, options)
    made = list(results_of(backend, config, problems, concurrency=2))
    by_name = solve(search, problem=problems, engine=backend, seed=5, end=["9"], max_calls=1)
    made.sort(key=lambda result: result.problem.id)
    assert list(map(seen, made)) == list(map(seen, by_name))
    assert config.end == ("9", *config.stops) and config.options.seed == 5
