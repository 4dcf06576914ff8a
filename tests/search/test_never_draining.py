"""Searches that decode in one batch, each at its own pace: the same results as when each runs
alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.standins.mixed_search import Mixed
from search import BeamSearch, BestFirst, BestOfN, DiversePrompts, Search, SelfConsistency, solve
from search.admission import PROBLEMS, ProblemAdmission
from search.base import Case, SearchSteps
from tests.helpers import searches
from tests.helpers.backends import FakeBackend
from tests.helpers.engines import make_engine
from tests.helpers.ownership import assert_nothing_left
from tests.helpers.scripted import Scores
from tests.helpers.tiers import examples
from ttc import Branch, DecodeGate, Paged, Sampling
from ttc.backend import GenerateBatch
from ttc.protocols import Expand, Rate
from ttc.residency.resident import Resident
from ttc.results import Problem, Result
from ttc.step import Step
from ttc.tree.branch import MOST_ROWS

GATE = DecodeGate(theta=0.0, r_gap=0.05, min_tokens=2)


SEARCHES: list[Search] = [
    BestOfN(n=4, max_tokens=7),
    SelfConsistency(n=3, max_tokens=5),
    DiversePrompts(n=3, max_tokens=4, hints=(" So", " Then")),
    BeamSearch(beam_size=2, beam_width=2, step_tokens=3, max_steps=3),
    BestFirst(beam_size=2, beam_width=2, step_tokens=2, max_steps=3),
    Mixed(),
]
QUESTIONS = ["1 + 1", "2 + 3", "1 + 7", "9", "4 - 4", "2 + 30"]


def digest(branch: Branch) -> float:
    return sum(i * t for i, t in enumerate(branch.tokens)) % 101 / 101.0


class Looks(Scores):
    """Its score is a hash of the branch's tokens; it runs a pass of the model over each branch
    first."""

    def rate(self, branches: Any, questions: Any, backend: Any) -> list[list[float]]:
        backend.score(branches, [[[65], [66]]] * len(branches)).result()
        return super().rate(branches, questions, backend)


def seen(result: Result) -> Any:
    """All of a result that may not depend on what else was solved."""
    usage = result.usage
    rows = [(b.tokens, b.step_ends, b.step_reasons) for b in result.branches]
    return searches.seen(result), rows, usage.verifier_tokens, usage.gated_branches


def solved(search: Search, engine: Any, questions: Sequence[str], **options: Any) -> list[Any]:
    verifier = Looks(digest) if search.needs_verifier else None
    problems = [Problem(question, str(i)) for i, question in enumerate(questions)]
    results = solve(search, problem=problems, engine=engine, verifier=verifier, **options)
    return list(map(seen, results))


@pytest.mark.slow
@settings(max_examples=examples(12))
@given(
    search=st.sampled_from(SEARCHES),
    questions=st.lists(st.sampled_from(QUESTIONS), min_size=1, max_size=5),
    end=st.sampled_from([(), ("e",), ("A", "z")]),
    budget=st.sampled_from(
        [{}, {"max_tokens": 30}, {"max_tokens": 40, "reserve": 5}, {"max_calls": 2}]
    ),
    concurrency=st.sampled_from([None, 1, 2, 3]),
    max_rows=st.sampled_from([None, 1, 5, 9]),
)
def test_nobody_notices_that_others_do_not_wait_for_a_gate(
    search: Search, questions: list[str], concurrency: Any, max_rows: Any, **options: Any
) -> None:
    """Without one, `bench combinations` tries it beside all else."""
    options |= options.pop("budget")
    engine = make_engine(context=160, gate=GATE)
    room = {"concurrency": concurrency, "max_rows": max_rows}
    found = solved(search, engine, questions, **room, **options)
    plain = make_engine(context=160, gate=GATE)
    assert found == solved(search, plain, questions, concurrency=1, **options)
    assert_nothing_left(engine, [])


@pytest.mark.slow
def test_new_problems_begin_as_soon_as_rows_are_free() -> None:
    engine, rows = make_engine(context=160), list[int]()
    engine.limits.eos_ids = frozenset(range(65, 70))  # about one token in 25 ends a branch
    forward = engine.runner.forward

    def watched(tokens: Any, plan: Any, *keep: Any) -> Any:
        if plan.in_storages:  # a decoding step
            rows.append(len(tokens))
        return forward(tokens, plan, *keep)

    engine.runner.forward = watched  # type: ignore[method-assign]
    problems = [str(i) for i in range(24)]
    search = SelfConsistency(n=4, max_tokens=60)
    results = solve(search, problem=problems, engine=engine, max_rows=16)
    lengths = [len(branch.generated) for result in results for branch in result.branches]
    assert len(set(lengths)) > 10  # they end at very different times
    assert max(rows) <= 16 and sum(rows) == sum(lengths)
    # before the first problem has said what it asks for, and after the last has begun
    steady = rows[2:-60]
    assert sum(steady) / (16 * len(steady)) > 0.85


def test_a_search_goes_on_while_the_branches_of_others_decode() -> None:
    """A problem of one-token steps takes many of them while another one's single step lasts; those
    who wait at the same token are rated together."""
    engine, order, sizes = make_engine(context=160), list[tuple[str, str]](), list[int]()

    class ByQuestion(Search):
        def run(self, root: Branch, case: Case) -> SearchSteps:
            tokens, steps = (20, 1) if case.question == "long" else (1, 10)
            branches = [root]
            for _ in range(steps):
                branches = yield Expand(branches, 1, Step(tokens), Sampling())
                yield Rate(branches)
            return list(branches)

    class Counting(Looks):
        def rate(self, branches: Any, questions: Any, backend: Any) -> list[list[float]]:
            sizes.append(len(branches))
            return super().rate(branches, questions, backend)

    solve(
        ByQuestion(),
        problem=["long", "short", "too"],
        engine=engine,
        verifier=Counting(digest),
        on_step=lambda event: order.append((event.problem.question, event.did)),
    )
    before = Counter(order[: order.index(("long", "expanded"))])
    for question in ("short", "too"):
        assert before[question, "expanded"] == before[question, "rated"] == 10
        assert before[question, "finished"] == 1
    assert sizes == [2] * 10 + [1]
    assert_nothing_left(engine, [])


# ---------------------------------------------------------------- room


class Batch(GenerateBatch):
    """A batch with room for so many tokens, or for a tenth as many states."""

    def __init__(self, room: float, states: bool = False):
        super().__init__(FakeBackend())
        self.room, self.states = room, states

    def fits(self, tokens: int, states: int) -> float:
        return self.room / (10 * states if self.states else tokens)


def test_the_first_problem_says_what_others_need() -> None:
    admission = ProblemAdmission(Batch(5_600), None, 64)
    assert (admission.count(0, 0), admission.count(0, 100), admission.count(1, 100)) == (0, 1, 0)
    admission.note_expansion(8, 100, 30)
    # 2,800 tokens hold 8 problems of 340 each
    assert (admission.count(1, 100), admission.count(1, 3)) == (7, 3)
    admission.note_expansion(16, 100, 30)
    assert admission.count(1, 100) == 3  # and 4 of 580; as many as there are rows for
    admission.batch.add([None] * 20, Step(5))  # type: ignore[list-item]
    assert admission.count(1, 100) == 2
    admission.batch.close()
    admission.note_expansion(4, 100, 30, kept=30)
    assert admission.count(1, 100) == 1  # 2 of 1,120
    admission.note_expansion(1000, 100, 1000)
    # one at a time, whatever it takes
    assert (admission.count(1, 100), admission.count(0, 100)) == (0, 1)


def test_states_count_along_the_prompt_and_twice_for_each_branch() -> None:
    admission = ProblemAdmission(Batch(10_000, states=True), None, None)
    admission.note_expansion(8, 1023, 30)
    assert admission.count(1, 100) == 28  # 500 states hold 29 problems of 1 + 2 * 8
    admission.note_expansion(8, 2048, 30, kept=8)
    assert admission.count(1, 100) == 13  # and 14 of 3 + 2 * 16


def test_until_a_problem_has_ended_only_a_few_begin() -> None:
    admission = ProblemAdmission.of(make_engine())
    admission.note_expansion(1, 10, 10)
    assert (admission.count(1, 100), admission.count(PROBLEMS, 100)) == (PROBLEMS - 1, 0)
    admission.note_end()
    assert admission.count(PROBLEMS, 1000) == MOST_ROWS
    admission = ProblemAdmission.of(make_engine(), None, 64)
    admission.note_expansion(1, 10, 10)
    assert admission.count(1, 100) == 64  # rows that are asked for are filled at once


def test_what_is_given_is_the_most() -> None:
    admission = ProblemAdmission(Batch(10.0), 3, None)
    admission.note_expansion(100, 100, 100)
    assert [admission.count(active, 9) for active in range(5)] == [3, 2, 1, 0, 0]
    engine, backend = make_engine(), FakeBackend()
    rows = [ProblemAdmission.of(engine, most, None).max_rows for most in (None, 4)]
    problems = [ProblemAdmission.of(backend, most, None).concurrency for most in (None, 4)]
    assert rows == [MOST_ROWS, None] and problems == [PROBLEMS, 4]


def test_memory_says_how_many_tokens_it_holds() -> None:
    def tokens(memory: Any) -> float:
        return make_engine(memory=memory).running_batch().fits(1, 5)

    assert tokens(Resident(1280 / 2**30)) == 10
    assert tokens(Paged(1280 / 2**30, host_budget_gib=2560 / 2**30)) == 20
    assert tokens(Resident()) == tokens(Paged(1280 / 2**30)) > 10**6
