"""DVTS on trees made by hand: subtrees that never compete before the end."""

from __future__ import annotations

from search import DVTS, BeamSearch
from tests.helpers.trees import HandMadeTree, Scores, searched, texts


def test_each_subtree_keeps_its_own_best() -> None:
    tree = {"": ["a", "b", "c", "d"], "a": ["1."], "b": ["2."], "c": ["3."], "d": ["4."]}
    scores = {"a": 0.9, "b": 0.8, "c": 0.1, "d": 0.2, "b2.": 1.0}
    result = searched(DVTS(subtrees=2, beam_width=2), HandMadeTree(tree), scores)
    # the leaf of each and its finished sibling
    assert sorted(texts(result)) == ["a1.", "a1.", "d4.", "d4."]
    beams = searched(BeamSearch(beam_size=2, beam_width=2, max_steps=2), HandMadeTree(tree), scores)
    # all beams are in the first one's half
    assert {branch.path[0] for branch in beams.branches} <= {0, 1}


def test_the_first_of_equals_is_kept() -> None:
    tree = HandMadeTree({"": ["a", "b", "c"]})
    assert texts(searched(DVTS(subtrees=1, beam_width=3, max_steps=1), tree, {})) == ["a"]


def test_a_finished_sibling_is_a_candidate_and_an_unfinished_one_is_not() -> None:
    tree = {"": ["a.", "b", "c"], "b": ["1.", "2", "3."]}
    scores = {"b": 0.9, "b2": 0.1, "b3.": 0.2}
    result = searched(DVTS(subtrees=1, beam_width=3), HandMadeTree(tree), scores)
    assert texts(result) == ["a.", "b1.", "b3."]
    assert {node.text: node.status for node in result.tree[1:]}["c"] == "pruned"


def test_a_finished_leaf_ends_its_subtree_alone() -> None:
    tree = {"": ["a.", "b"], "b": ["c"], "bc": ["d."]}
    backend = HandMadeTree(tree)
    result = searched(DVTS(subtrees=2, beam_width=1), backend, {})
    assert texts(result) == ["a.", "bcd."] and backend.calls == [2, 1, 1]


def test_an_answer_in_unfinished_text_ends_no_subtree() -> None:
    tree = {"": [r"\boxed{4} or"], r"\boxed{4} or": [r" \boxed{5}."]}
    result = searched(DVTS(subtrees=1, beam_width=1, step_tokens=20), HandMadeTree(tree), {})
    assert texts(result) == [r"\boxed{4} or \boxed{5}."]


def test_the_last_step_leaves_the_kept_leaves_whether_or_not_they_are_finished() -> None:
    backend = HandMadeTree({"": ["a", "b", "c", "d."]})
    result = searched(DVTS(subtrees=2, beam_width=2, max_steps=3), backend, {"d.": 0.9})
    assert texts(result) == ["d.", "axx"] and len(backend.calls) == 3


def test_subtrees_look_ahead_and_rate_less_often_as_beams_do() -> None:
    tree = {"": ["a", "b"], "a": ["1."], "b": ["2."]}
    scores = {"a": 0.9, "b": 0.1, "a1.": 0.2, "b2.": 0.8}
    ahead = DVTS(subtrees=1, beam_width=2, max_steps=1, lookahead=1)
    assert texts(searched(ahead, HandMadeTree(tree), scores)) == ["b"]
    verifier, seldom = Scores(scores), DVTS(subtrees=1, beam_width=2, max_steps=2, verify_every=2)
    searched(seldom, HandMadeTree(tree), verifier)
    assert verifier.asked == ["a1.", "b2."]


def test_a_subtree_is_told_apart_after_many_steps() -> None:
    backend = HandMadeTree({"": ["a", "b", "c", "d"]})
    result = searched(DVTS(subtrees=2, beam_width=2, max_steps=4), backend, {})
    assert texts(result) == ["axxx", "cxxx"] and backend.calls == [4, 4, 4, 4]
