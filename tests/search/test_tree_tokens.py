"""The tokens that a search's tree records."""

from __future__ import annotations

from typing import Any

import pytest

from search import (
    BeamSearch,
    BestOfN,
    BudgetForcing,
    DiversePrompts,
    Result,
    Revision,
    SelfRefine,
    solve,
)
from tests.helpers.engines import make_engine
from tests.helpers.scripted import Scores
from ttc.results import Node

PHRASINGS = ("Solve {question}", "Now solve {question}")
SEARCHES = [
    BestOfN(n=3, max_tokens=6),
    BeamSearch(beam_size=2, beam_width=2, step_tokens=3, max_steps=3),
    DiversePrompts(n=3, max_tokens=5, phrasings=PHRASINGS, hints=("So", "Well")),
    Revision(n=2, attempts=2, max_tokens=4, feedback="Again."),
    SelfRefine(attempts=2, max_tokens=4, feedback_tokens=3),
    BudgetForcing(waits=1, thinking_tokens=6, answer_tokens=4),
]


def sequence(result: Result, node: Node) -> tuple[list[int], list[float | None]]:
    """All tokens of a node and their log-probabilities, from what its ancestors record."""
    if node.parent is None:
        return node.token_ids, node.logprobs
    tokens, logprobs = sequence(result, result.tree[node.parent])
    return tokens[: node.start] + node.token_ids, logprobs[: node.start] + node.logprobs


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: type(search).__name__)
def test_the_nodes_on_a_branchs_path_hold_its_tokens(search: Any) -> None:
    engine = make_engine(context=220)
    result = solve(search, problem="1 + 2", engine=engine, verifier=Scores(lambda branch: 0.5))
    nodes = {tuple(node.path): node for node in result.tree}
    assert result.branches
    for branch in result.branches:
        tokens, logprobs = sequence(result, nodes[branch.path])
        assert tokens == branch.tokens and len(logprobs) == len(tokens)
        own = [None if value != value else value for value in branch.logprobs]
        assert logprobs[branch.prompt_length :] == own and any(value is not None for value in own)
    root = result.tree[0]
    assert root.start == 0 and root.logprobs == [None] * len(root.token_ids)
