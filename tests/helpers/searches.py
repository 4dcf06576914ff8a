"""Every search of this project, small enough for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import Any

from experiments.runs.schema import SEARCHES
from search import BestOfN, Result, Search, SelfConsistency
from tests.helpers.backends import FakeBackend
from ttc.branch import Branch
from ttc.results import Node
from ttc.sampling import SAMPLED, Sampling, random_key

SMALL: dict[str, Any] = {
    **{
        "n": 4,
        "attempts": 3,
        "iterations": 4,
        "beam_size": 2,
        "subtrees": 2,
        "beam_width": 3,
        "finish": 3,
        "block": 2,
    },
    **{"step_tokens": 3, "max_steps": 5, "max_depth": 4, "max_states": 6, "memory": 1},
    **{
        "max_tokens": 9,
        "rollout_tokens": 7,
        "thinking_tokens": 15,
        "answer_tokens": 4,
        "feedback_tokens": 4,
    },
    **{
        "edges": (0.2,),
        "strategies": (BestOfN(n=3, max_tokens=5), SelfConsistency(n=2, max_tokens=5)),
    },
    **{"k": 2, "words": "?"},
    **{"delimiter": ",", "end_of_thinking": ",", "feedback": "Ok?", "rewrite": "!"},
}
"""Settings of whatever search has them."""

MORE: dict[str, list[dict[str, Any]]] = {
    "aggregate": [{"mode": "select"}, {"answer": "best", "m": 2, "shown": 4}],
    "beam_search": [
        {"lookahead": 2},
        {"verify_every": 2},
        {"finish_tokens": 9},
    ],
    "budget_forcing": [{"end_of_thinking": ""}],
    "dvts": [{"lookahead": 1, "verify_every": 2}],
    "mcts": [{"rollout": False, "rule": "puct", "answer": "most_visited"}],
    "particle_filter": [{"resampling": "systematic", "ess_threshold": 0.5}],
    "self_consistency": [{"weighted": True}],
    "tree_of_thoughts": [{"threshold": 0.1}],
}
"""Variants of searches that go other ways through their code."""


def small(name: str, sizes: Mapping[str, int], **settings: Any) -> Search:
    """A search of the configuration's by its name, with a few short steps."""
    known = {field.name: field for field in fields(SEARCHES[name])}
    chosen: dict[str, Any] = {
        field: value for field, value in {**SMALL, **sizes}.items() if field in known
    }
    chosen |= settings
    missing = [
        n
        for n, f in known.items()
        if f.default is MISSING and f.default_factory is MISSING and n not in chosen
    ]
    assert not missing, f"give {name} small values for {missing} in tests/helpers/searches.py"
    return SEARCHES[name](**chosen)


def all_searches(**sizes: int) -> list[Search]:
    """One of each search, and its variants. sizes: in the place of those in `SMALL`."""
    return [
        small(name, sizes, **settings)
        for name in SEARCHES
        for settings in ({}, *MORE.get(name, []))
    ]


class RandomTree(FakeBackend):
    """A `FakeBackend` whose steps may ask for statistics; they are random too."""

    def generate(
        self,
        branches: Sequence[Branch],
        max_tokens: int | Sequence[int],
        *,
        stop: Sequence[str] = (),
        end: Sequence[str] = (),
        sampling: Sampling = SAMPLED,
        statistics: bool = False,
    ) -> None:
        super().generate(branches, max_tokens, stop=stop, end=end, sampling=sampling)
        for branch in branches if statistics else []:
            new = range(len(branch.top_k_logprobs), len(branch.generated))
            values = [-(random_key(branch.key, place) % 1000) / 100 for place in new]
            branch.top_k_logprobs += values
            branch.entropies += [-value for value in values]


class Costly:
    """Scores a branch by its commas, from 0 to 1, for `cost` tokens, which it says beforehand."""

    def __init__(self, cost: int):
        self.cost = cost

    def price(self, branches: Sequence[Branch], questions: Sequence[str], backend: Any) -> int:
        return self.cost * len(branches)

    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Any
    ) -> list[list[float]]:
        for branch in branches:
            branch.usage.verifier_tokens += self.cost
        return [[1 - 1 / (1 + branch.text.count(","))] for branch in branches]


class ByQuestion:
    """Scores by the question: that of "hard 0.2" is 0.2, for a token a branch."""

    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Any
    ) -> list[list[float]]:
        for branch in branches:
            branch.usage.verifier_tokens += 1
        return [[float(question.split()[-1])] for question in questions]


def exactly(tree: Sequence[Node]) -> list[Node]:
    """What is the same in every batch: all but the log-probabilities, which are rounded by what
    runs beside."""
    return [replace(node, logprobs=[]) for node in tree]


def seen(result: Result) -> Any:
    """All that may not depend on what else is solved, but what its verifier spent."""
    rows = [(b.text, b.score, b.path, b.finish_reason) for b in result.branches]
    tree = [
        (node.parent, node.path, node.text, node.tokens, node.score, node.status)
        for node in result.tree
    ]
    return result.answer, rows, tree, result.error, result.stopped, result.usage.generated_tokens
