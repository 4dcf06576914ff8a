"""Fork-Think: where chains fork from the seed, and what they cost."""

from __future__ import annotations

import pytest

from search import ForkThink, solve
from tests.helpers.backends import Dictated
from ttc import InvalidInput
from ttc.results import Result

SAID = "So we add, and then the answer is 7."


def forked(confidences: list[float], **settings: object) -> Result:
    """A search in which every chain writes the same text, with these confidences of its tokens."""
    backend = Dictated([SAID] * 9, [confidences] * 9)
    search = ForkThink(**{"n": 5, "part_tokens": 4, "max_tokens": 60} | settings)
    result = solve(search, problem="q", engine=backend)
    assert result.error is None and not backend.live
    return result


def points(result: Result) -> dict[int, int]:
    """How many chains fork after so many tokens of the seed."""
    tokens = {node.id: node.tokens for node in result.tree}
    counts: dict[int, int] = {}
    for node in result.tree:
        if node.parent is not None and len(node.token_ids) > 4:
            counts[tokens[node.parent]] = counts.get(tokens[node.parent], 0) + 1
    return counts


def test_chains_fork_before_the_least_confident_parts() -> None:
    confidences = [9.0] * 8 + [1.0, 9.0, 9.0, 1.0] + [9.0] * 8 + [2.0] * 4 + [9.0] * 14
    # parts of four tokens: the third one and the sixth are the least confident
    result = forked(confidences)
    assert points(result) == {8: 2, 20: 2}
    assert result.answer == "7" and len(result.branches) == 5
    whole = len(SAID)
    assert result.usage.generated_tokens == whole + 2 * (whole - 8) + 2 * (whole - 20)


def test_settings_say_how_many_points_there_are_and_from_where_on() -> None:
    confidences = [float(place // 4) for place in range(len(SAID) + 1)]
    assert points(forked(confidences, forks=1, n=4)) == {0: 3}
    assert points(forked(confidences, forks=1, n=4, skip=0.5)) == {20: 3}
    assert points(forked(confidences, forks=3, n=6)) == {0: 2, 4: 2, 8: 1}


def test_a_seed_alone_is_the_answer() -> None:
    result = forked([1.0] * 60, n=1)
    assert result.answer == "7" and len(result.branches) == 1


def test_settings_that_are_none_are_refused() -> None:
    with pytest.raises(InvalidInput, match="forks=0 must be at least 1"):
        ForkThink(forks=0)
