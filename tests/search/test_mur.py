"""MUR against the authors' rule: which steps are tried again, and which one goes on."""

from __future__ import annotations

from math import exp
from statistics import fmean
from typing import Any

import pytest

from search import MUR, solve
from tests.helpers.backends import Unsure
from tests.helpers.scripted import Scores
from ttc import Branch
from ttc.results import Node
from ttc.sampling import random_key


def score(branch: Branch) -> float:
    return random_key(branch.text) % 1000 / 1000


def check(result: Any, search: MUR) -> int:
    """Walk the chain as the authors' program does. Returns how many of its steps were tried
    again."""
    children: dict[int | None, list[Node]] = {}
    for node in result.tree:
        children.setdefault(node.parent, []).append(node)
    (node,) = children[None]
    momentum, again = 0.0, 0
    for number in range(search.max_steps):
        if node.id not in children:
            break
        first, *others = children[node.id]
        current = fmean(value for value in first.logprobs if value is not None)
        if number and exp(current) < exp(momentum) * search.scaling_rate:
            again += 1
            assert len(others) == search.beam_width
            node = max(others, key=lambda other: other.score or 0.0)
            current = fmean(value for value in node.logprobs if value is not None)
        else:
            assert not others
            node = first
        momentum = search.momentum_rate * momentum + (1 - search.momentum_rate) * current
    if node.id in children:
        (node,) = children[node.id]  # the rest of the answer
        assert len(node.token_ids) <= search.finish_tokens
    assert list(result.best.path) == node.path
    return again


@pytest.mark.parametrize("seed", range(8))
def test_only_steps_of_high_uncertainty_are_tried_again(seed: int) -> None:
    backend = Unsure("123456789,,,0")
    search = MUR(step_tokens=3, max_steps=6, beam_width=3, finish_tokens=5, delimiter=",")
    result = solve(search, problem="q", engine=backend, verifier=Scores(score), seed=seed)
    assert result.error is None and not backend.live
    check(result, search)


def test_the_rate_decides_how_many_are() -> None:
    counts = []
    for rate in (0.1, 0.8, 50.0):
        backend = Unsure("123456789")
        search = MUR(step_tokens=3, max_steps=6, beam_width=2, finish_tokens=5, scaling_rate=rate)
        result = solve(search, problem="q", engine=backend, verifier=Scores(score))
        counts.append(check(result, search))
    assert counts[0] == 0 < counts[1] <= counts[2] == 5
