"""Beam search on trees made by hand: selection, looking ahead, rating less often, and continuations
that repeat."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from search import DVTS, BeamSearch, solve
from tests.helpers.scripted import Scores as Rated
from tests.helpers.scripted import Scripted
from tests.helpers.trees import HandMadeTree, Scores, searched, texts

TWO = {"": ["a", "b"]}


def test_a_rollout_decides_between_candidates_that_rate_alike() -> None:
    tree = {**TWO, "a": ["1."], "b": ["2."]}
    scores = {"a": 0.5, "b": 0.5, "a1.": 0.2, "b2.": 0.9}
    search = BeamSearch(beam_size=1, beam_width=2, max_steps=1)
    assert texts(searched(search, HandMadeTree(tree), scores)) == ["a"]  # the first of equals
    ahead = BeamSearch(beam_size=1, beam_width=2, max_steps=1, lookahead=1)
    result = searched(ahead, HandMadeTree(tree), scores)
    assert texts(result) == ["b"] and result.best.score == 0.9


def test_every_rollout_is_scored_at_its_end_and_dropped() -> None:
    tree = {**TWO, "a": ["1"], "a1": ["2"], "a12": ["3."], "b": ["4."]}
    backend, held = HandMadeTree(tree), []

    class Watching(Scores):
        def rate(self, *args: Any) -> list[list[float]]:
            held.append(len(backend.live))
            return super().rate(*args)

    verifier = Watching({"a12": 0.7, "b4.": 0.6})
    search = BeamSearch(beam_size=2, beam_width=1, max_steps=1, lookahead=2)
    result = searched(search, backend, verifier)
    assert verifier.asked == ["a12", "b4."] and held == [2 + 2]  # and nothing between these
    assert texts(result) == ["a", "b"] and backend.written == len("ab") + len("12") + len("4.")
    by_text = {node.text: node for node in result.tree[1:]}
    assert by_text["a"].score == 0.7
    assert [by_text[step].status for step in ("1", "2", "4.")] == ["expanded", "pruned", "pruned"]


def test_rollouts_are_written_at_temperature_0() -> None:
    tree = HandMadeTree({"": ["a"], "a": ["sampled."]}, likeliest={"a": "greedy."})
    search, verifier = BeamSearch(beam_size=1, beam_width=1, max_steps=2, lookahead=1), Scores({})
    result = searched(search, tree, verifier)
    assert verifier.asked == ["agreedy.", "asampled."] and texts(result) == ["asampled."]


def test_looking_ahead_charges_its_tokens_and_never_passes_the_budget() -> None:
    tree = {"": ["aa", "bb"], "aa": ["cc"], "bb": ["dd"]}
    for most in range(1, 14):
        backend = HandMadeTree(tree, other="xx")
        search = BeamSearch(beam_size=2, beam_width=1, step_tokens=2, max_steps=3, lookahead=2)
        result = searched(search, backend, {}, max_tokens=most)
        assert backend.written <= most and result.stopped == "max_tokens"
        assert all(len(branch.step_ends) <= 3 for branch in result.branches)


def test_a_budget_that_ends_in_a_rollout_leaves_no_rollout_behind() -> None:
    backend = HandMadeTree({"": ["aa", "bb"]}, other="xx")
    search = BeamSearch(beam_size=2, beam_width=1, step_tokens=2, max_steps=3, lookahead=2)
    result = searched(search, backend, {}, max_calls=2)
    assert texts(result) == ["aa", "bb"] and result.stopped == "max_calls"
    assert [branch.score for branch in result.branches] == [None, None]


@pytest.mark.parametrize(
    ("every", "asked"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (3, [3, 5]), (9, [5])]
)
def test_ratings_come_after_every_so_many_steps_and_after_the_last(
    every: int, asked: list[int]
) -> None:
    verifier = Scores({})
    search = BeamSearch(beam_size=1, beam_width=1, max_steps=5, verify_every=every)
    assert texts(searched(search, HandMadeTree({}), verifier)) == ["xxxxx"]
    assert list(map(len, verifier.asked)) == asked


def test_candidates_branch_once_between_two_ratings() -> None:
    tree = {"": ["a", "b"], "a": ["c", "d"], "b": ["e", "f"], "bf": ["g"]}
    search = BeamSearch(beam_size=1, beam_width=2, max_steps=2, verify_every=2)
    result = searched(search, HandMadeTree(tree), {"ac": 0.1, "be": 0.9})
    assert [node.text for node in result.tree[1:]] == ["a", "b", "c", "e"]
    assert texts(result) == ["be"]


# ---------------------------------------------------------------- faults of other implementations


def test_a_step_that_ends_by_its_length_is_no_end_of_the_answer() -> None:
    tree = HandMadeTree({"": ["abcdef"], "abc": ["d."]})
    result = searched(BeamSearch(beam_size=1, beam_width=1, step_tokens=3, max_steps=4), tree, {})
    assert texts(result) == ["abcd."] and result.best.finish_reason == "eos"


def test_every_aggregation_selects_by_its_own_score() -> None:
    tree = {"": ["a", "b"], "a": ["1."], "b": ["2."]}
    scores = {"a": 0.9, "a1.": 0.5, "b": 0.3, "b2.": 0.6}
    for aggregation, best in (("last", "b2."), ("min", "a1."), ("product", "a1."), ("mean", "a1.")):
        search = BeamSearch(beam_size=2, beam_width=1, max_steps=2, aggregation=aggregation)
        result = searched(search, HandMadeTree(tree), scores)
        assert result.best.text == best


def test_no_answer_is_made_twice_to_fill_the_beams() -> None:
    search = BeamSearch(beam_size=4, beam_width=1, max_steps=3)
    result = searched(search, HandMadeTree({"": ["a.", "b."]}), {})
    assert len({branch.path for branch in result.branches}) == len(result.branches) == 4


def test_a_search_in_which_nothing_finishes_answers_with_its_best_beam() -> None:
    result = searched(BeamSearch(beam_size=2, beam_width=2, max_steps=2), HandMadeTree({}), {})
    assert texts(result) == ["xx", "xx"] and result.answer == "xx" and result.stopped is None


def test_a_step_is_never_empty_and_never_comes_after_the_end() -> None:
    tree = HandMadeTree({"": ["a\n\n"], "a\n\n": ["b."]})
    search = BeamSearch(beam_size=1, beam_width=1, max_steps=9, delimiter="\n\n")
    result = searched(search, tree, {})
    assert result.best.steps == ["a\n\n", "b."]


def test_the_last_step_may_run_to_the_end() -> None:
    """As search-and-learn's last iteration does, without the delimiter that stops all steps before
    it."""
    backend = Scripted(lambda branch: f"{len(branch.path)}," if backend.limit == 3 else "a,b,c,d,0")
    steps: Any = {"step_tokens": 3, "max_steps": 3, "delimiter": ",", "finish_tokens": 40}
    beams, trees = BeamSearch(beam_size=2, beam_width=2, **steps), DVTS(subtrees=2, **steps)
    rated: Any = {"problem": "q", "engine": backend, "verifier": Rated(lambda branch: 0.5)}
    for search, count in ((beams, 2), (replace(trees, beam_width=2), 4)):
        result = solve(search, **rated)
        assert [b.text.removesuffix("0") for b in result.branches] == ["1,2,a,b,c,d,"] * count
        assert all(branch.finished and branch.score == 0.5 for branch in result.branches)
        plain = solve(replace(search, finish_tokens=0), **rated)
        assert [branch.text for branch in plain.branches] == ["1,2,3,"] * 2


@pytest.mark.parametrize(
    ("every", "texts_rated"), [(1, ["x", "xx", "xxab."]), (2, ["xx", "xxab."]), (3, ["xxab."])]
)
def test_of_steps_that_are_rated_together_the_last_alone_runs_to_the_end(
    every: int, texts_rated: list[str]
) -> None:
    tree = HandMadeTree({"xx": ["ab."]})
    verifier = Scores({})
    steps = {"step_tokens": 1, "max_steps": 3, "finish_tokens": 9, "verify_every": every}
    searched(BeamSearch(beam_size=1, beam_width=1, **steps), tree, verifier)
    assert verifier.asked == texts_rated
