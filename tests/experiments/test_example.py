"""One solved problem as a person reads it."""

from __future__ import annotations

from typing import Any

from experiments.runs.example import example, telling, winning_steps


def node(
    number: int, parent: int | None, path: list[int], text: str, score: float | None
) -> dict[str, Any]:
    return {"id": number, "parent": parent, "path": path, "text": text, "score": score}


def branch(
    path: list[int], text: str, answer: str | None, score: float | None, correct: bool
) -> dict[str, Any]:
    known = {"path": path, "text": text, "answer": answer, "score": score, "correct": correct}
    return known | {"vote": answer}


RECORD: dict[str, Any] = {
    "question": "6 + 2 - 5 =",
    "gold": "3",
    "answer": "3",
    "correct": True,
    "stopped": None,
    "branches": [
        branch([1, 0], "6 + 2 = 8\n8 - 5 = 3\n", "3", 0.875, True),
        branch([0, 0], "6 + 2 = 9\n9 - 5 = 4\n", "4", 0.125, False),
        branch([0, 1], "6 + 2 = 9\n9 - 5 = 4\n", "4", 0.125, False),
        branch([1, 1], "long " * 40, "4", None, False),
    ],
    "tree": [
        node(0, None, [], "", None),
        node(1, 0, [0], "6 + 2 = 9\n", 0.25),
        node(2, 0, [1], "6 + 2 = 8\n", 0.75),
        node(3, 1, [0, 0], "9 - 5 = 4\n", 0.125),
        node(4, 2, [1, 0], "8 - 5 = 3\n", 0.875),
    ],
}


def test_the_steps_of_the_winner_come_from_the_tree() -> None:
    assert winning_steps(RECORD) == [("6 + 2 = 8\n", 0.75), ("8 - 5 = 3\n", 0.875)]


def test_an_example_shows_question_steps_scores_and_losers() -> None:
    lines = example(RECORD).splitlines()
    assert "  6 + 2 - 5 =" in lines and "The branch that won, step by step (score 0.88):" in lines
    assert lines[lines.index("    0.75  6 + 2 = 8") + 1] == "    0.88  8 - 5 = 3"
    assert "Its answer is 3, which is right." in lines
    assert "    0.12  answers 4: 6 + 2 = 9 / 9 - 5 = 4 (2 times)" in lines
    assert lines[-1].startswith("       -  answers 4: long long") and lines[-1].endswith("...")
    assert max(map(len, lines)) <= 80


VOTED = RECORD | {
    "answer": "4",
    "correct": False,
    "branches": [*RECORD["branches"], branch([2], "?", None, 0.1, False)],
}


def test_where_branches_vote_the_winner_is_the_best_one_with_the_answer_that_won() -> None:
    assert winning_steps(VOTED) == [("6 + 2 = 9\n", 0.25), ("9 - 5 = 4\n", 0.125)]
    lines = example(VOTED, "majority").splitlines()
    assert "The branch that won, step by step (score 0.12):" in lines
    at = lines.index("Its answer is 4, which is wrong, it is 3.")
    assert lines[at + 1] == "The answer with the most votes wins: 4 has 3 of 4 votes."
    others = lines[lines.index("The other branches:") + 1 :]
    assert others[0] == "    0.88  answers 3: 6 + 2 = 8 / 8 - 5 = 3"
    assert others[1] == "    0.12  answers 4: 6 + 2 = 9 / 9 - 5 = 4"
    assert len(others) == 4


def test_weighted_votes_are_called_so_and_none_are_counted_where_none_decided() -> None:
    said = "The answer whose votes have the highest total score wins: 3 has 1 of 4 votes."
    assert said in example(RECORD, "weighted").splitlines() and len(said) <= 80
    assert "votes" not in example(RECORD)
    assert "votes" not in example(RECORD | {"stopped": "max_generated_tokens"}, "weighted")
    no_answer = [branch([0], "?", None, 0.5, False)] * 2
    assert "votes" not in example(RECORD | {"answer": None, "branches": no_answer}, "majority")


def test_of_a_record_whose_best_rated_branch_lost_the_winners_score_counts() -> None:
    branches = [
        branch([1], "", "4", 0.875, False),
        branch([0], "", "3", 0.5, True),
        branch([2], "", "5", 0.0, False),
    ]
    assert telling([RECORD | {"branches": branches}, RECORD]) is RECORD


def test_the_most_telling_record_is_solved_against_a_badly_rated_wrong_branch() -> None:
    right = RECORD["branches"][0]
    wrong = RECORD | {"correct": False}
    easy = RECORD | {"branches": [right] * 2}
    near = RECORD | {"branches": [right, branch([0], "", "4", 0.75, False)]}
    assert telling([wrong, easy, near, RECORD]) is RECORD
    assert telling([wrong, easy, near]) is near
    assert telling([wrong, easy]) is easy
    assert telling([wrong]) is wrong
    assert telling([RECORD | {"branches": []}]) is None
