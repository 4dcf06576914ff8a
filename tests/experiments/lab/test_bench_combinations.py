"""Features drawn at random and used together: texts, trees, scores and choices are those of each
problem alone. `python -m experiments.bench combinations` draws more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.lab.bench.combinations import Combination, drawn, fewest, outcome

APART = 25


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=[pytest.mark.slow] * (n % APART > 0)) for n in range(200)]
)
def test_a_problem_has_its_own_result_in_any_combination(seed: int) -> None:
    c = drawn(seed)
    kind, why = outcome(c)
    assert kind != "failed", f"{why}: {c.settings()}"


def test_most_draws_are_not_refused() -> None:
    kinds = [outcome(replace(drawn(seed), model="llama")).kind for seed in range(0, 80, 16)]
    assert kinds.count("refused") <= 1


def test_a_failure_is_told_by_the_fewest_settings_that_it_needs() -> None:
    def fails(c: Combination) -> bool:
        return c.cache == "lru" and c.problems >= 3

    c = replace(drawn(3), cache="lru", problems=7, memory="paged")
    assert fewest(c, fails).settings() == {"cache": "lru", "problems": 3}
