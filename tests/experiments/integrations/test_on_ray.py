"""A run on Ray: its shards are solved in Ray's processes, and come back as one run."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from experiments.eval.merge import merging
from experiments.integrations.on_ray import RayWorker, solve
from experiments.runs.problem_loop import run
from experiments.runs.records import run_folder
from tests.helpers.records import roughly, without_costs
from tests.helpers.runs import composed, save_model, save_rows, typed
from ttc import InvalidInput

SAMPLED = ("search=self_consistency", "search.n=2", "search.max_tokens=8")


def place(folder: Path) -> list[str]:
    """A tiny model and seven problems in `folder`, and the settings of a run on them."""
    save_model(folder / "model")
    rows = [{"question": f"{i} and {i} ?", "answer": str(2 * i)} for i in range(7)]
    save_rows(folder / "rows.jsonl", rows)
    return typed(folder, search=SAMPLED)


def records(folder: Path) -> dict[str, Any]:
    lines = map(json.loads, (folder / "records.jsonl").read_text().splitlines())
    return {record["id"]: without_costs(record) for record in lines}


@pytest.mark.slow
def test_a_worker_gives_back_the_files_of_its_shard(tmp_path: Path) -> None:
    words = place(tmp_path)
    found = RayWorker(words)({"shard": "2/3"})
    config = composed(tmp_path, "run.shard=2/3", search=SAMPLED)
    run(config)
    folder = run_folder(config)
    assert found["folder"] == folder.name == "r-shard2of3"
    kept = ["config.yaml", "fingerprint.json", "provenance.json", "records.jsonl", "summary.json"]
    assert found["names"] == kept
    (tmp_path / "records.jsonl").write_text(found["texts"][3])
    assert records(tmp_path) == roughly(records(folder))
    assert list(records(folder)) == ["file-1", "file-4"]
    failed = RayWorker(words)({"shard": "9/9"})
    assert failed["folder"] is None and "is left without a problem" in failed["texts"][0]


@pytest.mark.few
@pytest.mark.parametrize(
    ("options", "overrides", "message"),
    [
        ({}, ["search=greedy"], r"give the run a name, as run\.name=NAME"),
        ({}, ["run.name=r", "run.shard=1/2"], r"run\.shard=1/2 is set here by --shards"),
        ({"workers": 0}, ["run.name=r"], "--workers=0 must be at least 1"),
        ({"shards": 0}, ["run.name=r"], "--shards=0 must be at least 1"),
    ],
)
def test_what_ray_cannot_run_is_refused(
    options: dict[str, Any], overrides: list[str], message: str
) -> None:
    settings: dict[str, Any] = {"workers": 1, "shards": None, "gpus": 0, "cpus": 1} | options
    with pytest.raises(InvalidInput, match=message):
        solve(**settings, overrides=overrides)


def test_there_are_no_more_shards_than_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = place(tmp_path)
    names = [f"r-shard{i}of7" for i in range(1, 8)]
    for name in names:  # all are done, so that nothing is left for Ray
        (tmp_path / "outputs" / name).mkdir(parents=True)
        (tmp_path / "outputs" / name / "summary.json").write_text("{}")
    merged = list[str]()
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.setattr(
        merging, "merge", lambda whole, parts: merged.extend(part.name for part in parts)
    )
    solve(workers=2, shards=None, gpus=0, cpus=1, overrides=words)
    assert merged == names


@pytest.mark.slow
def test_a_run_on_ray_is_the_run_of_one_process(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    words = place(tmp_path)
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    try:
        out = solve(workers=2, shards=3, gpus=0, cpus=1, overrides=words)
    finally:
        ray.shutdown()
    run(composed(tmp_path, "run.name=whole", search=SAMPLED))
    assert records(out) == roughly(records(tmp_path / "outputs" / "whole"))
    assert len(records(out)) == 7


def test_a_folder_for_temporary_files_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    (text,) = RayWorker(["search=greedy"])({"shard": "1/2"})["texts"]
    assert text.startswith("cannot write temporary files to")
