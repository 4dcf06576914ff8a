"""Best-first search on trees with known scores."""

from __future__ import annotations

from typing import Any

from search import BestFirst, solve
from tests.helpers.scripted import Path, Scores, Scripted, continued

SCORES: dict[Path, float] = {(0,): 0.9, (1,): 0.6, (0, 0): 0.4, (0, 1): 0.2}
SCORES |= {(1, 0): 0.8, (1, 1): 0.1, (1, 0, 0): 0.3}


class Priced(Scores):
    """Says that a rating costs a token, and 50 for branches two steps deep."""

    def price(self, branches: Any, questions: Any, backend: Any) -> int:
        return sum(50 if len(branch.path) == 2 else 1 for branch in branches)


def run(ends: set[Path], steps: int, verifier: type[Scores] = Scores, **options: Any) -> Any:
    """A tree whose steps are one letter each, a 0 where a branch ends."""
    backend = Scripted(lambda branch: "0" if branch.path in ends else "x")
    search = BestFirst(beam_size=1, beam_width=2, step_tokens=1, max_steps=steps)
    rate = verifier(lambda branch: SCORES.get(branch.path, 0.0))
    result = solve(search, problem="q", engine=backend, verifier=rate, **options)
    assert not backend.live and result.error is None
    return result


def test_what_was_passed_over_is_taken_up_again() -> None:
    assert continued(run(set(), 4)) == [(), (0,), (1,), (1, 0)]
    assert continued(run(set(), 5))[4:] == [(0, 0)]  # 0.4 against 0.3


def test_a_finished_branch_answers_before_a_better_one_that_is_open() -> None:
    best = run({(1, 1)}, 3).best
    assert best is not None and best.path == (1, 1)


def test_a_rating_beyond_the_budget_loses_no_finished_branch() -> None:
    for ends, left in (({(1,)}, [(1,)]), (set(), [(0, 0), (0, 1), (1,)])):
        result = run(ends, 4, verifier=Priced, max_tokens=20)
        assert result.stopped == "max_tokens"
        assert [branch.path for branch in result.branches] == left
    # of the branch that went on, its continuations have the score
    first, *_, other = result.branches
    assert first.score == result.tree[1].score > other.score


def test_nothing_is_an_answer_where_nothing_could_be_made() -> None:
    result = run(set(), 4, verifier=Priced, max_tokens=1)
    assert result.best is None and result.stopped == "max_tokens" and not result.branches
