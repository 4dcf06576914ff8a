"""How many problems are under way: what branches write counts, not what they may."""

from __future__ import annotations

from typing import Any

import pytest

from search import BestOfN, Greedy, SelfConsistency, admission, solve
from search.admission import Demand, ProblemAdmission
from search.driver import Driver
from tests.helpers.drivers import add, driver_of, run
from tests.helpers.engines import make_engine
from tests.helpers.offloading import KIB
from tests.helpers.ownership import assert_nothing_left
from tests.helpers.tiers import some_quick
from ttc import Engine, Resident
from ttc.backend import TOGETHER_TOKENS
from ttc.memory import storage
from ttc.tree.segment import SNAPSHOT_TOKENS

LIMIT = 32_000
ENDS = ("a", "e", "i", "o", "u", "n", "s", "t", "r")
"""A random model writes one of these before long."""
TOKEN = KIB / 8
"""GiB of a token of the small models."""


class Asks:
    """Rates all branches of a problem at once by a pass of the model over them."""

    def rate(self, branches: Any, questions: Any, backend: Any) -> list[list[float]]:
        scores = backend.score(branches, [[[3, 4], [5]]] * len(branches)).result()
        return [[sum(first) + sum(second)] for first, second in scores]


def driver(engine: Engine, search: Any, problems: int, **options: Any) -> Driver:
    driving = driver_of(engine)
    for number in range(problems):
        add(driving, search, f"{number} + 1", **options)
    return driving


def test_a_limit_that_nobody_reaches_keeps_no_problem_waiting() -> None:
    engine = make_engine(context=2 * LIMIT, memory=Resident(40_000 * TOKEN))
    driving = driver(engine, BestOfN(n=4, max_tokens=LIMIT), 12, verifier=Asks(), end=ENDS)
    most, results = 0, dict[int, Any]()
    while driving.busy:
        results |= run(driving, 1)
        most = max(most, len(driving.active))
    assert most >= 8  # by their limits one alone would need 256,000 tokens
    assert len(results) == 12 and not any(result.error for result in results.values())
    assert_nothing_left(engine, [])


def test_a_problem_needs_its_prompt_and_a_step_for_each_branch_that_it_keeps_or_makes() -> None:
    engine = make_engine(context=256)
    root = engine.root(list(range(1, 11)))
    children = engine.fork(root, 2)
    engine.generate(children, [3, 6])
    problems = ProblemAdmission.of(engine)
    problems.note_step(children, 10, kept=1)  # 4.5 tokens each
    assert problems.demand == Demand(rows=2, tokens=10 + 3 * 5, states=1 + 2 * 3)
    engine.generate([root], 4)
    problems.note_step([root], 20)
    assert problems.demand == Demand(rows=2, tokens=25, states=7)
    problems.note_expansion(5, 2 * SNAPSHOT_TOKENS, 2 * TOGETHER_TOKENS, kept=1)
    tokens = 2 * SNAPSHOT_TOKENS + 6 * TOGETHER_TOKENS
    assert problems.demand == Demand(rows=5, tokens=tokens, states=3 + 2 * 6)


def test_64_branches_with_a_limit_of_32_000_tokens_begin_together() -> None:
    engine = make_engine(context=2 * LIMIT)
    driving = driver(engine, SelfConsistency(n=64, max_tokens=LIMIT), 1)
    most = 0
    for _ in range(8):
        list(driving.step())
        most = max(most, len(driving.admission.batch.rows))  # type: ignore[attr-defined]
    assert most == 64
    assert engine.memory.device.peak_bytes < 64 * 2 * storage.LEAST_TOKENS * 128
    driving.close()
    assert_nothing_left(engine, [])


@pytest.mark.parametrize("spare", some_quick([20, 60, 200], [20, 60]))
def test_what_was_thought_too_little_changes_no_result(
    spare: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps seem short when problems begin; then there is room for one branch alone, and for
    `spare` tokens more."""
    monkeypatch.setattr(admission, "TOGETHER_TOKENS", 3)
    monkeypatch.setattr(storage, "SHORT_STEP_TOKENS", 3)
    monkeypatch.setattr(storage, "LEAST_TOKENS", 2)
    problems = [f"{number} + 1" for number in range(5)]
    search = BestOfN(n=3, max_tokens=60)
    roomy = make_engine(context=256)
    tight = make_engine(context=256, memory=Resident((160 + spare) * TOKEN))
    expected, found = (
        solve(search, problem=problems, engine=engine, verifier=Asks(), seed=3)
        for engine in (roomy, tight)
    )
    for one, other in zip(expected, found, strict=True):
        assert other.error is None
        assert [b.tokens for b in other.branches] == [b.tokens for b in one.branches]
        assert [b.score for b in other.branches] == pytest.approx([b.score for b in one.branches])
        assert other.usage.generated_tokens == one.usage.generated_tokens
        assert other.usage.verifier_tokens == one.usage.verifier_tokens
    assert_nothing_left(tight, [])


def test_what_has_been_written_counts_for_those_who_begin_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "TOGETHER_TOKENS", 3)
    engine = make_engine(context=160, memory=Resident(700 * TOKEN))
    driving = driver(engine, Greedy(max_tokens=80), 6)
    counts = []
    while driving.busy:
        ended = driving.admission.ended
        list(driving.step())
        counts.append((ended, len(driving.active)))
    before = max(active for ended, active in counts if not ended)
    after = [active for ended, active in counts if ended >= before]
    assert before > 2 and all(active <= 2 for active in after)
