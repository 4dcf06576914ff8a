"""How the branches ended that a search let go of is counted, whatever the search."""

from __future__ import annotations

from typing import Any

import pytest

from search import BeamSearch, PhiDecoding, Result, Revision, Search, SelfRefine, solve
from tests.helpers.searches import Costly, RandomTree, all_searches
from tests.helpers.thinking import OPENING, Thinking, circling, thinker
from ttc import Engine
from ttc.text.prompt import PromptTemplate

R1 = thinker(OPENING, plain=("<think>", "</think>"))
ASKED = PromptTemplate("{question}")
TURNS = (Revision, SelfRefine)
"""Searches that ask on after answers."""


def solved(search: Search, backend: Any, **options: Any) -> Result:
    verifier = Costly(1) if search.needs_verifier else None
    result: Result = solve(search, problem="q", engine=backend, verifier=verifier, **options)
    assert result.error is None
    return result


def leaves(result: Result) -> list[Any]:
    """The nodes of branches that nothing continues and that are no candidates."""
    final = {branch.path for branch in result.branches}
    parents = {node.parent for node in result.tree}
    wrote = [node for node in result.tree if node.parent is not None and node.tokens]
    return [node for node in wrote if node.id not in parents and tuple(node.path) not in final]


@pytest.mark.few(8)
@pytest.mark.parametrize("search", all_searches(), ids=lambda s: type(s).__name__)
def test_every_branch_counts_once(search: Search) -> None:
    for seed in range(3):
        result = solved(search, RandomTree(longest=300), seed=seed, template=ASKED)
        counted = result.pruned.get("count", 0)
        if isinstance(search, TURNS):  # answers that the user's next words follow count, too
            assert counted >= len(leaves(result))
        else:
            assert counted == len(leaves(result)), result.pruned
        assert all(0 < n <= counted for n in result.pruned.values())
        assert Result.from_dict(result.to_dict()).pruned == result.pruned


@pytest.mark.few(5)
@pytest.mark.parametrize(
    "search",
    all_searches(thinking_tokens=90, max_tokens=90, step_tokens=90, rollout_tokens=90),
    ids=lambda s: type(s).__name__,
)
def test_where_all_thoughts_loop_all_branches_are_counted_as_looped(search: Search) -> None:
    result = solved(search, Engine(circling("abcdefghijk", R1), R1), template=ASKED)
    counted = result.pruned.get("count", 0)
    assert result.pruned.get("looped", 0) == counted
    assert counted > 0 or not isinstance(search, BeamSearch | PhiDecoding | Revision | SelfRefine)


@pytest.mark.parametrize("extract", [None, lambda said: int(said) and said])
def test_what_is_wrong_with_a_pruned_branch_is_counted(extract: Any) -> None:
    """Also where a reader of the user's fails at it."""
    said = ["so,</think>7", "so</think>none", "so", "o" * 90, "so</think>9"]
    search = BeamSearch(beam_size=1, beam_width=5, max_steps=1, step_tokens=8, thinking_tokens=12)
    result = solved(search, Thinking(said, R1), template=ASKED, extract=extract)
    assert result.answer == "7"
    assert result.pruned == {
        "count": 4, "early": 1,
        "no_answer_read": 2, "thoughts_cut": 1, "thoughts_closed_by_limit": 1,
    }  # fmt: skip


def test_a_pruned_branch_that_loops_in_its_answer_has_no_end() -> None:
    search = BeamSearch(beam_size=1, beam_width=4, max_steps=1, step_tokens=200)
    result = solved(search, Engine(circling("abcdefghijk", R1, ""), R1), template=ASKED)
    assert result.pruned["without_an_end"] == result.pruned["no_answer_read"] == 3
