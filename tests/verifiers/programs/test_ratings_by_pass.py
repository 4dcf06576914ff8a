"""Ratings that run programs are made pass by pass, as others are."""

from __future__ import annotations

import pytest

from tests.helpers.reward_models import grown, policy
from tests.verifiers.test_ratings_by_pass import (
    a_rating_may_be_closed_at_any_pass_and_branches_may_go,
    others_decode_between_two_passes_and_scores_stay,
)
from ttc import Engine
from ttc.branch import Branch
from ttc.execution.sandbox import protections
from verifiers import SStar

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not protections(), reason="programs cannot be confined here"),
]


def of_programs() -> tuple[Engine, list[Branch], list[Branch]]:
    """Two programs that fail the shown test in different ways, so that S* has the model compare
    them."""
    engine = policy()
    root = engine.root([1, 2])
    root.about = {"shown_tests": ["assert f(0) == 0"]}
    texts = [f"```\ndef f(x):\n    return x + {n}\n```" for n in (1, 2, 2)]
    return engine, grown(engine, root, *texts), engine.fork(root, 2)


def s_star() -> SStar:
    return SStar(tests=1, max_tokens=4)


def test_others_decode_between_two_passes_and_scores_stay() -> None:
    others_decode_between_two_passes_and_scores_stay(of_programs, s_star)


@pytest.mark.parametrize("kept", [1, 2, 5])
def test_a_rating_may_be_closed_at_any_pass_and_branches_may_go(kept: int) -> None:
    a_rating_may_be_closed_at_any_pass_and_branches_may_go(of_programs, s_star, kept)
