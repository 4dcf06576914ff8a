"""Questions in several orders of their choices (`dataset.orders`): which orders, what counts once,
and what is right together with going on, shards, comparing, selecting and the leaderboard."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.eval.export.trl import unpaired_preference
from experiments.eval.merge.merging import merge
from experiments.eval.select import load, score
from experiments.runs.data import load_examples, load_task
from experiments.runs.finished import FinishedRun
from experiments.runs.orders import in_orders as in_orders_of
from experiments.runs.orders import lettered, orders_of
from experiments.runs.problem_loop import run
from experiments.runs.stats import standard_error, wilson
from experiments.runs.summary import summarise
from search.selection import all_rules
from tests.experiments.test_compare import compared, record, save
from tests.experiments.test_sources import dataset, write
from tests.helpers.configurations import configuration
from tests.helpers.records import by_id, roughly
from tests.helpers.runs import composed, save_model
from tests.helpers.tiers import examples
from ttc import InvalidInput

CHOICES = ("right", "wrong one", "wrong two\nof two lines", "wrong, three")
ROWS = [
    {
        "Pre-Revision Question": "q",
        "Question": f"Which µ-tensor is it in case {i}?\n\n(A) is no choice: “quoted”, ∆E = 5 eV ",
        "Correct Answer": CHOICES[0] + "\n",
        "Incorrect Answer 1": CHOICES[1],
        "Incorrect Answer 2": CHOICES[2],
        "Incorrect Answer 3": CHOICES[3],
        "Explanation": f"Step {i} leads to it.\nSo the answer is right.",
        "Self-reported question-writing time (minutes)": "30",
        "Record ID": f"rec{i}",
        "High-level domain": "Physics",
        "Subdomain": "Physics (general)",
    }
    for i in range(6)
]
"""The columns of gpqa_diamond.csv that matter, with cells as there: line breaks, signs, quotes."""


def gpqa(path: str, *words: str) -> Any:
    return configuration("run", "dataset=gpqa", f"dataset.path={path}", *words).dataset


@pytest.fixture
def file(tmp_path: Path) -> str:
    save_model(tmp_path / "model", more=["(A)", "(B)", "(C)", "(D)"])
    return write(tmp_path / "gpqa.csv", ROWS)


@given(st.integers(1, 6), st.integers(1, 130), st.integers(0, 99))
@settings(max_examples=examples(60))
def test_orders_differ_and_go_round(choices: int, count: int, seed: int) -> None:
    found = orders_of(choices, count, random.Random(seed))
    assert len(found) == min(count, math.factorial(choices)) == len({*map(tuple, found)})
    assert found[0] == list(range(choices))
    assert all(sorted(order) == found[0] for order in found)
    for block in range(len(found) // choices):  # each choice stands in each place once
        turns = np.array(found[block * choices : (block + 1) * choices])
        assert all(sorted(column) == found[0] for column in turns.T)
    assert orders_of(choices, count + 3, random.Random(seed))[: len(found)] == found


def test_each_question_is_asked_in_so_many_orders(file: str) -> None:
    once = load_task(gpqa(file)).problems
    task = load_task(gpqa(file, "dataset.orders=4"))
    assert task.problems[::4] == once and not task.failures  # the first order is the only one's
    for place, problem in enumerate(task.problems):
        first = once[place // 4]
        further = f"-order{place % 4 + 1}" if place % 4 else ""
        assert problem.id == f"{first.id}{further}"
        asked = problem.question.rpartition("\n(A) ")[0]
        assert asked == first.question.rpartition("\n(A) ")[0]
        assert problem.question.count(f"\n({problem.answer}) right") == 1
        assert sorted(map(problem.question.count, CHOICES)) == [1, 1, 1, 1]
    for place in range(0, 24, 4):
        asked_in = task.problems[place : place + 4]
        assert {p.answer for p in asked_in} == set("ABCD")
        assert len({p.question for p in asked_in}) == 4
    many = load_task(gpqa(file, "dataset.orders=24", "dataset.limit=2")).problems
    assert len({p.question for p in many}) == 48
    assert many[:4] == task.problems[:4]  # more orders keep those that there were
    reseeded = load_task(gpqa(file, "dataset.orders=4", "dataset.shuffle_seed=1"))
    assert [p.question for p in reseeded.problems] != [p.question for p in task.problems]


def test_other_sets_of_choices_have_orders_too(tmp_path: Path) -> None:
    arc = [
        {
            "question": "Which?",
            "choices": {"text": list("abcd")[:n], "label": list("1234")[:n]},
            "answerKey": "2",
        }
        for n in (2, 4)
    ]
    path = write(tmp_path / "arc.jsonl", arc)
    found = load_task(
        dataset(name="arc_challenge", path=path, answer_kind="choice", orders=3)
    ).problems
    assert [p.id for p in found] == [  # two choices have two orders
        "arc_challenge-0",
        "arc_challenge-0-order2",
        *("arc_challenge-1", "arc_challenge-1-order2", "arc_challenge-1-order3"),
    ]
    assert found[1].question == "Which?\n(A) b\n(B) a" and found[1].answer == "A"
    mmlu = {"question": "Which?", "options": ["one", "N/A", "two", "three"], "answer": "C"}
    path = write(tmp_path / "mmlu.parquet", [mmlu])
    first, second, third = load_task(
        dataset(name="mmlu_pro", path=path, answer_kind="choice", orders=3)
    ).problems
    assert first.question == "Which?\n(A) one\n(C) two\n(D) three"
    for problem in (second, third):
        assert f"({problem.answer}) two" in problem.question and "(B)" not in problem.question
    assert {p.answer for p in (first, second, third)} == set("ACD")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("dataset.orders=25",), "dataset.orders=25 is more than the 24 orders of 4 choices"),
        (("dataset.orders=0",), r"dataset\.orders=0 must be at least 1"),
    ],
)
def test_orders_that_are_not_there_are_refused(
    words: tuple[str, ...], message: str, file: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        load_task(gpqa(file, *words))


def test_questions_without_choices_have_no_orders(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"question": "1 + 1?", "answer": "2"}])
    with pytest.raises(InvalidInput, match=r"dataset\.orders=2 is of choices, and this question"):
        load_task(dataset(name="plain", path=path, orders=2))
    unlike = lettered("Which?", "q", {"A": "one", "B": "two"}, "C", {})
    with pytest.raises(InvalidInput, match="has none that are known"):
        list(in_orders_of(unlike, 2, 0))
    with pytest.raises(InvalidInput, match=r"dataset.task=sums takes them; use dataset.orders=1"):
        load_task(dataset(name="plain", task="sums", orders=2))


def test_worked_examples_have_the_files_explanation(file: str) -> None:
    """It ends with the letter that the choice has here."""
    config = gpqa(file, "dataset.shots=2", f"dataset.shots_path={file}", "dataset.offset=2")
    first, second, *_ = load_task(gpqa(file)).problems
    assert load_examples(config) == [
        (first.question, f"{ROWS[0]['Explanation']}\nThe answer is {first.answer}."),
        (second.question, f"{ROWS[1]['Explanation']}\nThe answer is {second.answer}."),
    ]
    several = load_task(gpqa(file, "dataset.shots=2", f"dataset.shots_path={file}", *LATER))
    assert len(several.problems) == 8
    with pytest.raises(InvalidInput, match=r"gpqa-0 is among the dataset\.shots=2 solved"):
        load_task(gpqa(file, "dataset.shots=2", f"dataset.shots_path={file}", "dataset.orders=2"))


LATER = ("dataset.offset=2", "dataset.orders=2")

# ---------------------------------------------------------------- the interval


def in_orders(marks: list[list[int]]) -> list[dict[str, Any]]:
    """A record for each order of each question: the first of its two branches is the mark, the
    other always right."""
    return [
        record(f"q{q}-order{n + 1}" if n else f"q{q}", mark, 1)
        | ({"order_of": f"q{q}"} if n else {})
        for q, row in enumerate(marks)
        for n, mark in enumerate(row)
    ]


MARKS = [[1, 1, 0, 1], [0, 0, 0, 1], [1, 1, 1, 1], [0, 1, 0, 1], [1, 0, 1, 1], [0, 0, 0, 0]]


def clustered(marks: list[list[int]]) -> float:
    """Miller (2024), Section 2.2, as it is printed: over all pairs in each cluster; with the factor
    for few clusters."""
    n = sum(map(len, marks))
    mean = sum(map(sum, marks)) / n
    total = sum((a - mean) * (b - mean) for row in marks for a in row for b in row)
    return math.sqrt(total * len(marks) / (len(marks) - 1)) / n


def test_the_interval_is_clustered_by_question(tmp_path: Path) -> None:
    summary = summarise(in_orders(MARKS))
    error = clustered(MARKS)
    assert summary["accuracy"] == pytest.approx(13 / 24) and summary["problems"] == 24
    assert summary["questions"] == 6 and summary["correct"] == 13
    low, high = summary["accuracy_95"]
    assert high - low == pytest.approx(2 * 1.959964 * error)
    flat = [mark for row in MARKS for mark in row]
    clusters = [q for q, row in enumerate(MARKS) for _ in row]
    assert error == pytest.approx(standard_error(flat, clusters))
    assert summary["pass_at_k"] == {"1": pytest.approx((13 / 24 + 1) / 2), "2": 1.0}
    (row,) = compared(tmp_path, save(tmp_path, "r", in_orders(MARKS)))["rows"]
    assert row["standard_error"] == pytest.approx(error) and row["problems"] == 6
    assert row["accuracy_95"] == pytest.approx(summary["accuracy_95"])
    assert row["pass_at_k"] == pytest.approx(summary["pass_at_k"])
    assert row["maj_at_k"] == pytest.approx(summary["maj_at_k"])


def test_a_question_counts_once_however_many_orders_are_done() -> None:
    marks = [[1, 1, 1, 1], [0]]
    assert summarise(in_orders(marks))["accuracy"] == 0.5
    alike = summarise(in_orders([[1, 1], [0, 0], [1, 1]]))
    assert alike["accuracy_95"] == list(wilson(2, 3))  # not of six


def test_runs_with_the_same_orders_are_paired_by_question(tmp_path: Path) -> None:
    others = [[0, 1, 0, 0], [0, 0, 0, 0], [1, 1, 0, 1], [1, 1, 0, 1], [0, 0, 0, 1], [0, 0, 1, 0]]
    runs = [
        save(tmp_path, name, in_orders(marks), search__n=n, dataset__orders=4)
        for name, marks, n in (("a", others, 2), ("b", MARKS, 4))
    ]
    (pair,) = compared(tmp_path, *runs)["differences"]
    gaps = [np.mean(a) - np.mean(b) for a, b in zip(MARKS, others, strict=True)]
    assert pair["problems"] == 6 and pair["test"] == "z"
    assert pair["difference"] == pytest.approx(np.mean(gaps))
    z = sum(gaps) / math.sqrt(sum(gap * gap for gap in gaps))
    assert pair["p"] == pytest.approx(math.erfc(abs(z) / math.sqrt(2)))


def test_runs_with_other_orders_are_compared_only_if_asked(tmp_path: Path) -> None:
    """By question, as both are of the same questions; they are rows of their own."""
    few = [row[:1] for row in MARKS]
    runs = [
        save(tmp_path, "few", in_orders(few)),
        save(tmp_path, "four", in_orders(MARKS), dataset__orders=4),
        save(tmp_path, "again", in_orders(few), dataset__orders=1, run__seed=1),
    ]
    with pytest.raises(InvalidInput, match=r"not on the same problems:\n.*18 problems \(q0-order2"):
        compared(tmp_path, *runs)
    found = compared(tmp_path, *runs, "--different-problems")
    assert [row["runs"] for row in found["rows"]] == [2, 1]  # no setting is the setting of one
    (pair,) = found["differences"]
    assert pair["problems"] == 6
    gaps = [np.mean(a) - np.mean(b) for a, b in zip(MARKS, few, strict=True)]
    assert pair["difference"] == pytest.approx(np.mean(gaps))


def test_rules_take_orders_as_they_are(tmp_path: Path) -> None:
    marks = [[1, 1, 0, 1], [0]]
    folder = Path(save(tmp_path, "r", in_orders(marks)))
    rules = [rule for rule in all_rules() if rule.name == "majority"]
    rows = score(load(folder), rules)
    (at_one,) = [row for row in rows if row["n"] == 1 and row["rule"] == "majority"]
    assert at_one["accuracy"] == pytest.approx(0.375)
    assert at_one["accuracy_95"] == pytest.approx(list(wilson(0.75, 2)))


# ---------------------------------------------------------------- whole runs


SEARCH = ("search=best_of_n", "search.n=2", "search.max_tokens=3", "verifier=confidence")


def asked(place: Path, file: str, *words: str) -> dict[str, Any]:
    data = ("dataset=gpqa", f"dataset.path={file}", "dataset.private=false")
    return run(composed(place, *words, data=data, search=SEARCH))


def test_a_run_goes_on_with_more_orders_and_keeps_its_records(file: str, tmp_path: Path) -> None:
    asked(tmp_path, file, "dataset.limit=3")
    once = by_id(tmp_path)
    assert all("order_of" not in r for r in once.values())
    summary = asked(tmp_path, file, "dataset.limit=3", "dataset.orders=2")
    went_on = by_id(tmp_path)
    assert {name: went_on[name] for name in once} == once and len(went_on) == 6
    assert went_on["gpqa-1-order2"]["order_of"] == "gpqa-1"
    assert (summary["problems"], summary["questions"]) == (6, 3)
    asked(tmp_path, file, "dataset.limit=3", "dataset.orders=2", "run.name=whole")
    assert by_id(tmp_path, "whole") == roughly(went_on)
    with pytest.raises(InvalidInput, match=r"does not ask for.*dataset\.orders"):
        asked(tmp_path, file, "dataset.limit=3")
    rows = unpaired_preference(FinishedRun.load(tmp_path / "outputs" / "r"))
    assert {row["id"] for row in rows} == set(went_on)
    assert len({row["prompt"] for row in rows}) == 6


@pytest.mark.slow
def test_shards_of_orders_are_merged_to_the_run_of_one_process(file: str, tmp_path: Path) -> None:
    words = ("dataset.limit=3", "dataset.orders=3")
    summary = asked(tmp_path, file, *words, "run.name=whole")
    folders = []
    for index in (1, 2):
        asked(tmp_path, file, *words, f"run.shard={index}/2")
        folders.append(tmp_path / "outputs" / f"r-shard{index}of2")
    merge(tmp_path / "outputs" / "r", folders)
    merged = json.loads((tmp_path / "outputs" / "r" / "summary.json").read_text())
    assert by_id(tmp_path) == roughly(by_id(tmp_path, "whole"))
    for name in ("problems", "questions", "accuracy", "accuracy_95", "pass_at_k", "maj_at_k"):
        assert merged[name] == pytest.approx(summary[name])
