"""Adaptive branching: its belief about scores, how it goes down the tree, and what it shows the
model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search import ABMCTS, Result, solve
from search.ab_mcts import PRIOR, AnswerNode
from tests.helpers.backends import FakeBackend
from tests.helpers.scripted import Scores, Scripted
from tests.helpers.tiers import examples
from ttc import Branch
from ttc.sampling import random_key

Path = tuple[int, ...]


def score_of(branch: Branch) -> float:
    return random_key("score", branch.text) % 101 / 100


def run(search: ABMCTS, backend: Any = None, **options: Any) -> Any:
    backend = backend or FakeBackend(longest=10_000)
    result = solve(search, problem="q", engine=backend, verifier=Scores(score_of), **options)
    assert result.error is None
    return result


def answers(result: Result) -> list[tuple[int | None, float]]:
    """Of every answer in order, the place of the answer that it refines, None for one from the
    root, and its score."""
    places: dict[int, int] = {}
    found: list[tuple[int | None, float]] = []
    for node in result.tree[1:]:
        assert node.parent is not None
        if node.score is None:  # the request for a better answer
            places[node.id] = places[node.parent]
        else:
            found.append((places.get(node.parent), node.score))
            places[node.id] = len(found) - 1
    return found


# ---------------------------------------------------------------- what is believed of scores


def test_the_belief_after_one_observation() -> None:
    belief = PRIOR.posterior([0.8])
    assert (belief.kappa, belief.nu) == (2, 2)
    assert belief.m == pytest.approx(0.4) and belief.tau2 == pytest.approx(0.21)
    assert PRIOR.posterior([]) == PRIOR
    assert (PRIOR.m, PRIOR.kappa, PRIOR.nu, PRIOR.tau2) == (0, 1, 1, 0.1)


# ---------------------------------------------------------------- going down and up


def test_a_reward_counts_at_the_node_and_at_all_above_it() -> None:
    top = AnswerNode(Branch([1], None, 0, None, str))  # type: ignore[arg-type]
    first = AnswerNode(top.branch, top)
    second = AnswerNode(top.branch, first)
    third = AnswerNode(top.branch, second)
    for node, reward in ((first, 0.5), (second, 0.7), (third, 0.9)):
        assert node.parent is not None
        node.parent.children.append(node)
        node.back_up(reward)
    assert (top.generated, top.continued) == ([0.5], [0.7, 0.9])
    assert (first.generated, first.continued) == ([0.7], [0.9])
    assert (first.rewards, second.rewards, third.rewards) == ([0.5, 0.7, 0.9], [0.7, 0.9], [0.9])


def reference(scores: Callable[[int], float], rng: np.random.Generator, n: int) -> list[int | None]:
    """The parent of each of n answers, in lists of scores kept by node; None is the root."""
    gen: dict[int | None, list[float]] = defaultdict(list)
    cont: dict[int | None, list[float]] = defaultdict(list)
    own: dict[int, list[float]] = defaultdict(list)
    kids: dict[int | None, list[int]] = defaultdict(list)
    parent: dict[int, int | None] = {}

    def draw(seen: list[float]) -> float:
        k, average = len(seen), sum(seen) / len(seen) if seen else 0.0
        kappa, nu = 1 + k, 1 + k
        tau2 = (0.1 + sum((x - average) ** 2 for x in seen) + k * average**2 / kappa) / nu
        sigma2 = (nu * tau2 / 2) / rng.gamma(nu / 2)
        return float(rng.normal(k * average / kappa, (sigma2 / kappa) ** 0.5))

    for new in range(n):
        at: int | None = None
        while kids[at]:
            if draw(gen[at]) >= draw(cont[at]):
                break
            draws = [draw(own[kid]) for kid in kids[at]]
            at = kids[at][draws.index(max(draws))]
        parent[new] = at
        kids[at].append(new)
        reward = scores(new)
        gen[at].append(reward)
        own[new].append(reward)
        while at is not None:
            own[at].append(reward)
            cont[parent[at]].append(reward)
            at = parent[at]
    return list(parent.values())


@settings(max_examples=examples(25))
@given(st.integers(0, 10**6), st.integers(1, 24))
def test_against_a_plain_reference(seed: int, n: int) -> None:
    result = run(ABMCTS(iterations=n, max_tokens=6, feedback="Again."), seed=seed)
    found = answers(result)
    rng = np.random.default_rng(random_key(random_key(seed, "q"), "search"))
    assert [parent for parent, _ in found] == reference(lambda i: found[i][1], rng, n)
    assert result.best.score == max(score for _, score in found)


def test_the_earliest_of_equally_good_answers_wins() -> None:
    search, verifier = ABMCTS(iterations=6, max_tokens=4), Scores(lambda branch: 0.5)
    result = solve(search, problem="q", engine=FakeBackend(), verifier=verifier)
    assert result.best is result.branches[0] and result.best.path == (0,)


# ---------------------------------------------------------------- the model


def test_a_refinement_sees_the_question_the_answer_and_the_feedback() -> None:
    result = run(ABMCTS(iterations=8, max_tokens=6, feedback="Again."))
    decode = FakeBackend().decode
    by_path = {b.path: b for b in result.branches}
    refined = [b for b in result.branches if b.path[:-2] in by_path and len(b.path) > 1]
    assert refined
    for branch in refined:
        before = by_path[branch.path[:-2]]
        answer = before.text.removesuffix("0") if before.finish_reason == "eos" else before.text
        prompt = decode(branch.tokens[: branch.prompt_length])
        assert prompt.endswith(f"\nAnswer:{answer}\n\nQuestion: Again.\nAnswer:")
        assert len(branch.text) <= 6  # its own answer alone is read and rated


def test_an_answer_with_no_room_for_a_refinement_is_not_refined() -> None:
    def depths(backend: FakeBackend) -> list[int]:
        found = run(ABMCTS(iterations=24, max_tokens=6, feedback="Again."), backend)
        assert not backend.live
        return [len(branch.path) // 2 for branch in found.branches]

    free, short = depths(FakeBackend(longest=10_000)), depths(FakeBackend(longest=145))
    assert len(free) == len(short) == 24 and max(free) > 1
    assert max(short) == 1  # the prompt, an answer, and a refinement


def test_each_answer_keeps_one_branch() -> None:
    backend = Scripted(lambda branch: f"{branch.key % 7}0", longest=10_000)
    run(ABMCTS(iterations=9, max_tokens=6, feedback="Again."), backend)
    # the root, the answers so far, and the next one
    assert [len(held) for held in backend.held] == [i + 2 for i in range(9)]


@pytest.mark.parametrize("score", [-0.1, 1.2])
def test_ratings_outside_the_range_stop_the_problem_with_a_reason(score: float) -> None:
    backend, verifier = FakeBackend(), Scores(lambda branch: score)
    (result,) = solve(ABMCTS(), problem=["q"], engine=backend, verifier=verifier)
    assert "rates in [0, 1]" in str(result.error) and not backend.live
