"""Calls in templates' own syntaxes, beside all that an engine can be asked for at the same time:
texts, calls and counts are those of each problem alone."""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pytest

from search import (
    BeamSearch,
    BestOfN,
    BudgetForcing,
    DeepConf,
    Greedy,
    Search,
    SelfConsistency,
    solve,
)
from search.admission import ProblemAdmission
from search.config import SearchConfig
from search.driver import Driver
from search.options import SolveOptions
from tests.helpers import searches
from tests.helpers.call_syntaxes import CALLS
from tests.helpers.calling import WEATHER, caller
from tests.helpers.drivers import run
from tests.helpers.parts import installed
from tests.helpers.searches import Costly, exactly
from tests.helpers.thinking import Thinking
from ttc import (
    BeamGroups,
    BlockCache,
    Capture,
    Engine,
    Headwise,
    Layerwise,
    Paged,
    Problem,
    Resident,
    Result,
    Sharing,
    Tool,
)
from ttc.model.runner_choice import runner_for
from ttc.tools.base import Tools

MEMORIES: Any = (Resident, BeamGroups, Paged, Headwise, Layerwise, Capture)
LIMIT: Any = {"thinking_tokens": 14}
STEPS: Any = {"step_tokens": 9, "max_steps": 6, "delimiter": ", "}
SEARCHES: dict[str, Search] = {
    "greedy": Greedy(max_tokens=50, **LIMIT),
    "samples": SelfConsistency(n=3, max_tokens=50, **LIMIT),
    "without a limit": SelfConsistency(n=3, max_tokens=50, thinking_tokens=None),
    "tiny thoughts": SelfConsistency(n=3, max_tokens=40, thinking_tokens=3),
    "best of 3": BestOfN(n=3, max_tokens=50, **LIMIT),
    "beams": BeamSearch(beam_size=2, beam_width=2, **STEPS, **LIMIT),
    "thinking steps": BeamSearch(beam_size=2, beam_width=2, thinking_step=4, **STEPS, **LIMIT),
    "forced": BudgetForcing(waits=1, thinking_tokens=20, answer_tokens=40),
    "confident": DeepConf(mode="online", n=5, max_tokens=40, window=4, warmup=2, block=2, **LIMIT),
}


@dataclass(frozen=True)
class Asked:
    """What is solved. opens, special, cuts: see `caller`. left: calls are the caller's to make.
    parallel: see `Tools`."""

    syntax: str
    search: str
    opens: bool
    special: bool
    cuts: int
    left: bool
    seed: int
    problems: int
    parallel: bool = True


@dataclass(frozen=True)
class Beside:
    """What it is solved with. budget: of KV, in multiples of the most that a problem takes alone.
    cancelled: a problem that is let go of after `at_step` steps of the driver."""

    memory: Any = Resident
    budget: float | None = None
    order: str | None = None
    capacity: int = 1
    drafts: str | None = None
    shared: str = "exact"
    concurrency: int | None = None
    max_rows: int | None = None
    prefill_tokens: int = 512
    cancelled: int | None = None
    at_step: int = 0


def asked(seed: int) -> Asked:
    r = random.Random(seed)
    return Asked(
        syntax=sorted(CALLS)[seed % len(CALLS)],
        search=[*SEARCHES][seed % len(SEARCHES)],
        opens=r.random() < 0.5,
        special=r.random() < 0.3,
        cuts=r.choice([0, 1, 2, 3]),
        left=r.random() < 0.2,
        seed=seed,
        problems=r.choice([1, 2, 3]),
        parallel=r.random() < 0.5,
    )


def beside(seed: int, problems: int) -> Beside:
    r = random.Random(f"beside {seed}")
    return Beside(
        memory=MEMORIES[seed // len(SEARCHES) % len(MEMORIES)],
        budget=r.choice([None, 1.0, 1.2, 1.6]),
        order=r.choice([None, "rsbcm", "lru"]),
        capacity=r.choice([1, 2, 4, 20]),
        drafts=r.choice([None, None, *(name for name in DRAFTS if installed("speculation", name))]),
        shared=r.choice(["exact", "exact", "none"]),
        concurrency=r.choice([None, None, 1, 2]),
        max_rows=r.choice([None, None, 2, 5]),
        prefill_tokens=r.choice([40, 512]),
        cancelled=r.choice([None, None, *range(problems)]),
        at_step=r.randint(0, 60),
    )


DRAFTS = ("prompt_lookup", "draft_model")


@lru_cache(maxsize=1)
def checked(*asked: Any) -> tuple[Any, Any]:
    """A caller's tokenizer and what runs its model in one engine after the other."""
    own, model = caller(*asked)
    return own, runner_for(model)


def engine_of(a: Asked, b: Beside, budget_gib: float | None) -> Engine:
    asked = a.syntax, a.opens, a.special, a.cuts
    own, runner = checked(*asked)
    options: dict[str, Any] = {}
    if b.order is not None:
        options["cache"] = BlockCache(b.capacity, block_tokens=4, order=b.order)
    for drafts in installed("speculation", b.drafts or "none"):
        beside: Any = {"model": Engine(caller(*asked)[1], own)} if b.drafts == "draft_model" else {}
        options["speculation"] = drafts(max_rows=16, **beside)
    sizes: Any = {} if b.memory is Resident else {"block_tokens": 16}
    return Engine(
        runner.model,
        own,
        runner=runner,
        memory=b.memory(budget_gib, **sizes),
        sharing=Sharing(b.shared),
        prefill_tokens=b.prefill_tokens,
        **options,
    )


def look(city: str, days: int) -> str:
    if city == "Bern":
        raise KeyError(city)
    return f"{city}: {days} dry" + "\nand wet" * (days == 4)


def results(a: Asked, b: Beside, engine: Engine, problems: list[str]) -> dict[str, Result]:
    """Of the problems that were not cancelled."""
    search = SEARCHES[a.search]
    tool = Tool(WEATHER, None if a.left else look)
    tools = Tools([tool], calls_per_branch=3, parallel=a.parallel)
    verifier = Costly(1) if search.needs_verifier else None
    options = SolveOptions.of(tools=tools, seed=a.seed, verifier=verifier)
    config = SearchConfig.of(search, engine, options)
    driver = Driver(engine, ProblemAdmission.of(engine, b.concurrency, b.max_rows))
    names = {driver.add(Problem(problem, problem), config): problem for problem in problems}
    found: dict[str, Result] = {}
    step = 0
    try:
        while driver.busy:
            if step == b.at_step and b.cancelled is not None:
                driver.cancel(b.cancelled)
            found |= {names[number]: result for number, result in run(driver, 1).items()}
            step += 1
    finally:
        driver.close()
    return found


def seen(result: Result) -> Any:
    branches = [
        (x.tokens, x.step_ends, x.step_reasons, x.tool_calls, x.answer_text, x.thought)
        for x in result.branches
    ]
    closed = [(x.thinking_tokens, x.thought_closed) for x in result.branches]
    counts = result.usage.thinking_tokens, result.usage.tool_calls
    return searches.seen(result), branches, closed, exactly(result.tree), counts


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [n + n % 2 * len(CALLS) for n in range(len(CALLS))])
def test_calls_are_those_of_each_problem_alone(seed: int) -> None:
    """Each syntax once, and each search under several policies."""
    a = asked(seed)
    problems = ["Rome?", "Where is it dry for 4 days?", "Oslo or Kyiv?"][: a.problems]
    alone: dict[str, Any] = {}
    most = 0
    for problem in problems:
        engine = engine_of(a, Beside(), None)
        alone[problem] = seen(results(a, Beside(), engine, [problem])[problem])
        most = max(most, engine.memory.device.peak_bytes)
    b = beside(seed, a.problems)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = engine_of(a, b, None if b.budget is None else b.budget * most / 2**30)
        found = results(a, b, engine, problems)
    assert not engine.kv_bytes(), (a, b)
    left_out = set() if b.cancelled is None else {problems[b.cancelled]}
    assert set(problems) - left_out <= set(found)
    for problem, result in found.items():
        if result.stopped != "cancelled":
            assert seen(result) == alone[problem], (a, b, problem)


@pytest.mark.few(2)
@pytest.mark.parametrize("syntax", CALLS)
def test_without_parallel_calls_a_turn_has_the_first_and_is_else_the_same(syntax: str) -> None:
    left = Asked(syntax, "samples", False, False, 0, True, 0, 1)
    counts, left_out = set(), 0
    for seed in range(5):
        pair = []
        for parallel in (True, False):
            a = replace(left, seed=seed, parallel=parallel)
            found = results(a, Beside(), engine_of(a, Beside(), None), ["Rome?"])
            pair.append(sorted(found["Rome?"].branches, key=lambda branch: branch.path))
        for together, alone in zip(*pair, strict=True):
            assert alone.tokens == together.tokens[: len(alone.tokens)]
            left_out += len(together.tokens) - len(alone.tokens)
            calls = [call.key for call in together.tool_calls]
            counts.add(len(calls))
            if calls:  # none also of those that were cut off, or called too often
                assert [call.key for call in alone.tool_calls] == calls[:1]
                assert alone.answer_text == together.answer_text
    assert {0, 2} <= counts and (left_out > 0 or syntax != "json")


def test_the_end_of_a_call_within_a_call_ends_nothing() -> None:
    """Where a turn ends with its first call, so that ends of calls are looked for."""
    own, _ = caller("json")
    asked_for = list[str]()
    tool = Tool(WEATHER, lambda city, days: asked_for.append(city) or "dry")
    arguments = '{"city": "a</tool_call>b", "days": 4}'
    call = f'<tool_call>\n{{"name": "weather", "arguments": {arguments}}}\n</tool_call>'
    backend = Thinking(lambda branch: "It is dry." if branch.tool_calls else call, own)
    tools = Tools([tool], parallel=False)
    result = solve(SelfConsistency(n=1, max_tokens=200), problem="q", engine=backend, tools=tools)
    (branch,) = result.branches
    assert asked_for == ["a</tool_call>b"] and branch.answer_text == "It is dry."
