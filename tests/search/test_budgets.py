"""Budgets: never exceeded, the same for every search, and an answer from what is kept for the
end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search import (
    DVTS,
    REBASE,
    BeamSearch,
    BestFirst,
    BestOfN,
    Case,
    Expand,
    Greedy,
    ParticleFilter,
    ParticleGibbs,
    Search,
    SearchSteps,
    Step,
    TreeOfThoughts,
    solve,
)
from search.budget import Spending
from tests.helpers import searches
from tests.helpers.backends import FakeBackend
from tests.helpers.searches import Costly, RandomTree, all_searches
from tests.helpers.tiers import examples, some_quick
from tests.helpers.trees import HandMadeTree, Scores, searched
from ttc import Branch, BudgetExceeded
from ttc.sampling import random_key

SEARCHES = all_searches()


def solved(
    search: Search, backend: FakeBackend, problems: list[str], cost: int = 0, **options: Any
) -> list[Any]:
    if search.needs_verifier:
        options["verifier"] = Costly(cost)
    results = solve(search, problem=problems, engine=backend, **options)
    assert not backend.live
    return results


def seen(result: Any) -> Any:
    return *searches.seen(result), result.tree


letters = st.sampled_from(["0123456789,,", "01,", "12345,"])
"""What trees are made of: texts that end soon, sooner, or never."""


@settings(max_examples=examples(80))
@given(
    st.sampled_from(SEARCHES),
    st.integers(1, 60),
    st.integers(0, 20),
    st.integers(0, 4),
    st.booleans(),
    letters,
)
def test_no_search_passes_its_tokens(
    search: Search, most: int, reserve: int, cost: int, rated: bool, letters: str
) -> None:
    reserve, backend = min(reserve, most - 1), RandomTree(letters)
    budget = {"max_tokens" if rated else "max_generated_tokens": most}
    for result in solved(search, backend, ["a", "b", "c"], cost, reserve=reserve, **budget):
        usage = result.usage
        assert usage.generated_tokens + usage.verifier_tokens * rated <= most
        assert result.error is None
        assert usage.generated_tokens > 0 or cost >= most - reserve


@settings(max_examples=examples(60))
@given(st.sampled_from(SEARCHES), st.integers(1, 6), st.booleans(), letters)
def test_no_search_passes_its_calls(
    search: Search, most: int, reserved: bool, letters: str
) -> None:
    # of one problem without a limit of tokens, every expansion is one call
    backend = RandomTree(letters)
    (result,) = solved(search, backend, ["a"], max_calls=most, reserve=5 * reserved)
    (free,) = solved(search, unlimited := RandomTree(letters), ["a"])
    assert len(backend.calls) <= most
    assert (result.stopped == "max_calls") == (len(unlimited.calls) > most - reserved)
    assert result.stopped or seen(result) == seen(free)


@settings(max_examples=examples(60))
@given(st.sampled_from(SEARCHES), st.integers(1, 6), letters)
def test_no_search_begins_anything_when_its_time_is_up(
    search: Search, most: int, letters: str
) -> None:
    backend = RandomTree(letters)
    ratings: list[int] = []

    class Slow(Costly):
        def rate(self, *args: Any) -> list[list[float]]:
            ratings.append(1)
            return super().rate(*args)

    verifier = {"verifier": Slow(0)} if search.needs_verifier else {}
    with pytest.MonkeyPatch.context() as patch:  # every call and every rating takes a second
        patch.setattr(
            Spending, "wall_s", property(lambda _: float(len(backend.calls) + len(ratings)))
        )
        result = solve(search, problem="a", engine=backend, max_wall_s=most, **verifier)
    assert len(backend.calls) + len(ratings) <= most and not backend.live
    assert result.stopped == "max_wall_s" or seen(result) == seen(
        solved(search, RandomTree(letters), ["a"])[0]
    )


@settings(max_examples=examples(60))
@given(
    st.sampled_from(SEARCHES),
    st.integers(1, 60),
    st.integers(0, 5),
    st.integers(1, 4),
    st.permutations("abcd"),
)
def test_budgeted_results_depend_on_no_company_and_no_order(
    search: Search, most: int, reserve: int, concurrency: int, order: list[str]
) -> None:
    reserve = min(reserve, most - 1)
    options: dict[str, Any] = {"max_tokens": most, "reserve": reserve}
    options["final_text"] = "=" if reserve else ""
    together = solved(search, RandomTree(), order, concurrency=concurrency, **options)
    for question, result in zip(order, together, strict=True):
        (alone,) = solved(search, RandomTree(), [question], **options)
        assert seen(result) == seen(alone)


@pytest.mark.parametrize(
    "search", some_quick(SEARCHES, SEARCHES[::5]), ids=lambda search: type(search).__name__
)
def test_budgets_that_are_large_enough_change_nothing(search: Search) -> None:
    budgets = dict.fromkeys(("max_tokens", "max_generated_tokens"), 10**6)
    budgets |= dict.fromkeys(("max_calls", "max_wall_s"), 10**3)
    (free,) = solved(search, RandomTree(), ["q"])
    (rich,) = solved(search, RandomTree(), ["q"], reserve=100, **budgets)
    assert seen(free) == seen(rich) and rich.stopped is None


def test_a_budget_buys_whole_samples_and_then_a_part_of_one() -> None:
    backend = FakeBackend(letters="123456789")  # nothing ends a text early
    (result,) = solved(BestOfN(n=4, max_tokens=10), backend, ["q"], max_tokens=27)
    assert [node.tokens for node in result.tree[1:]] == [10, 10, 7]
    assert (result.stopped, result.usage.generated_tokens) == ("max_tokens", 27)
    assert result.best is not None and result.best.score is not None


@pytest.mark.parametrize("limit", ["max_tokens", "max_generated_tokens"])
@pytest.mark.parametrize("reserve", [0, 12])
@pytest.mark.parametrize("search", [Greedy(max_tokens=40), BestOfN(n=1, max_tokens=40)])
def test_a_budget_that_cuts_the_last_step_is_named_and_its_reserve_is_spent(
    search: Search, reserve: int, limit: str
) -> None:
    backend = FakeBackend(letters="123456789")  # nothing ends a text early
    budget: dict[str, Any] = {limit: 20, "reserve": reserve}
    (result,) = solved(search, backend, ["q"], **budget)
    assert (result.stopped, result.usage.generated_tokens) == (limit, 20)
    assert result.best is not None and len(result.best.text) == 20
    (enough,) = solved(search, FakeBackend(letters="123456789"), ["q"], **{limit: 40})
    assert enough.stopped is None and enough.usage.generated_tokens == 40


def test_what_early_ends_leave_over_buys_more_samples() -> None:
    backend = FakeBackend(letters="0123")
    (free,) = solved(BestOfN(n=8, max_tokens=10), FakeBackend(letters="0123"), ["q"])
    spent = free.usage.generated_tokens
    assert spent < 60
    (result,) = solved(BestOfN(n=8, max_tokens=10), backend, ["q"], max_tokens=spent + 10)
    assert len(backend.calls) > 1 and backend.calls[0] < 8
    assert seen(result) == seen(free)


STEPS: dict[str, Any] = {"step_tokens": 2, "delimiter": None}
STEPWISE = [
    BeamSearch(beam_size=2, beam_width=1, **STEPS),
    BeamSearch(beam_size=2, beam_width=1, max_steps=2, **STEPS),
    DVTS(subtrees=2, beam_width=1, **STEPS),
    DVTS(subtrees=2, beam_width=1, max_steps=2, **STEPS),
    REBASE(n=2, **STEPS),
    REBASE(n=2, max_steps=2, answer="best", **STEPS),
    ParticleFilter(n=2, ess_threshold=0, **STEPS),
    ParticleFilter(n=2, ess_threshold=0, max_steps=2, **STEPS),
    ParticleGibbs(n=2, ess_threshold=0, max_steps=2, **STEPS),
    BestFirst(beam_size=2, beam_width=2, **STEPS),
]


@pytest.mark.parametrize("reserve", [0, 3])
@pytest.mark.parametrize("search", STEPWISE)
def test_what_a_budget_did_not_pay_to_continue_stays_a_candidate(
    search: Search, reserve: int
) -> None:
    """Of two rated branches one alone is continued, and it becomes worse."""
    backend = HandMadeTree({"": ["aa", "bb"], "aa": ["cc"]}, other="xxx")
    scores = {"aa": 0.8, "bb": 0.8, "aacc": 0.05}
    result = searched(search, backend, scores, max_tokens=6 + reserve, reserve=reserve)
    texts = {branch.text for branch in result.branches}
    assert {"aacc", "bb" + "xxx"[:reserve]} <= texts and "aa" not in texts
    assert result.best is not None and result.best.text == "bb" + "xxx"[:reserve]
    assert result.stopped == "max_tokens" and backend.written == 6 + reserve


@pytest.mark.parametrize("search", [s for s in STEPWISE if isinstance(s, REBASE | BestFirst)])
def test_a_search_that_answers_with_what_has_finished_does_so_when_its_budget_ends(
    search: Search,
) -> None:
    backend = HandMadeTree({"": ["aa", "bb"], "aa": ["1."]})
    scores = {"aa": 0.8, "bb": 0.8, "aa1.": 0.05}
    result = searched(search, backend, scores, max_tokens=6)
    assert result.answer == "aa1." and result.stopped == "max_tokens"


class ByToken(Scores):
    """Scores texts as `Scores`, each for a token a token that it has not read yet, as reward models
    do."""

    def price(self, branches: Any, questions: Any, backend: Any) -> int:
        return sum(len(branch.generated) - self._read(branch) for branch in branches)

    def rate(self, branches: Any, questions: Any, backend: Any) -> list[list[float]]:
        for branch in branches:
            branch.usage.verifier_tokens += len(branch.generated) - self._read(branch)
        return super().rate(branches, questions, backend)

    def _read(self, branch: Branch) -> int:
        above: Branch | None = branch
        while above is not None and above.text not in self.asked:
            above = above.parent
        return 0 if above is None else len(above.generated)


@pytest.mark.parametrize(
    "search", [*STEPWISE, TreeOfThoughts(beam_width=2, threshold=0.1, **STEPS)]
)
def test_what_a_budget_did_not_pay_to_rate_counts_as_what_it_goes_on_from(search: Search) -> None:
    """Two branches cost 4 tokens to write and 4 to rate; their continuations are written, and not
    rated."""
    backend = HandMadeTree({"": ["aa", "bb"], "aa": ["cc"], "bb": ["dd"]})
    result = searched(search, backend, ByToken({"aa": 0.05, "bb": 0.8}), max_tokens=4 + 4 + 4)
    assert result.best is not None and result.best.text[:2] == "bb" and result.best.score == 0.8
    assert result.stopped == "max_tokens"


class Rated:
    """Any score for any text, and each token that is new costs `cost`."""

    def __init__(self, cost: int):
        self.cost, self.read = cost, dict[Branch, int]()

    def price(self, branches: Any, questions: Any, backend: Any) -> int:
        return sum(self._new(branch) for branch in branches)

    def rate(self, branches: Any, questions: Any, backend: Any) -> list[list[float]]:
        for branch in branches:
            branch.usage.verifier_tokens += self._new(branch)
        self.read |= {branch: len(branch.generated) for branch in branches}
        return [[random_key(b.key, end) % 1000 / 1000 for end in b.step_ends] for b in branches]

    def _new(self, branch: Branch) -> int:
        above: Branch | None = branch
        while above is not None and above not in self.read:
            above = above.parent
        return self.cost * (len(branch.generated) - self.read.get(above, 0))


class RatesTogether:
    """Costs `once` for all that is rated together, and `each` for each pair of them."""

    def __init__(self, once: int, each: int):
        self.once, self.each = once, each

    def price(self, branches: Any, questions: Any, backend: Any) -> int:
        return self.once + self.each * len(branches) * (len(branches) - 1) // 2

    def children_price(
        self, parent: Any, question: Any, backend: Any, tokens: int, count: int
    ) -> int:
        return self.price([parent] * count, None, backend)

    def rate(self, branches: Any, questions: Any, backend: Any) -> list[list[float]]:
        branches[0].usage.verifier_tokens += self.price(branches, questions, backend)
        return [[0.5] for _ in branches]


@given(st.integers(1, 12), st.integers(0, 20), st.integers(0, 5), st.integers(0, 150))
def test_a_rating_of_all_together_leaves_the_rest_of_the_budget_for_samples(
    n: int, once: int, each: int, most: int
) -> None:
    verifier, most = RatesTogether(once, each), max(1, most)
    search, backend = BestOfN(n=n, max_tokens=4), FakeBackend("ab")
    result = solve(search, problem="?", engine=backend, verifier=verifier, max_tokens=most)
    paid = [k for k in range(1, n + 1) if 4 * k + verifier.price(range(k), None, None) <= most]
    if paid:
        whole = [branch for branch in result.branches if len(branch.generated) == 4]
        assert len(whole) == paid[-1] and all(b.score == 0.5 for b in result.branches)
    assert result.usage.generated_tokens + result.usage.verifier_tokens <= most


BY_SCORE = [
    search
    for search in [*SEARCHES, REBASE(n=4, step_tokens=3, max_steps=5, delimiter=",", answer="best")]
    if isinstance(search, BeamSearch | DVTS | ParticleFilter | BestFirst | TreeOfThoughts)
    or (isinstance(search, REBASE) and search.answer == "best")
]
FINISHED_FIRST = (REBASE, BestFirst, TreeOfThoughts)
"""Searches that answer with what has finished, if anything has."""


@settings(max_examples=examples(150))
@given(st.sampled_from(BY_SCORE), st.integers(1, 90), st.integers(0, 5), st.integers(0, 2), letters)
def test_no_answer_is_rated_below_what_the_search_did_not_let_go(
    search: Search, most: int, reserve: int, cost: int, letters: str
) -> None:
    reserve = min(reserve, most - 1)
    budget = {"max_tokens": most, "reserve": reserve}
    result = solve(search, problem="a", engine=RandomTree(letters), verifier=Rated(cost), **budget)
    assert result.error is None
    if result.best is None:
        return
    rated = [node for node in result.tree if node.score is not None and node.status != "pruned"]
    if isinstance(search, FINISHED_FIRST) and result.best.finish_reason is not None:
        rated = [node for node in rated if node.status == "finished"]
    for node in rated:
        depth = len(node.path)
        later = [n for n in result.tree if n.path[:depth] == node.path and len(n.path) > depth]
        if not any(n.score is not None for n in later):  # else its continuations stand for it
            assert result.best.score is not None and result.best.score >= node.score


# ---------------------------------------------------------------- the reserve


def test_the_reserve_finishes_the_best_branch() -> None:
    search = BeamSearch(beam_size=1, beam_width=2, step_tokens=4, max_steps=50)
    last_words = {"max_tokens": 40, "reserve": 11, "final_text": " so:"}
    (result,), (short,) = (
        solved(search, FakeBackend("1234567,,"), ["q"], extract=lambda text: text, **options)
        for options in (last_words, {"max_tokens": 29})
    )
    assert result.stopped == "max_tokens" and result.usage.generated_tokens == 40
    text, _, last = result.best.text.partition(" so:")
    assert text == short.best.text and len(last) == 11 and result.answer == result.best.text
    assert result.best is result.branches[0] and result.best.score == short.best.score
    assert result.usage.prompt_tokens == len(" so:")


def test_last_words_are_drawn_as_the_search_draws() -> None:
    backend = HandMadeTree({"": ["aa"], "aa": ["3."]}, likeliest={"aa": "7."})
    search = BeamSearch(beam_size=1, beam_width=1, temperature=0.0, **STEPS)
    assert searched(search, backend, {}, max_tokens=4, reserve=2).answer == "aa7."


def test_a_finished_best_branch_needs_no_reserve() -> None:
    search = BestOfN(n=3, max_tokens=300)
    (result,) = solved(search, FakeBackend(), ["q"], max_tokens=100, reserve=20, final_text="?")
    assert result.best.finish_reason == "eos" and "?" not in result.best.text


def test_the_reserve_answers_where_nothing_else_was_affordable() -> None:
    search, backend = BestOfN(n=3, max_tokens=4), FakeBackend(letters="123")
    (result,) = solved(search, backend, ["q"], cost=50, max_tokens=30, reserve=6)
    # no rating could be paid; all goes to the end
    assert result.best is not None and len(result.best.generated) == 30
    assert result.stopped == "max_tokens"


def test_the_last_call_is_part_of_the_reserve() -> None:
    backend = FakeBackend(letters="123")
    search = BeamSearch(beam_size=1, beam_width=2, step_tokens=4, max_steps=50)
    (result,) = solved(search, backend, ["q"], max_calls=3, reserve=5)
    assert len(backend.calls) == 3 and len(result.best.generated) == 2 * 4 + 5


def test_the_tighter_of_two_token_budgets_holds() -> None:
    for most, generated in ((27, 50), (50, 27), (30, 30)):
        backend = FakeBackend(letters="123456789")  # nothing ends a text early
        options = {"max_tokens": most, "max_generated_tokens": generated}
        (result,) = solved(BestOfN(n=4, max_tokens=10), backend, ["q"], cost=1, **options)
        usage = result.usage
        spent, rated = usage.generated_tokens + usage.verifier_tokens, usage.verifier_tokens
        assert spent == min(most, generated + rated)
        assert result.stopped == ("max_tokens" if most <= generated else "max_generated_tokens")


# ---------------------------------------------------------------- what a search is told


@dataclass(frozen=True)
class Endless(Search):
    """Goes on with one branch for ever. `stubborn` asks again after it was told that the budget is
    spent."""

    stubborn: bool = False

    needs_verifier = False

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
    assert [len(b.generated) for b in result.branches] == [2] and result.stopped == "max_tokens"


def test_a_search_that_asks_on_is_ended() -> None:
    backend = FakeBackend(letters="123")
    (result,) = solved(Endless(stubborn=True), backend, ["q"], max_tokens=10)
    assert len(result.best.generated) == 10 and [len(b.path) for b in result.branches] == [5]
