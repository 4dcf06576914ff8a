"""Depth-first search with pruning and backtracking, on trees with known scores."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search import MCTS, Case, Search, SearchSteps, TreeOfThoughts, Vary, solve
from tests.helpers.scripted import Path, RandomValues, Scores, Scripted, continued
from tests.helpers.tiers import examples
from ttc import Branch


def run(
    search: TreeOfThoughts, scores: dict[Path, float], ends: set[Path], **options: Any
) -> tuple[Any, Scripted]:
    """A tree whose steps are one letter each, a 0 where a branch ends."""
    backend = Scripted(lambda branch: "0" if branch.path in ends else "x")
    verifier = Scores(lambda branch: scores.get(branch.path, 0.0))
    result = solve(search, problem="q", engine=backend, verifier=verifier, **options)
    assert not backend.live and result.error is None
    return result, backend


def test_the_best_pruned_state_answers_where_nothing_else_is_left() -> None:
    scores = {(0,): 0.3, (1,): 0.4, (2,): 0.2}
    result, _ = run(TreeOfThoughts(beam_width=3, step_tokens=1, threshold=0.5), scores, set())
    assert [tuple(b.path) for b in result.branches] == [(1,)]
    assert [node.status for node in result.tree] == ["root", "pruned", "kept", "pruned"]


@pytest.mark.parametrize(("depth", "budget"), [(1, {}), (2, {"max_calls": 1})])
def test_what_has_finished_answers_before_what_is_better_and_has_not(
    depth: int, budget: dict[str, int]
) -> None:
    search = TreeOfThoughts(beam_width=2, step_tokens=1, max_depth=depth, threshold=0.5)
    result, _ = run(search, {(0,): 0.9, (1,): 0.7}, {(1,)}, **budget)
    assert [tuple(b.path) for b in result.branches] == [(1,)]


def reference(search: TreeOfThoughts, scores: Any, ends: Any) -> tuple[list[Path], list[Path]]:
    """Algorithm 2, with a budget of states: the states continued and the finished ones that were
    rated well enough."""
    order: list[Path] = []
    finished: list[Path] = []

    def dfs(state: Path) -> None:
        if state in ends:
            finished.append(state)
        elif len(state) < search.max_depth and len(order) < search.max_states:
            order.append(state)
            children = [(*state, i) for i in range(search.beam_width)]
            for child in sorted(children, key=lambda child: -scores[child]):
                if scores[child] > search.threshold:
                    dfs(child)

    dfs(())
    return order, finished


@settings(max_examples=examples(50))
@given(
    st.integers(0, 10**6),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 12),
    st.sampled_from([0.0, 0.3, 0.6]),
)
def test_against_the_recursive_algorithm(
    seed: int, width: int, depth: int, states: int, threshold: float
) -> None:
    sizes = {"beam_width": width, "max_depth": depth, "max_states": states}
    search = TreeOfThoughts(step_tokens=1, threshold=threshold, **sizes)
    values: Any = RandomValues(seed)
    result, backend = run(search, values, values, extract=lambda text: text)
    order, finished = reference(search, values, values)
    assert continued(result) == order
    if finished:
        best = max(finished, key=lambda path: values[path])
        assert {tuple(b.path) for b in result.branches} == set(finished)
        assert values[tuple(result.best.path)] == values[best]
    # what waits on the way down, and one more
    assert max(map(len, backend.held)) <= depth * (width - 1) + width + 2


def test_a_thought_that_is_cut_short_is_rated_as_it_is() -> None:
    """A step's length limit is no end of the branch: it goes on."""
    backend = Scripted(lambda branch: "xxxxx")
    search = TreeOfThoughts(beam_width=1, step_tokens=3, max_depth=2, threshold=0.0)
    result = solve(search, problem="q", engine=backend, verifier=Scores(lambda branch: 0.5))
    assert [node.tokens for node in result.tree] == [0, 3, 6]


@dataclass(frozen=True)
class Hinted(Search):
    """Another search, from a prompt of its own that is a child of the root."""

    inner: Search = field(default_factory=TreeOfThoughts)

    def run(self, root: Branch, case: Case) -> SearchSteps:
        (start,) = yield Vary(root, 1, hints=[" so"])
        return (yield from self.inner.run(start, case))


@pytest.mark.parametrize(
    "inner",
    [
        TreeOfThoughts(beam_width=1, max_depth=2, step_tokens=1, threshold=0.1),
        MCTS(iterations=4, beam_width=1, max_depth=2, step_tokens=1, rollout=False),
    ],
)
def test_depth_is_counted_from_where_the_search_begins(inner: Search) -> None:
    backend = Scripted(lambda branch: "x")
    verifier = Scores(lambda branch: 0.5)
    result = solve(Hinted(inner=inner), problem="q", engine=backend, verifier=verifier)
    assert [branch.text for branch in result.branches] == ["xx"] and not backend.live
