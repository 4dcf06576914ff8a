"""In every search and with every verifier a branch without an answer loses to one that has one."""

from __future__ import annotations

from typing import Any

import pytest

from search import Search, solve
from tests.helpers.searches import RandomTree, all_searches
from ttc.text.answers import extract_answer
from verifiers import ArithmeticVerifier, ConfidenceVerifier, SelfVerifier


class LikesNoAnswer:
    """Rates what has no answer above what has one."""

    def rate(self, branches: Any, questions: Any, backend: Any) -> list[list[float]]:
        return [[0.5 if strict(branch.text) else 0.9] for branch in branches]


def strict(text: str) -> str | None:
    """The number before the end, 0; a text that was cut off has none."""
    return extract_answer(f"The answer is {text}", "strict") if text.endswith("70") else None


VERIFIERS = [LikesNoAnswer(), ArithmeticVerifier(), ConfidenceVerifier(), SelfVerifier()]


@pytest.mark.few(5)
@pytest.mark.parametrize("search", all_searches(), ids=lambda search: type(search).__name__)
def test_no_branch_without_an_answer_wins_against_one_that_has_one(search: Search) -> None:
    decided = 0
    for verifier in VERIFIERS if search.needs_verifier else [None]:
        for seed in range(12):
            backend = RandomTree(letters="7770,")
            limit = None if seed % 2 else 40
            result = solve(
                search,
                problem="q",
                engine=backend,
                verifier=verifier,
                seed=seed,
                extract=strict,
                max_generated_tokens=limit,
            )
            answered = [b for b in result.branches if strict(b.text) is not None]
            assert result.best is not None or not result.branches
            if answered:
                assert result.answer is not None
                assert result.best is not None and strict(result.best.text) is not None

            decided += bool(answered) and len(answered) < len(result.branches)

    assert decided or type(search).__name__ in ALONE


ALONE = {"Greedy", "BudgetForcing", "CertaintyProbe", "MUR", "PhiDecoding", "SelfRefine"}
"""Searches of one chain, which has nothing to choose from."""
