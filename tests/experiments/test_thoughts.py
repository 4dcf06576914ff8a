"""What runs, grades and training make of models that think."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from experiments.runs.ask import outcome
from experiments.runs.build import thinking_marks
from experiments.runs.data import LoadedTask, graded
from experiments.runs.grading import AnswerReading
from experiments.runs.problem_loop import run
from experiments.runs.problem_record import full_record, problem_record
from experiments.runs.summary import branch_counts, counts_line, summarise
from experiments.runs.summary_tables import table
from search import Greedy, SelfConsistency, solve
from tests.helpers.configurations import configuration
from tests.helpers.records import by_id
from tests.helpers.runs import composed
from tests.helpers.thinking import OPENING, TURNS, Thinking, thinker
from ttc import InvalidInput, Problem, Result, ThinkingMarks
from ttc.text.equality import AnswerReader

R1 = thinker(OPENING, plain=("<think>", "</think>"))
MAGISTRAL = thinker(TURNS, ("[THINK]", "[/THINK]"))


def solved(search: Any, says: Any, gold: str, tokenizer: Any = R1, **options: Any) -> Result:
    problem, backend = Problem("q", "q-1", gold), Thinking(says, tokenizer)
    result: Result = solve(search, problem=problem, engine=backend, **options)
    return result


def task(kind: str) -> LoadedTask:
    reading = AnswerReading(kind)
    return LoadedTask([], [], reading, reading.is_correct)


# ---------------------------------------------------------------- grades and records


@pytest.mark.parametrize(
    ("text", "kind", "gold", "correct", "strict"),
    [
        ("The answer is 12.</think>The result: 18", "number", "18", True, False),
        ("The answer is 12.</think>The result: 18", "number", "12", False, False),
        ("Could it be \\boxed{3}?", "math", "3", False, False),
        ("Could it be \\boxed{3}?</think>It is \\boxed{4}.", "math", "4", True, True),
        ("The answer is (A)</think>The answer is (B).", "choice", "B", True, True),
        ("The answer is (A)", "choice", "A", False, False),
        ("12", "text", "12", False, False),
    ],
)
def test_no_grade_is_given_for_a_thought(
    text: str, kind: str, gold: str, correct: bool, strict: bool
) -> None:
    result = solved(Greedy(), [text], gold, answer_kind=kind)
    grades = graded(task(kind), result)
    assert (grades["correct"], grades["correct_strict"]) == (correct, strict)


@pytest.mark.few
@pytest.mark.parametrize(
    ("said", "tokenizer", "settings", "unknown"),
    [
        ("<think>So</think>It is 18.", thinker(TURNS), (), True),  # as MiniMax-M1 writes
        ("<reasoning>So</reasoning>18", R1, (), True),  # another model's marks in an answer
        ("It is 18.", thinker(TURNS), (), False),
        ("So</think>It is 18.", R1, (), False),
        ("<think>So</think>It is 18.", thinker(TURNS), ("model.thinking_marks=false",), False),
    ],
)
def test_thoughts_of_a_model_that_names_no_marks_are_told(
    tmp_path: Path, said: str, tokenizer: Any, settings: tuple[str, ...], unknown: bool
) -> None:
    if "reasoning" in said:
        said = f"So</think>{said}"
    result = solved(Greedy(), [said], "18", tokenizer)
    config = composed(tmp_path, *settings, search=("search=greedy",))
    record = full_record(result, task("number"), config, Thinking([said], tokenizer))
    assert record["branches"][0].get("thought_unknown", False) == unknown
    shown = counts_line(branch_counts([record]))
    assert ("1 thoughts unknown" in shown) == unknown
    advice = table("r", summarise([record]) | {"seconds": 0.0})
    assert ("name the marks, as model.thinking_marks" in advice) == unknown


def test_marks_that_texts_leave_out_are_graded_alike() -> None:
    said = "[THINK]The answer is 12.[/THINK]The answer is 18."
    grades = graded(task("number"), solved(Greedy(), [said], "18", MAGISTRAL))
    assert grades == {"answer": "18", "correct": True, "correct_strict": True}
    cut_off = graded(task("number"), solved(Greedy(), [said[:24]], "12", MAGISTRAL))
    assert cut_off == {"answer": None, "correct": False, "correct_strict": False}


def test_a_record_keeps_whole_texts_and_the_answers_of_what_was_answered() -> None:
    said = ["The answer is 3", "The answer is 3", "3?</think>The answer is 4."]
    record = problem_record(solved(SelfConsistency(n=3), said, "4"), task("number"))
    branches = {row["text"]: (row["answer"], row["correct"]) for row in record["branches"]}
    assert branches == {"The answer is 3": (None, False), "3?</think>The answer is 4.": ("4", True)}
    assert (record["answer"], record["correct"], record["correct_strict"]) == ("4", True, True)
    assert {node["text"] for node in record["tree"]} == {"", *said}
    json.dumps(record)


def test_a_result_tells_thought_and_answer_apart_only_where_there_is_a_thought() -> None:
    (thinking,) = solved(Greedy(), ["3?</think>4"], "4").to_dict()["branches"]
    assert (thinking["text"], thinking["thought"]) == ("3?</think>4", "3?")
    assert thinking["answer_text"] == "4"
    (plain,) = solved(Greedy(), ["4"], "4", thinker(TURNS)).to_dict()["branches"]
    assert "thought" not in plain and "answer_text" not in plain


def test_the_answer_to_one_question_is_shown_apart_from_its_thought() -> None:
    for said, shown in (
        ("[THINK]12?[/THINK]The answer is 18.", "thought: 12?\n\nThe answer is 18.\n\nanswer: 18"),
        ("[THINK]12?", "thought: 12?\n\nanswer: none was read"),
        ("The answer is 18.", "\nThe answer is 18.\n\nanswer: 18"),
    ):
        result = solved(Greedy(), [said], "18", MAGISTRAL)
        assert outcome(result, Thinking([said], MAGISTRAL)).startswith(f"\n{shown.lstrip()}")


# ---------------------------------------------------------------- the setting


@pytest.mark.slow
def test_marks_are_a_setting_of_the_model() -> None:
    for words, marks in (
        ([], None),
        (["model.thinking_marks=false"], False),
        (["model.thinking_marks=['((','))']"], ThinkingMarks("((", "))")),
        (["model.thinking_marks=[['(','['],')']"], ThinkingMarks(("(", "["), ")")),
    ):
        assert thinking_marks(configuration("run", *words)) == marks
    for wrong in ("true", "auto", "['<think>']", "['','</think>']"):
        with pytest.raises(InvalidInput, match=r"model\.thinking_marks|begin="):
            thinking_marks(configuration("run", f"model.thinking_marks={wrong}"))


def test_a_run_reads_by_the_marks_that_are_set(place: Path) -> None:
    marks = ThinkingMarks("3", ["5", "7"])
    for name, setting in (("whole", "false"), ("parted", "[['3'],['5','7']]")):
        words = (f"run.name={name}", f"model.thinking_marks={setting}")
        run(composed(place, *words, search=("search=greedy", "search.max_tokens=9")))
    reads = partial(AnswerReader, "number")
    found = by_id(place, "parted")
    for name, whole in by_id(place, "whole").items():
        parted = found[name]
        text = whole["branches"][0]["text"]
        assert parted["branches"][0]["text"] == text  # what is written does not change
        assert whole["answer"] == reads()(text) and parted["answer"] == reads(marks=marks)(text)
