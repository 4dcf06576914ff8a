"""Features drawn at random and used together: texts, trees, scores and choices are those of each
problem alone. `python -m experiments.bench combinations` draws more."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from itertools import combinations
from typing import Any

import pytest

from experiments.lab.bench.combinations.combination import Combination
from experiments.lab.bench.combinations.comparing import Outcome, alike, begins, outcome
from experiments.lab.bench.combinations.drawing import DRAWS, FIXED, drawn
from experiments.lab.bench.combinations.engines import engine_of, second_of
from experiments.lab.bench.combinations.letters import problems_of
from experiments.lab.bench.combinations.running import results
from experiments.lab.bench.combinations.shrinking import fewest
from search import Result

APART = 25


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=[pytest.mark.slow] * (n % APART > 0)) for n in range(FIXED + 40)]
)
def test_a_problem_has_its_own_result_in_any_combination(seed: int) -> None:
    c = drawn(seed)
    kind, why = outcome(c)
    assert kind != "failed", f"{why}: {c.settings()}"


GROUPS: dict[str, Any] = {"memory": "unshared_groups", "problems": 3}
FOUND: list[dict[str, Any]] = [
    {"search": "ab_mcts_m", "verifier": "reward", "context": 0},
    GROUPS | {"budget": 3.0, "placement": "split_layer"},
    GROUPS
    | {"search": "deep_conf", "problems": 5, "prompt_tokens": 36, "budget": 1.6}
    | {"block_tokens": 16, "prefetch": False, "concurrency": 2, "prefill_tokens": 64},
    *(
        GROUPS
        | {"model": model, "search": "particle_filter", "verifier": "at_once"}
        | {"budget": 1.6, "block_tokens": 4, "max_rows": 9}
        for model in ("gemma3", "mistral")
    ),
    *(
        {"model": model, "search": "beam_search", "verifier": "at_once"} | words
        for model in ("lfm2", "jamba", "mamba2")
        for words in ({"thinking": 0}, {"tools": "inline"})
    ),
    {"seed": 7, "cancelled": 0, "ended_by": "event", "at_step": 6},
    *(
        {"seed": 2, "model": model, "search": "best_of_n", "verifier": "at_once", "chats": True}
        | {"thinking": 2, "problems": 2, "prompt_tokens": 20, "sharing": "none", "budget": budget}
        for model, budget in (("lfm2", 1.3), ("jamba", 1.1), ("mamba2", 1.1))
    ),
    *(
        {"seed": 250897, "model": "gpt2", "search": "dvts", "verifier": verifier, "problems": 3}
        | {"prompt_tokens": 3, "changed": 2}
        for verifier in ("fails", "pass_by_pass")
    ),
    {"seed": 250932, "model": "mistral", "search": "deep_conf", "verifier": "fails", "problems": 2}
    | {"prompt_tokens": 3, "context": 8, "beside": "rebase", "thinking": 5, "budget": 1.3}
    | {"callers": 2},
    {"search": "best_of_n", "verifier": "leaves_early", "budget": 1.1, "visits": 2},
    {"seed": 312533, "verifier": "pass_by_pass", "problems": 5, "beside": "mcts", "visits": 5}
    | {"memory": "paged", "budget": 3.0, "another": "weights"},
]
"""What draws have found wrong, with siblings."""


@pytest.mark.slow
@pytest.mark.parametrize("settings", FOUND, ids=str)
def test_what_was_wrong_stays_mended(settings: dict[str, Any]) -> None:
    kind, why = outcome(Combination(**settings))
    assert kind == "same", why


def test_each_setting_is_drawn_beside_each_other_one() -> None:
    every = Counter[tuple[str, ...]]()
    for seed in range(0, 2000 * DRAWS, DRAWS):
        every.update(combinations(sorted(drawn(seed).settings()), 2))
    names = sorted({field.name for field in fields(Combination)})
    refused = {("grammar", "tools"), ("grammar", "writers"), ("tools", "writers")}
    refused |= {("gate", "thinking"), ("gate", "tools")}  # part by part a gate compares others
    assert all(every[pair] >= 10 for pair in {*combinations(names, 2)} - refused)


@pytest.mark.parametrize(
    "other, same",
    [
        ((1, [0.5 + 1e-10, "a"]), True),
        ((1, [0.5 + 1e-8, "a"]), False),
        ((1, [0.5]), False),
        ((2, [0.5, "a"]), False),
        ((1, [0.5, "b"]), False),
        ((1, [None, "a"]), False),
    ],
)
def test_results_are_the_same_but_for_rounding(other: Any, same: bool) -> None:
    assert alike((1, [0.5, "a"]), other, 1e-9) == same


def solved(c: Combination) -> dict[str, Result]:
    second = second_of(c)
    return dict(results(c, engine_of(c, None, None, second), problems_of(c), second))


WRITERS = Combination(search="ab_mcts_m", verifier="elsewhere", writers=True, chats=True)


def test_a_draw_of_two_models_and_a_conversation_has_both() -> None:
    c = replace(WRITERS, problems=4, spends="tokens_reserve", alternatives=2)
    found = solved(c)
    assert [len(found[f"0-{n}"].problem.messages or ()) for n in range(4)] == [1, 2, 3, 4]
    used = [result.usage_by_model for result in found.values()]
    assert all(len(by_model) == 2 for by_model in used if by_model) and any(used)
    assert {result.stopped for result in found.values()} == {"max_tokens"}
    assert all(result.usage.verifier_tokens for result in found.values())
    assert all(branch.alternatives for result in found.values() for branch in result.branches)


@pytest.mark.parametrize(("ended_by", "stopped"), [("event", "cancelled"), ("time", "max_wall_s")])
def test_a_problem_that_is_broken_off_has_a_beginning_of_its_result(
    ended_by: Any, stopped: str
) -> None:
    c = replace(WRITERS, problems=2, cancelled=1, ended_by=ended_by, at_step=20)
    assert outcome(c) == Outcome("same")
    whole, part = solved(c.plain)["0-1"], solved(c)["0-1"]
    assert part.stopped == stopped and 1 < len(part.tree) < len(whole.tree)
    assert begins(part, whole) and not begins(whole, part)
    part.tree[-1].token_ids[-1] += 1
    assert not begins(part, whole)


@pytest.mark.slow
def test_most_draws_are_not_refused() -> None:
    kinds = [outcome(drawn(seed)).kind for seed in range(0, 8 * DRAWS, DRAWS)]
    assert kinds.count("refused") <= 1


def test_a_failure_is_told_by_the_fewest_settings_that_it_needs() -> None:
    def fails(c: Combination) -> bool:
        return c.cache == "lru" and c.problems >= 3

    c = replace(drawn(3), cache="lru", problems=7, memory="paged")
    assert fewest(c, fails).settings() == {"cache": "lru", "problems": 3}
