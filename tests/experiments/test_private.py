"""What a run on private data leaves behind has no text of its questions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.runs.data import load_task
from experiments.runs.hydra_command import composed
from experiments.runs.problem_loop import run
from tests.helpers.benches import save_tiny_model

COLUMNS = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


@pytest.mark.parametrize("private", [True, False])
def test_no_file_of_a_private_run_holds_a_text(tmp_path: Path, private: bool) -> None:
    row = {"Question": "Which zebra?"} | {name: f"quagga {i}" for i, name in enumerate(COLUMNS)}
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps(row) + "\n" + json.dumps(row | {"Correct Answer": ""}) + "\n")
    run(
        composed(
            [
                "dataset=gpqa",
                f"dataset.path={data}",
                f"dataset.private={private}",
                "search=best_of_n",
                "search.n=2",
                "search.max_tokens=8",
                "model=hf",
                f"model.name={save_tiny_model(tmp_path / 'model')}",
                f"run.output_dir={tmp_path / 'out'}",
                "run.name=a",
            ]
        )
    )
    folder = tmp_path / "out" / "a"
    written = "".join(f.read_text() for f in folder.iterdir() if f.is_file())
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    branches = [b for r in records for b in (*r["branches"], *r["tree"])]
    assert ("zebra" in written or "quagga" in written) is not private
    assert any(b["text"] for b in branches) is not private
    assert any(b.get("score") is not None for b in branches)


@pytest.mark.parametrize("reader", ["gpqa", "arc_challenge"])
def test_sets_of_choices_read_fields_of_other_names(tmp_path: Path, reader: str) -> None:
    row = {"Q": "Which?", "right": "one", "why": "so"} | dict.fromkeys(COLUMNS[1:], "two")
    if reader == "arc_challenge":
        row |= {"right": "A", "choices": {"label": ["A", "B"], "text": ["one", "two"]}}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    names = {"question": "Q", "answer": "right", "solution": "why"}
    fields = [f"dataset.fields.{name}={own}" for name, own in names.items()]
    (problem,) = load_task(
        composed([f"dataset={reader}", f"dataset.path={path}", *fields]).dataset
    ).problems
    assert problem.question.startswith("Which?\n(A) ") and problem.metadata["solution"] == "so"
    assert f"({problem.answer}) one" in problem.question
