"""Tree rollouts: where the tree forks, and that there are always as many leaves as asked for."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search import TreeRollouts, solve
from tests.helpers.backends import FakeBackend
from tests.helpers.scripted import Scripted
from tests.helpers.tiers import examples
from ttc import InvalidInput
from ttc.results import Result


def rolled(written: dict[tuple[int, ...], str], **options: int) -> Result:
    """Steps are what `written` says of their paths, else "x,"; "0" ends a text."""
    backend = Scripted(lambda branch: written.get(branch.path, "x,"))
    search = TreeRollouts(**{"n": 8, "max_steps": 4, "step_tokens": 2, **options}, delimiter=",")
    result = solve(search, problem="q", engine=backend)
    assert result.error is None and not backend.live
    return result


def depths(result: Result) -> Counter[int]:
    return Counter(len(node.path) for node in result.tree if node.path)


def test_the_tree_forks_until_each_leaf_has_a_branch_of_its_own() -> None:
    assert depths(rolled({})) == {1: 2, 2: 4, 3: 8, 4: 8}
    assert depths(rolled({}, width=4)) == {1: 4, 2: 8, 3: 8, 4: 8}
    assert depths(rolled({}, width=3, n=7)) == {1: 3, 2: 7, 3: 7, 4: 7}
    # the last step gives each its leaves, even where these are more than width
    assert depths(rolled({}, max_steps=2)) == {1: 2, 2: 8}
    assert depths(rolled({}, max_steps=1)) == {1: 8}


def test_leaves_of_a_branch_that_ends_early_come_from_the_others() -> None:
    result = rolled({(0,): "x0"})
    # the first branch was to have four leaves and is one: its three others go to the second
    assert depths(result) == {1: 2, 2: 2, 3: 4, 4: 7}
    assert len(result.branches) == 8


def test_where_all_end_early_the_prompt_gives_the_rest() -> None:
    result = rolled({(i,): "x0" for i in range(9)})
    assert depths(result) == {1: 8} and len(result.branches) == 8


@settings(max_examples=examples(30))
@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 4), st.integers(0, 5))
def test_there_are_always_as_many_samples_as_asked_for(
    n: int, width: int, steps: int, seed: int
) -> None:
    backend = FakeBackend(letters="0123,")
    search = TreeRollouts(n=n, width=width, max_steps=steps, step_tokens=3, delimiter=",")
    result = solve(search, problem="q", engine=backend, seed=seed)
    assert len(result.branches) == n and not backend.live
    assert len({branch.path for branch in result.branches}) == n
    assert all(len(branch.path) == len(branch.step_ends) for branch in result.branches)


def test_a_width_of_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="width=0 must be at least 1"):
        TreeRollouts(width=0)
