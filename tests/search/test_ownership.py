"""Whatever ends a search on an engine, its pool of keys and values is empty afterwards, and no
budget is passed."""

from __future__ import annotations

from functools import cache
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search import BeamSearch, Search, solve, stream
from tests.helpers.engines import at_pass, make_engine
from tests.helpers.ownership import Cancelled, assert_nothing_left
from tests.helpers.searches import all_searches
from tests.helpers.tiers import examples
from ttc import BeamGroups, BlockCache, DecodeGate, Engine, Headwise, Layerwise, Paged

SEARCHES = all_searches(
    **dict.fromkeys(("n", "max_steps", "max_depth", "max_states", "iterations"), 3),
    **{"max_tokens": 4, "beam_width": 2, "step_tokens": 2},
)
BUDGET = 90_000 / 2**30
ENGINES: list[dict[str, Any]] = [
    {},
    {"gate": DecodeGate(theta=0.0, r_gap=0.05, min_tokens=2)},
    {"cache": BlockCache(2)},
    *({"memory": policy(BUDGET, block_tokens=8)} for policy in (BeamGroups, Paged, Layerwise)),
    {"memory": Headwise(BUDGET)},
]


@cache
def engine_of(kind: int) -> Engine:
    return make_engine(context=160, **ENGINES[kind])


class Trouble:
    """Raises at the call that it is told, from the model, the verifier or whoever watches."""

    def __init__(self, at: int | None, error: type[BaseException]):
        self.at, self.error, self.calls = at, error, count(1)

    def __call__(self, *_: Any) -> None:
        if next(self.calls) == self.at:
            raise self.error("stop")

    def rate(self, branches: Any, questions: Any, backend: Any) -> list[list[float]]:
        self()
        return [[1 - 1 / (1 + sum(branch.generated))] for branch in branches]


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(
    search=st.sampled_from(SEARCHES),
    kind=st.integers(0, len(ENGINES) - 1),
    where=st.sampled_from(["nowhere", "model", "verifier", "watcher"]),
    at=st.integers(1, 8),
    error=st.sampled_from([Cancelled, RuntimeError]),
    budget=st.one_of(st.none(), st.integers(2, 40)),
    reserve=st.integers(0, 4),
)
def test_nothing_is_left_on_the_engine(
    search: Search,
    kind: int,
    where: str,
    at: int,
    error: type[BaseException],
    budget: int | None,
    reserve: int,
) -> None:
    engine = engine_of(kind)
    verifier = Trouble(at if where == "verifier" else None, error)
    options: dict[str, Any] = {"verifier": verifier} if search.needs_verifier else {}
    if budget is not None:
        options |= {"max_tokens": budget, "reserve": min(reserve, budget - 1)}
    if where == "watcher":
        options["on_step"] = Trouble(at, error)
    problems, broken = ["1 + 1", "2 + 3", "7"], Trouble(1, error)
    try:
        with at_pass(engine, at if where == "model" else 0, broken):
            results = solve(search, problem=problems, engine=engine, concurrency=2, **options)
        for result in results:
            spent = result.usage.generated_tokens + result.usage.verifier_tokens
            assert budget is None or spent <= budget
            assert (result.error is None) or where == "verifier"
    except (Cancelled, RuntimeError):
        assert where != "nowhere"
    assert_nothing_left(engine, [])


@pytest.mark.parametrize("read", [1, 2, 3, 4])
def test_a_stream_that_is_left_frees_the_engine(read: int) -> None:
    engine, beams = engine_of(0), BeamSearch(beam_size=2, beam_width=2, step_tokens=2, max_steps=3)
    events = stream(beams, problem="1 + 1", engine=engine, verifier=Trouble(None, Cancelled))
    for _ in range(read):
        next(events)
    assert engine.kv_bytes() > 0
    events.close()  # type: ignore[attr-defined]
    assert_nothing_left(engine, [])
