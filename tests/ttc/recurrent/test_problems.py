"""Many problems of a model with recurrent layers: as many at once as there is room for their
states."""

from __future__ import annotations

from typing import Any

import pytest

from search import BeamSearch, Search, SelfConsistency, solve
from tests.helpers.ownership import assert_nothing_left
from tests.helpers.recurrent import engine_of
from tests.helpers.tiers import some_quick
from tests.search.test_never_draining import Looks, digest, seen
from ttc import BeamGroups, Engine, OutOfMemory, Resident, Result

MODELS = ["qwen3_5_text", "mamba2"]
SEARCHES: list[Search] = [
    SelfConsistency(n=3, max_tokens=4),
    BeamSearch(beam_size=2, beam_width=2, step_tokens=2, max_steps=2),
]
QUESTIONS = [f"{n} + {n}" for n in range(10, 17)]
MOST_TOKENS = 50
"""More than a problem has, in all of its branches and their tails."""


def solved(search: Search, engine: Engine, **options: Any) -> list[Result]:
    verifier = Looks(digest) if search.needs_verifier else None
    return solve(search, problem=QUESTIONS, engine=engine, verifier=verifier, **options)


def budget(case: str, states: int, tokens: int) -> float:
    """GiB for so many states and tokens."""
    memory = engine_of(case).memory
    return (states * memory.states.nbytes + tokens * memory.bytes_per_token) / 2**30


def counted(engine: Engine) -> list[int]:
    """How many problems were under way, each time that some began."""
    counts, make_roots = list[int](), engine.roots

    def watched(*args: Any, **kwargs: Any) -> Any:
        begun = make_roots(*args, **kwargs)
        counts.append(len({branch.root_id for branch in {*engine.live, *begun.branches}}))
        return begun

    engine.roots = watched  # type: ignore[method-assign]
    return counts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "search", "policy"),
    [(MODELS[0], SEARCHES[1], Resident), (MODELS[1], SEARCHES[0], BeamGroups)],
)
def test_a_budget_with_room_for_few_states_gives_the_results_of_one_problem_at_a_time(
    case: str, search: Search, policy: type[Any]
) -> None:
    expected = [seen(result) for result in solved(search, engine_of(case), concurrency=1)]
    engine = engine_of(case, memory=policy(budget(case, 40, 4 * MOST_TOKENS)))
    under_way = counted(engine)
    assert [seen(result) for result in solved(search, engine)] == expected
    device = engine.memory.device
    assert device.budget_bytes is not None and device.peak_bytes <= device.budget_bytes
    assert max(under_way) > 1
    assert_nothing_left(engine, [])


@pytest.mark.parametrize("case", some_quick(MODELS, MODELS[:1]))
def test_too_little_for_one_branch_is_refused_with_the_budget_that_would_do(case: str) -> None:
    search = SEARCHES[0]
    expected = [seen(result) for result in solved(search, engine_of(case), concurrency=1)]
    needed = budget(case, 2, 0) * 2**30
    found, refusals = None, 0
    while found is None and refusals < 4:  # the prompt and a branch each have their limit
        engine = engine_of(case, memory=Resident(needed / 2**30))
        try:
            found = [seen(result) for result in solved(search, engine)]
        except OutOfMemory as error:
            refusals += 1
            assert_nothing_left(engine, [])
            words = str(error).partition("a budget of ")[2].partition(" bytes")[0]
            assert int(words.replace(",", "")) > needed
            needed = int(words.replace(",", ""))
    assert refusals > 0 and found == expected
    assert engine.memory.device.peak_bytes <= needed
    assert_nothing_left(engine, [])
