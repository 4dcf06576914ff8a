"""Budgets: never exceeded, the same for every search, and an answer from what is kept for the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search import (
    ABMCTS,
    MCTS,
    AdaptiveConsistency,
    BeamSearch,
    BestFirst,
    BestOfN,
    BudgetForcing,
    Case,
    DiversePrompts,
    Expand,
    Greedy,
    Release,
    Revision,
    Search,
    SearchSteps,
    SelfConsistency,
    SelfRefine,
    Step,
    TreeOfThoughts,
    solve,
)
from tests.helpers.backends import FakeBackend
from ttc import Branch, BudgetExceeded, InvalidInput

SEARCHES: list[Search] = [
    Greedy(max_tokens=20),
    BestOfN(n=5, max_tokens=9),
    SelfConsistency(n=5, max_tokens=9),
    SelfConsistency(n=4, max_tokens=9, weighted=True),
    AdaptiveConsistency(n=6, max_tokens=9, block=2),
    DiversePrompts(n=4, max_tokens=9),
    BeamSearch(beam_size=2, beam_width=3, step_tokens=3, max_steps=5),
    BestFirst(beam_size=2, beam_width=3, step_tokens=3, max_steps=5, finish=3),
    TreeOfThoughts(beam_width=2, step_tokens=3, max_depth=4, max_states=6, threshold=0.1),
    MCTS(beam_width=2, step_tokens=3, iterations=4, rollout_tokens=7),
    MCTS(beam_width=3, step_tokens=3, iterations=5, rollout=False, rule="puct", answer="most_visited"),
    ABMCTS(iterations=4, max_tokens=8, feedback="Again."),
    Revision(n=2, attempts=3, max_tokens=8, feedback="Again.", memory=1),
    SelfRefine(attempts=3, max_tokens=8, feedback_tokens=4),
    BudgetForcing(thinking_tokens=15, answer_tokens=4, end_of_thinking=","),
]


class Costly:
    """Scores a branch by its share of commas, for `cost` tokens, which it says beforehand."""

    def __init__(self, cost: int):
        self.cost = cost

    def price(self, branches: Sequence[Branch], questions: Sequence[str], backend: Any) -> int:
        return self.cost * len(branches)

    def rate(self, branches: Sequence[Branch], questions: Sequence[str], backend: Any) -> list[list[float]]:
        for branch in branches:
            branch.usage.verifier_tokens += self.cost
        return [[branch.text.count(",") / max(1, len(branch.text))] for branch in branches]


def solved(search: Search, backend: FakeBackend, problems: list[str], cost: int = 0, **options: Any) -> list[Any]:
    if search.needs_verifier:
        options["verifier"] = Costly(cost)
    return solve(search, problem=problems, engine=backend, **options)


def seen(result: Any) -> Any:
    rows = [(b.text, b.score, b.path, b.finish_reason) for b in result.branches]
    return result.answer, rows, result.tree, result.error, result.stopped, result.usage.generated_tokens


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.sampled_from(SEARCHES),
    st.integers(1, 60),
    st.integers(0, 20),
    st.integers(0, 4),
    st.sampled_from([None, 1, 2, 3]),
)
def test_no_search_passes_its_budget(search: Search, most: int, reserve: int, cost: int, calls: int | None) -> None:
    reserve, backend = min(reserve, most - 1), FakeBackend()
    options: dict[str, Any] = {"max_tokens": most, "max_calls": calls, "reserve": reserve}
    results = solved(search, backend, ["a", "b", "c"], cost, **options)
    for result in results:
        usage = result.usage
        assert usage.generated_tokens + usage.verifier_tokens <= most
        assert result.error is None
        assert usage.generated_tokens > 0 or cost >= most - reserve
    assert not backend.live
    if calls is not None:
        depth = max(len(node.path) for result in results for node in result.tree)
        appends = isinstance(search, ABMCTS | BudgetForcing | Revision | SelfRefine)
        assert depth <= calls * (1 + 2 * appends) + isinstance(search, DiversePrompts)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.sampled_from(SEARCHES), st.integers(1, 60), st.integers(0, 5), st.integers(1, 4), st.permutations("abcd"))
def test_budgeted_results_depend_on_no_company_and_no_order(
    search: Search, most: int, reserve: int, concurrency: int, order: list[str]
) -> None:
    reserve = min(reserve, most - 1)
    options: dict[str, Any] = {"max_tokens": most, "reserve": reserve, "final_text": "=" if reserve else ""}
    together = solved(search, FakeBackend(), order, concurrency=concurrency, **options)
    for question, result in zip(order, together, strict=True):
        (alone,) = solved(search, FakeBackend(), [question], **options)
        assert seen(result) == seen(alone)


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: type(search).__name__)
def test_a_budget_that_is_large_enough_changes_nothing(search: Search) -> None:
    (free,) = solved(search, FakeBackend(), ["q"])
    (rich,) = solved(search, FakeBackend(), ["q"], max_tokens=10**6, max_calls=10**3, reserve=100)
    assert seen(free) == seen(rich) and rich.stopped is None


def test_a_budget_buys_whole_samples_and_then_a_part_of_one() -> None:
    backend = FakeBackend(letters="123456789")  # nothing ends a text early
    (result,) = solved(BestOfN(n=4, max_tokens=10), backend, ["q"], max_tokens=27)
    assert [node.tokens for node in result.tree[1:]] == [10, 10, 7]
    assert (result.stopped, result.usage.generated_tokens) == ("budget", 27)
    assert result.best is not None and result.best.score is not None


def test_what_early_ends_leave_over_buys_more_samples() -> None:
    backend = FakeBackend(letters="0123")
    (free,) = solved(BestOfN(n=8, max_tokens=10), FakeBackend(letters="0123"), ["q"])
    spent = free.usage.generated_tokens
    assert spent < 60
    (result,) = solved(BestOfN(n=8, max_tokens=10), backend, ["q"], max_tokens=spent + 10)
    assert len(backend.calls) > 1 and backend.calls[0] < 8
    assert seen(result) == seen(free)


# ---------------------------------------------------------------- the reserve


def test_the_reserve_finishes_the_best_branch() -> None:
    backend = FakeBackend(letters="1234567,,")
    search = BeamSearch(beam_size=1, beam_width=2, step_tokens=4, max_steps=50)
    (result,) = solved(search, backend, ["q"], max_tokens=40, reserve=11, final_text=" so:", extract=lambda text: text)
    assert result.stopped == "budget" and result.usage.generated_tokens == 40
    (short,) = solved(search, FakeBackend(letters="1234567,,"), ["q"], max_tokens=29)
    text, _, last = result.best.text.partition(" so:")
    assert text == short.best.text and len(last) == 11 and result.answer == result.best.text
    assert result.best is result.branches[0] and result.best.score == short.best.score
    assert result.usage.prompt_tokens == len(" so:")
    assert not backend.live


def test_a_finished_best_branch_needs_no_reserve() -> None:
    search = BestOfN(n=3, max_tokens=300)
    (result,) = solved(search, FakeBackend(), ["q"], max_tokens=100, reserve=20, final_text="?")
    assert result.best.finish_reason == "eos" and "?" not in result.best.text


def test_the_reserve_answers_where_nothing_else_was_affordable() -> None:
    backend = FakeBackend(letters="123")
    (result,) = solved(BestOfN(n=3, max_tokens=4), backend, ["q"], cost=50, max_tokens=30, reserve=6)
    assert result.best is not None and len(result.best.generated) == 30  # no rating could be paid; all goes to the end
    assert result.stopped == "budget"


def test_the_last_call_is_part_of_the_reserve() -> None:
    backend = FakeBackend(letters="123")
    search = BeamSearch(beam_size=1, beam_width=2, step_tokens=4, max_steps=50)
    (result,) = solved(search, backend, ["q"], max_calls=3, reserve=5)
    assert len(backend.calls) == 3 and len(result.best.generated) == 2 * 4 + 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reserve": 5}, "give max_tokens or max_calls"),
        ({"reserve": -1, "max_tokens": 9}, "reserve=-1"),
        ({"reserve": 9, "max_tokens": 9}, "leaves nothing of max_tokens=9"),
        ({"final_text": "?"}, "give reserve=N"),
    ],
)
def test_a_reserve_that_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        solve(Greedy(), problem="q", engine=FakeBackend(), **options)


# ---------------------------------------------------------------- what a search is told


@dataclass(frozen=True)
class Endless(Search):
    """Goes on with one branch for ever. `stubborn` asks again after it was told that the budget is spent."""

    stubborn: bool = False

    @property
    def needs_verifier(self) -> bool:
        return False

    def run(self, root: Branch, case: Case) -> SearchSteps:
        kept, branch, told = [], root, 0
        while True:
            try:
                (child,) = yield Expand([branch], 1, Step(2), self.sampling)
            except BudgetExceeded:
                told += 1
                if not self.stubborn:
                    return kept[:1]
                assert told == 1
                continue
            kept.append(child)
            branch = child


def test_a_search_may_say_what_it_has_when_the_budget_is_spent() -> None:
    (result,) = solved(Endless(), FakeBackend(letters="123"), ["q"], max_tokens=10)
    assert [len(b.generated) for b in result.branches] == [2] and result.stopped == "budget"


def test_a_search_that_asks_on_is_ended() -> None:
    backend = FakeBackend(letters="123")
    (result,) = solved(Endless(stubborn=True), backend, ["q"], max_tokens=10)
    assert len(result.best.generated) == 10 and [len(b.path) for b in result.branches] == [5]
    assert not backend.live


@dataclass(frozen=True)
class Careless(Endless):
    """Expands a branch that it has released."""

    def run(self, root: Branch, case: Case) -> SearchSteps:
        yield Release([root])
        return (yield Expand([root], 1, Step(2), self.sampling))


def test_no_branch_is_expanded_after_its_release() -> None:
    backend = FakeBackend()
    with pytest.raises(InvalidInput, match=r"expanded .* after it had released it"):
        solve(Careless(), problem=["a", "b"], engine=backend)
    assert not backend.live
