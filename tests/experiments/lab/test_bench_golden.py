"""The golden set: texts, trees, scores and choices are those that were recorded.
`python -m experiments.bench golden` runs all of it, `--again` records it again, where a change of
results is meant."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from experiments.lab.bench import golden
from experiments.lab.bench.combinations.engines import MEMORIES
from experiments.lab.bench.combinations.models import REAL
from experiments.lab.bench.golden import SEARCHES

RECORD = golden.read()
FAST = ("llama", "beam_search")
CASES = [(model, search) for model, searches in RECORD["cases"].items() for search in searches]


def compared(model: str, search: str) -> dict[str, Any]:
    """One case of each search and model by turns: CI compares all of them."""
    cases = RECORD["cases"][model][search]
    if (model, search) == FAST:
        return dict(cases)
    turn = CASES.index((model, search)) % len(cases)
    name = [*cases][turn]
    return {name: cases[name]}


@pytest.mark.parametrize(
    ("model", "search"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (case != FAST)) for case in CASES],
)
def test_a_search_gives_what_was_recorded(model: str, search: str) -> None:
    record = RECORD | {"cases": {model: {search: compared(model, search)}}}
    assert golden.differences(record, model, search) == []


def test_a_difference_is_told() -> None:
    changed = deepcopy(RECORD)
    cases = changed["cases"][FAST[0]]
    cases["greedy"] = {"plain": cases["greedy"]["plain"]}
    place, _ = cases["greedy"]["plain"]
    changed["outcomes"][place][2][0][0] += 1e-3
    (told,) = golden.differences(changed, "llama", "greedy")
    assert told.startswith("llama greedy plain: ")


@pytest.mark.parametrize("model", golden.MODELS)
def test_every_search_meets_every_policy_and_feature_and_these_each_other(model: str) -> None:
    assert [*RECORD["cases"][model]] == SEARCHES
    met = set()
    for search in SEARCHES:
        of_search = golden.cases(model, search)
        assert of_search.keys() == golden.FEATURES.keys() == RECORD["cases"][model][search].keys()
        for feature, c in of_search.items():
            met |= {(search, c.memory), (feature, c.memory)}
    parts = [*SEARCHES, *golden.FEATURES]
    assert met == {(part, policy) for part in parts for policy in golden.POLICIES}


def test_the_default_model_meets_every_exact_policy() -> None:
    policies = {c.memory for search in SEARCHES for c in golden.cases(REAL, search).values()}
    assert policies == MEMORIES.keys()
