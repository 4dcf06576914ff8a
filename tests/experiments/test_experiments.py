"""Data sets, records that survive, summaries, and the main job end to end on the default model."""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from experiments.data import READERS, load_task
from experiments.records import MAY_CHANGE, RunFolder
from experiments.schema import Config, DatasetConfig, overrides_suffix
from experiments.summary import majority, pass_at_k, summarise, wilson
from ttc import InvalidInput, TTCError

ROWS = [
    {"question": "Ann has 2 pens and buys 3. How many?", "answer": "2 + 3 = 5\n#### 5"},
    {"question": "A robe takes {2} bolts. How many?", "answer": "It takes 1,200.\n#### 1,200"},
]


def dataset(**fields: Any) -> Any:
    name = fields.setdefault("name", "gsm8k")
    return OmegaConf.structured(DatasetConfig(**({"reader": name if name in READERS else "plain"} | fields)))


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    import pandas

    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".csv":
        pandas.DataFrame(rows).to_csv(path, index=False)
    else:
        pandas.DataFrame(rows).to_parquet(path)
    return str(path)


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
def test_a_local_file_in_every_format(tmp_path: Path, suffix: str) -> None:
    task = load_task(dataset(path=write(tmp_path / f"rows{suffix}", ROWS)))
    assert [(p.id, p.question, p.answer) for p in task.problems] == [
        ("gsm8k-0", ROWS[0]["question"], "5"),
        ("gsm8k-1", ROWS[1]["question"], "1200"),
    ]
    assert task.is_correct(task.problems[1], "$1,200.00") and not task.is_correct(task.problems[1], "12")
    assert not task.is_correct(task.problems[1], None)


def test_a_bad_row_fails_alone(tmp_path: Path) -> None:
    rows = [
        ROWS[0],
        {"answer": "#### 3"},
        {"question": "q", "answer": "no mark"},
        {"question": None, "answer": "#### 1"},
    ]
    path = write(tmp_path / "rows.jsonl", rows)
    Path(path).write_text(Path(path).read_text() + "{torn\n")
    task = load_task(dataset(path=path))
    assert [p.id for p in task.problems] == ["gsm8k-0"]
    assert [name for name, _ in task.failures] == ["gsm8k-1", "gsm8k-2", "gsm8k-3", "gsm8k-4"]
    assert "question" in task.failures[0][1] and "####" in task.failures[1][1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"path": "/no/such/file.jsonl"}, "is not a file"),
        ({"path": __file__}, "'.py'"),
        ({}, "names no source"),
        ({"path": __file__, "limit": 0}, "dataset.limit=0"),
        ({"path": __file__, "offset": -1}, "dataset.offset=-1"),
        ({"path": __file__, "answer_kind": "poem"}, "poem"),
        ({"task": "no_such_task"}, "no_such_task"),
        ({"task": "chain_sum", "path": "mine.jsonl"}, "mine.jsonl would not be read"),
        ({"task": "chain_sum", "size": 5, "offset": 5}, "none after dataset.offset=5"),
        ({"task": "chain_sum", "params": {"min_term": 1}}, "min_term"),
    ],
)
def test_an_unusable_source_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        load_task(dataset(**fields))


def test_rows_that_nothing_can_read_are_refused_with_a_reason(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", ROWS)
    with pytest.raises(InvalidInput, match=r"none of the 2 rows .* gpqa-0: .*Question"):
        load_task(dataset(name="gpqa", path=path))
    with pytest.raises(InvalidInput, match="poetry"):
        load_task(dataset(reader="poetry", path=path))
    own = load_task(dataset(name="my-gsm8k", reader="gsm8k", path=path))
    assert [p.id for p in own.problems] == ["my-gsm8k-0", "my-gsm8k-1"]


def test_ids_are_kept_once(tmp_path: Path) -> None:
    rows = [{"id": i, "question": "q?", "answer": a} for i, a in (("a", "1"), (None, "2"), ("a", "3"), ("b", 4))]
    task = load_task(dataset(name="mine", path=write(tmp_path / "rows.jsonl", rows)))
    assert [(p.id, p.answer) for p in task.problems] == [("a", "1"), ("mine-1", "2"), ("b", "4")]
    assert [name for name, _ in task.failures] == ["mine-2"] and "'a'" in task.failures[0][1]


def test_text_files_are_read_as_they_are(tmp_path: Path) -> None:
    odd = "one\u2028two\x85three"
    file = tmp_path / "rows.jsonl"
    file.write_text("\ufeff" + json.dumps({"question": odd, "answer": "1"}, ensure_ascii=False) + "\n", "utf-8")
    assert [p.question for p in load_task(dataset(name="mine", path=str(file))).problems] == [odd]
    file.write_bytes(b'{"question": "caf\xe9", "answer": "1"}\n')
    with pytest.raises(InvalidInput, match="not UTF-8"):
        load_task(dataset(name="mine", path=str(file)))
    table = tmp_path / "rows.csv"
    columns = ["Question", "Correct Answer", *(f"Incorrect Answer {i}" for i in (1, 2, 3))]
    table.write_text(",".join(columns) + "\nq,None,N/A,1,2\n")
    (problem,) = load_task(dataset(name="gpqa", path=str(table), answer_kind="choice")).problems
    assert ") None" in problem.question and ") N/A" in problem.question


@pytest.mark.skipif(find_spec("pycosat") is not None, reason="pycosat is installed")
def test_the_one_task_that_needs_a_compiled_package_says_so() -> None:
    with pytest.raises(InvalidInput, match="pip install pycosat"):
        load_task(dataset(name="zebras", task="zebra_puzzles", size=1))


def test_limit_and_offset(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", ROWS * 3)
    assert [p.id for p in load_task(dataset(path=path, offset=1, limit=2)).problems] == ["gsm8k-1", "gsm8k-2"]
    with pytest.raises(InvalidInput, match="6 rows"):
        load_task(dataset(path=path, offset=6))


def test_gpqa_choices_are_shuffled_by_question_alone(tmp_path: Path) -> None:
    rows = [
        {"Question": f"q{i}?", "Correct Answer": "right", **{f"Incorrect Answer {k}": f"wrong{k}" for k in (1, 2, 3)}}
        for i in range(40)
    ]
    path, turned = write(tmp_path / "a.csv", rows), write(tmp_path / "b.csv", rows[::-1])
    problems = load_task(dataset(name="gpqa", path=path, answer_kind="choice")).problems
    for problem in problems:
        assert f"({problem.answer}) right" in problem.question
    assert {p.answer for p in problems} == set("ABCD")
    other = load_task(dataset(name="gpqa", path=turned, answer_kind="choice")).problems[::-1]
    assert [p.question for p in problems] == [p.question for p in other]
    reseeded = load_task(dataset(name="gpqa", path=path, answer_kind="choice", shuffle_seed=1)).problems
    assert [p.question for p in problems] != [p.question for p in reseeded]


def test_arc_and_math(tmp_path: Path) -> None:
    row = {"question": "Which?", "choices": {"text": ["a", "b", "c"], "label": ["1", "2", "3"]}, "answerKey": "3"}
    path = write(tmp_path / "arc.jsonl", [row, row | {"answerKey": "9"}])
    task = load_task(dataset(name="arc_challenge", path=path, answer_kind="choice"))
    assert task.problems[0].answer == "C" and task.problems[0].question == "Which?\n(A) a\n(B) b\n(C) c"
    assert len(task.failures) == 1
    path = write(tmp_path / "math.jsonl", [{"problem": "Half?", "answer": r"\frac{1}{2}"}])
    task = load_task(dataset(name="math500", path=path, answer_kind="math"))
    assert task.is_correct(task.problems[0], "0.5") and not task.is_correct(task.problems[0], "2")


def test_reasoning_gym_scores_by_its_own_rules() -> None:
    task = load_task(dataset(name="sums", task="chain_sum", size=5, params={"min_terms": 2, "max_terms": 2}))
    again = load_task(dataset(name="sums", task="chain_sum", size=5, limit=2, params={"min_terms": 2, "max_terms": 2}))
    assert [p.question for p in again.problems] == [p.question for p in task.problems[:2]]
    for problem in task.problems:
        assert problem.answer is not None
        assert task.is_correct(problem, problem.answer) and not task.is_correct(problem, str(int(problem.answer) + 1))


def config(tmp_path: Path, **run: Any) -> Any:
    made = OmegaConf.structured(Config())
    made.model.name, made.dataset.name = "m", "d"
    made.run.name, made.run.output_dir = "r", str(tmp_path)
    return OmegaConf.merge(made, {"run": run})


def test_records_survive_a_torn_line(tmp_path: Path) -> None:
    with RunFolder(config(tmp_path)) as folder:
        for i in range(3):
            folder.append({"id": str(i), "value": "é" * 50})
    file = tmp_path / "r" / "records.jsonl"
    whole = file.read_bytes()
    for cut in (1, 20, 70):
        file.write_bytes(whole[:-cut])
        with RunFolder(config(tmp_path)) as folder:
            assert list(folder.records) == ["0", "1"]
            folder.append({"id": "2", "value": "é" * 50})
        assert file.read_bytes() == whole
    file.write_bytes(b"{broken\n" + whole)
    with pytest.raises(InvalidInput, match="line 1 is damaged"):
        RunFolder(config(tmp_path))


def test_a_changed_configuration_is_refused_with_the_difference(tmp_path: Path) -> None:
    with RunFolder(config(tmp_path)) as folder:
        folder.append({"id": "0"})
    with pytest.raises(InvalidInput, match=r"run\.seed: 0 -> 5"):
        RunFolder(config(tmp_path, seed=5))
    RunFolder(config(tmp_path, show_questions=True)).close()


def test_a_run_that_never_started_leaves_its_name_free(tmp_path: Path) -> None:
    RunFolder(config(tmp_path)).close()
    with RunFolder(config(tmp_path, seed=5)) as folder:
        folder.append({"id": "0"})
    with pytest.raises(InvalidInput, match=r"run\.seed: 5 -> 0"):
        RunFolder(config(tmp_path))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TTCError, match=r"cannot write to .*file/r"):
        RunFolder(config(tmp_path, output_dir=str(tmp_path / "file")))


def test_two_processes_cannot_share_a_run(tmp_path: Path) -> None:
    with RunFolder(config(tmp_path)), pytest.raises(InvalidInput, match="in use"):
        RunFolder(config(tmp_path))


def test_a_full_disk_keeps_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with RunFolder(config(tmp_path)) as folder:
        folder.append({"id": "0"})
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(TTCError, match=r"No space left on device.*1 records"):
            folder.append({"id": "1"})
        monkeypatch.undo()
    with RunFolder(config(tmp_path)) as folder:
        assert "0" in folder.records


def test_wilson() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(8, 20) == pytest.approx((0.2188, 0.6134), abs=1e-4)  # published example values
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)


@given(st.integers(1, 7), st.data())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_pass_at_k_counts_subsets(n: int, data: Any) -> None:
    correct, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    hits = [any(i < correct for i in subset) for subset in itertools.combinations(range(n), k)]
    assert math.isclose(pass_at_k(n, correct, k), sum(hits) / len(hits))


def test_majority_and_summary() -> None:
    assert majority(["3", None, "4", "3.0", "4"]) == "3"
    assert majority([None, None]) is None

    def record(answers: list[str], right: str) -> dict[str, Any]:
        branches = [{"path": [i], "answer": a, "correct": a == right} for i, a in enumerate(answers)]
        usage = {"generated_tokens": 10, "verifier_tokens": 2, "prompt_tokens": 5}
        return {
            "correct": answers[0] == right,
            "correct_strict": False,
            "error": None,
            "branches": branches,
            "usage": usage,
            "timing": {"host_to_device_bytes": 7, "device_to_host_bytes": 3},
        }

    summary = summarise([record(["1", "2", "2", "5"], "2"), record(["7", "7", "8", "9"], "7")])
    assert summary["accuracy"] == 0.5 and summary["accuracy_strict"] == 0.0
    assert summary["pass_at_k"] == pytest.approx({"1": 0.5, "2": (5 / 6 + 5 / 6) / 2, "4": 1.0})
    assert summary["maj_at_k"] == {"1": 0.5, "2": 0.5, "4": 1.0}
    assert (summary["host_to_device_bytes"], summary["device_to_host_bytes"]) == (14, 6)
    assert (summary["generated_tokens"], summary["verifier_tokens"]) == (20, 4)
    assert summary["approximate"] == {}
    failed = record(["1"], "2") | {"branches": [], "error": "InvalidInput: ..."}
    failed["usage"] |= {"gated_branches": 3, "verifications_skipped": 2}
    summary = summarise([record(["7", "7"], "7"), failed])
    assert (summary["pass_at_k"], summary["maj_at_k"]) == ({"1": 0.5, "2": 0.5}, {"1": 0.5, "2": 0.5})
    assert summary["approximate"] == {"problems_not_verified": 1, "branches_stopped_by_the_gate": 3}


def test_settings_of_a_sweep_have_folders_of_their_own() -> None:
    assert (
        overrides_suffix(["search=greedy", "run.seed=3", "dataset.path=/x/y.jsonl", "dataset.limit=3"], MAY_CHANGE)
        == ""
    )
    assert overrides_suffix(["search.n=4", "+verifier/exit=ranking", "model.name=a/b"], ()) == (
        "-+verifier_exit=ranking-model.name=a_b-search.n=4"
    )
    long = [overrides_suffix([f"dataset.instruction={'x' * 200}{i}"], ()) for i in range(2)]
    assert long[0] != long[1] and max(map(len, long)) < 120


# ---------------------------------------------------------------- the main job

FAST = ["dataset.size=6", "run.batch=3", "search=beam_search", "search.beam_size=2", "search.beam_width=2"]


def job(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "experiments.run", *arguments, f"run.output_dir={folder}"]


def records(folder: Path, name: str) -> dict[str, Any]:
    lines = (folder / name / "records.jsonl").read_text().splitlines()
    found = {record["id"]: record for record in map(json.loads, lines)}
    assert len(found) == len(lines)  # no problem twice
    for record in found.values():
        del record["timing"]
    return found


def test_a_killed_run_goes_on_to_the_same_records(tmp_path: Path) -> None:
    subprocess.run(job(tmp_path, "run.name=whole", *FAST), check=True, capture_output=True)
    whole = records(tmp_path, "whole")
    assert len(whole) == 6
    killed = subprocess.Popen(
        job(tmp_path, "run.name=killed", *FAST), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    file = tmp_path / "killed" / "records.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (file.exists() and file.read_bytes().count(b"\n") >= 1):
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    before = file.read_bytes()
    assert 1 <= before.count(b"\n") < 6
    file.write_bytes(before + b'{"id": "torn')
    done = subprocess.run(job(tmp_path, "run.name=killed", *FAST), check=True, capture_output=True, text=True)
    assert file.read_bytes().startswith(before)
    assert records(tmp_path, "killed") == whole
    summary = json.loads((tmp_path / "killed" / "summary.json").read_text())
    assert summary["problems"] == 6 and f"{summary['accuracy']:.1%}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search.beam_sise=3"], "beam_sise"),
        (["search.beam_size=many"], "many"),
        (["search.beam_size=0"], "error: beam_size=0"),
        (["model=hf"], "model.name must be given"),
        (["dataset=file"], "give dataset.path"),
        (["dataset.path=mine.jsonl"], "dataset=file"),
        (["verifier=self", "+verifier/exit=ranking"], "different ratings"),
        (["dataset.limt=3"], "limt"),
        (["search=beem_search"], "beem_search"),
        (["verifier=none"], "verifier"),
        (["model.name=/no/such/model"], "/no/such/model"),
        (["memory.budget_gib=0.0001"], "would do"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = subprocess.run(job(tmp_path, *arguments), capture_output=True, text=True)
    assert done.returncode != 0
    assert message in done.stderr
    assert not list(tmp_path.glob("*/config.yaml"))


def test_a_sweep_goes_on_after_a_job_that_fails(tmp_path: Path) -> None:
    arguments = ["-m", "search=best_of_n", "search.n=0,2", "dataset.size=1"]
    done = subprocess.run(job(tmp_path, *arguments), capture_output=True, text=True)
    assert "error: n=0" in done.stderr and done.returncode != 0
    assert [p.parent.name for p in tmp_path.glob("*/summary.json")] == ["sums-best_of_n-arithmetic-seed0-search.n=2"]


def test_a_sweep_runs_every_search(tmp_path: Path) -> None:
    searches = "search=greedy,best_of_n,self_consistency,beam_search"
    path = write(tmp_path / "rows.jsonl", ROWS)
    arguments = ["-m", searches, "dataset=gsm8k", f"dataset.path={path}", "dataset.limit=1"]
    subprocess.run(job(tmp_path, *arguments), check=True, capture_output=True)
    assert sorted(p.parent.name for p in tmp_path.glob("*/summary.json")) == [
        f"gsm8k-rows-{name}-seed0"
        for name in ("beam_search-arithmetic", "best_of_n-arithmetic", "greedy", "self_consistency")
    ]
