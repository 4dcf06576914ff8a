"""What training makes of models that think."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.fit.train_verifier.evaluation import SharedCandidates, candidates
from experiments.fit.train_verifier.problems import ProblemSet
from experiments.fit.train_verifier.rollouts import Rollouts, solutions
from experiments.runs.grading import AnswerReading
from search import BestOfN, solve
from tests.experiments.test_thoughts import MAGISTRAL, R1, solved, task
from tests.helpers.scripted import Scores
from tests.helpers.thinking import Thinking
from ttc.text.thoughts import Thoughts


@pytest.mark.parametrize(
    ("tokenizer", "end"), [(R1, "</think>"), (MAGISTRAL, "[/THINK]")], ids=["text", "special"]
)
def test_solutions_are_right_by_their_answers(tokenizer: Any, end: str) -> None:
    begun = "" if tokenizer is R1 else "[THINK]"
    written = {
        (0,): f"{begun}r\n",
        (1,): f"{begun}x{end}\n",
        (0, 0): f"r{end}x",
        (0, 1): f"x{end}r",
        (1, 0): "r",
    }
    backend = Thinking(lambda branch: written.get(branch.path, ""), tokenizer)
    search = Rollouts(n=2, continuations=2, step_tokens=20, max_steps=2)
    result = solve(search, problem="?", engine=backend)
    thoughts = Thoughts.of(tokenizer)
    found = solutions(result, lambda text: "r" in text, "\n", thoughts)
    assert [one.correct for one in found] == [
        "r" in (branch.answer_text or "")
        for branch in sorted(result.branches, key=lambda branch: branch.path)
    ]
    assert len(found) == 2 and {one.correct for one in found} <= {True, False}
    assert [one.correct for one in solutions(result, lambda text: "r" in text, "\n", thoughts)] != [
        True,
        True,
    ]


def test_candidates_of_a_verifier_answer_after_their_thoughts() -> None:
    together = SharedCandidates({"score": Scores(lambda branch: float(branch.path[0]))})
    said = ["The answer is 3", "3?</think>The answer is 4."]
    result = solved(BestOfN(n=2), said, "3", verifier=together)
    part = ProblemSet([], task("number").is_correct, AnswerReading("number"))
    (found,) = candidates([result], together, part)
    assert found.answers == [None, "4"] and found.right == [False, False]
