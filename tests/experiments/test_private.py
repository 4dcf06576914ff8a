"""What a run on private data leaves behind has no text of its questions."""

from __future__ import annotations

import json
import logging
import sys
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from experiments.eval.compare.command import compare
from experiments.eval.compare.command import parsed as to_compare
from experiments.eval.export.command import export
from experiments.eval.export.command import parsed as to_export
from experiments.eval.merge.merging import merge
from experiments.eval.select import main as select
from experiments.runs.data import load_task
from experiments.runs.hydra_command import composed
from experiments.runs.private import without_quotes
from experiments.runs.problem_loop import run
from tests.helpers.benches import save_tiny_model
from tests.helpers.parts import installed
from tests.helpers.records import records
from tests.helpers.runs import composed as small_run
from tests.helpers.runs import save_model, save_rows
from ttc.errors import TTCError

COLUMNS = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


@pytest.mark.few(1)
@pytest.mark.parametrize("private", [True, False])
def test_no_file_of_a_private_run_holds_a_text(tmp_path: Path, private: bool) -> None:
    row = {"Question": "Which zebra?"} | {name: f"quagga {i}" for i, name in enumerate(COLUMNS)}
    path = save_rows(tmp_path / "rows.jsonl", [row, row | {"Correct Answer": ""}])
    save_tiny_model(tmp_path / "model")
    data = ("dataset=gpqa", f"dataset.path={path}", f"dataset.private={private}")
    run(small_run(tmp_path, data=data, search=("search=best_of_n", "search.n=2")))
    folder = tmp_path / "outputs" / "r"
    written = "".join(f.read_text() for f in folder.iterdir() if f.is_file())
    branches = [b for r in records(tmp_path) for b in (*r["branches"], *r["tree"])]
    assert ("zebra" in written or "quagga" in written) is not private
    assert any(b["text"] for b in branches) is not private
    assert any(b.get("score") is not None for b in branches)


@pytest.mark.parametrize("reader", ["gpqa", "arc_challenge"])
def test_sets_of_choices_read_fields_of_other_names(tmp_path: Path, reader: str) -> None:
    row = {"Q": "Which?", "right": "one", "why": "so"} | dict.fromkeys(COLUMNS[1:], "two")
    if reader == "arc_challenge":
        row |= {"right": "A", "choices": {"label": ["A", "B"], "text": ["one", "two"]}}
    path = save_rows(tmp_path / "rows.jsonl", [row])
    names = {"question": "Q", "answer": "right", "solution": "why"}
    fields = [f"dataset.fields.{name}={own}" for name, own in names.items()]
    config = composed([f"dataset={reader}", f"dataset.path={path}", *fields])
    (problem,) = load_task(config.dataset).problems
    assert problem.question.startswith("Which?\n(A) ") and problem.metadata["solution"] == "so"
    assert f"({problem.answer}) one" in problem.question


PARTS = """
from ttc import InvalidInput, Problem

def read(row, id, dataset):
    if row["question"].endswith("unread"):
        raise InvalidInput(f"no reader for {row['question']}; the file says so")
    return Problem(row["question"], id, row["answer"])

def grade(gold, answer):
    if gold == "zebra7 gold":
        raise ValueError(f"cannot read {gold} or {answer}")
    return gold == answer

class Fussy:
    def rate(self, branches, questions, backend):
        if any("fussy" in question for question in questions):
            raise ValueError(f"too hard: {questions} and {[b.text for b in branches]}")
        return [[0.5] for _ in branches]
"""
WORDS = [f"zebra{i}" for i in range(40)]
"""What the model writes, and all questions and answers are made of."""


@pytest.mark.slow
@pytest.mark.parametrize("private", [True, False])
def test_no_command_writes_or_shows_a_private_text(
    tmp_path: Path,
    private: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given, made = tmp_path / "given", tmp_path / "made"
    given.mkdir()
    monkeypatch.chdir(given)
    monkeypatch.syspath_prepend(given)
    (given / "private_parts.py").write_text(PARTS)
    model = save_model(given / "model", more=WORDS)
    rows = [
        {"question": f"{word} and", "answer": f"{word} gold", "of": f"passage {word}"}
        for word in WORDS[:4]
    ]
    rows += [
        {"question": "zebra7 and", "answer": "zebra7 gold", "of": "zebra1"},  # has no grade
        {"question": "zebra8 fussy", "answer": "zebra8", "of": "zebra1"},  # has no rating
        {"question": "zebra9 unread", "answer": "zebra9"},
        {"question": "zebra10 and"},
    ]
    settings = {
        "model": "hf",
        "model.name": model,
        "model.dtype": "float32",
        "dataset": "file",
        "dataset.path": save_rows(given / "rows.jsonl", rows),
        "dataset.answer_kind": "text",
        "dataset.private": private,
        "dataset.fields.source": "of",
        "dataset.reader": "private_parts.read",
        "dataset.grader": "private_parts.grade",
    }
    words = [f"{name}={value}" for name, value in settings.items()]
    words += ["search=best_of_n", "search.n=2", "search.max_tokens=6", f"run.output_dir={made}"]
    words += ["verifier=private_parts.Fussy", "run.show_example=true"]

    run(composed([*words, "run.name=a", "run.dry=true"]))
    for more in ("a", "b run.seed=1", "c run.shard=1/2", "c run.shard=2/2"):
        run(composed([*words, *f"run.name={more}".split()]))
    logging.getLogger("ttc").warning("comparing 'zebra1 gold' and 'zebra2' takes long")
    merge(made / "c", [])
    compare(to_compare([str(made / "a"), str(made / "b"), str(made / "c")]))
    for name in ("a", "c") if installed("command", "view") else ():
        view = import_module("experiments.pages.view.command")
        view.view(view.parsed([str(made / name)]))
    board = {
        "name": "board",
        "models": [{"name": "tiny", "model": "hf", "model.name": model}],
        "datasets": [{"name": "own", **{k: v for k, v in settings.items() if "model" not in k}}],
        "searches": [{"name": "greedy", "search": "greedy", "search.max_tokens": 5}],
        "budgets": [500],
        "seeds": [0],
        "output_dir": str(made),
    }
    (given / "board.yaml").write_text(yaml.safe_dump(board))
    if installed("command", "leaderboard"):
        board_command = import_module("experiments.pages.leaderboard.command")
        board_command.leaderboard(board_command.parsed([str(given / "board.yaml")]))
    monkeypatch.setattr(sys, "argv", ["select", str(made / "a")])
    select()
    for words_of_export in (["--format", "trl"], []):
        try:
            export(to_export([str(made / "a"), *words_of_export]))
        except TTCError as error:
            print(error)
    steps = {"id": "gsm8k-0", "problem": "zebra1 fussy", "steps": ["zebra2", "zebra3"], "label": -1}
    (given / "steps.jsonl").write_text(json.dumps(steps) + "\n")
    if installed("command", "processbench"):
        rated = [
            *(f"model.name={model}", "model.dtype=float32", f"dataset.private={private}"),
            *(f"processbench.data={given / 'steps.jsonl'}", "verifier=private_parts.Fussy"),
            *("run.name=steps", f"run.output_dir={made}"),
        ]
        job = import_module("experiments.recipes.processbench.job")
        job.run(composed(rated, "processbench"))

    shown = capsys.readouterr()
    files = [file for file in made.rglob("*") if file.is_file()]
    left = {str(file.relative_to(made)): file.read_text() for file in files}
    left |= {"stdout": shown.out, "stderr": shown.err}
    found = {name for name, text in left.items() if "zebra" in text}
    if private:
        assert not found
        errors = [json.loads(line)["error"] for line in left["a/records.jsonl"].splitlines()]
        assert sum("private_parts.py:" in str(error) for error in errors) == 3
    else:
        made_by = {"view": ["c/view.html"], "leaderboard": ["board/leaderboard.json"]}
        made_by["processbench"] = ["steps/records.jsonl"]
        of_parts = {f for name in made_by if installed("command", name) for f in made_by[name]}
        assert {"a/records.jsonl", "a/stepwise-supervision.jsonl", *of_parts} <= found
        assert {"stdout", "stderr"} <= found
    assert {"a/records.jsonl", "c/records.jsonl"} <= left.keys()


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        ("InvalidInput: the text 'zebra's que, of type str; give", "InvalidInput: the text ..."),
        ("ValueError: zebra (own.py:3)", "ValueError: ... (own.py:3)"),
        ("Mine raised KeyError: zebra (own.py:3)", "Mine raised KeyError: ... (own.py:3)"),
        ("Mine raised E: zebra (own.py:3), on a branch made", "Mine raised E: ... (own.py:3)"),
        ("ValueError: zebra (quagga:3)", "ValueError: ..."),
        ("InvalidInput: it isn't a zebra; give one", "InvalidInput: it isn't a ...; give one"),
    ],
)
def test_errors_keep_what_is_not_of_the_question(message: str, kept: str) -> None:
    assert without_quotes(message, ["Which zebra?"]) == kept
