"""Runs in shards: which problems each one solves, and that together they are the run of one
process."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from omegaconf import OmegaConf

from experiments.eval.merge.merging import merge
from experiments.runs.problem_loop import run
from experiments.runs.shards import Shard, threads
from tests.helpers.processes import finished
from tests.helpers.records import by_id, roughly
from tests.helpers.runs import composed, save_model, save_rows, typed
from ttc import InvalidInput

SAMPLED = ["search=self_consistency", "search.n=2", "search.max_tokens=8"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    save_model(tmp_path / "model")
    rows = [{"question": f"{i} and {i} ?", "answer": str(2 * i)} for i in range(7)]
    save_rows(tmp_path / "rows.jsonl", [*rows[:3], {"question": ""}, *rows[3:], {"answer": "1"}])
    return tmp_path


def shards(place: Path, *indices: int, of: int = 3, words: tuple[str, ...] = ()) -> list[Path]:
    for index in indices:
        run(composed(place, *SAMPLED, f"run.shard={index}/{of}", *words))
    return [place / "outputs" / f"r-shard{index}of{of}" for index in indices]


def test_merged_shards_are_the_run_of_one_process(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = run(composed(place, *SAMPLED, "run.name=whole"))
    folders = shards(place, 1, 2, 3)
    out, whole = place / "outputs" / "r", place / "outputs" / "whole"
    assert [len(by_id(place, folder.name)) for folder in folders] == [4, 3, 2]
    assert f"python -m experiments.merge {out}" in capsys.readouterr().out
    merge(out, [folders[2], folders[0], folders[1]])
    found = by_id(place)
    assert found == roughly(by_id(place, "whole")) and len(found) == 9
    ids = [f"file-{i}" for i in (0, 1, 2, 4, 5, 6, 7)]
    assert [name for name in found if name in ids] == ids  # in the order of the data
    merged = json.loads((out / "summary.json").read_text())
    for name in ("problems", "correct", "failures", "failure_reasons", "pass_at_k", "maj_at_k"):
        assert merged[name] == summary[name]
    assert merged["generated_tokens"] == summary["generated_tokens"]
    for file in ("fingerprint.json", "provenance.json"):
        assert json.loads((out / file).read_text()) == json.loads((whole / file).read_text())
    made = OmegaConf.load(out / "config.yaml").run
    assert (made.name, made.shard) == ("r", None)
    capsys.readouterr()
    run(composed(place, *SAMPLED))  # goes on as the run of one process would
    assert "9 of 9 were done already" in capsys.readouterr().err


@pytest.mark.slow
def test_shards_are_found_by_their_names(place: Path) -> None:
    shards(place, 1, 2, of=2)
    merge(place / "outputs" / "r")
    assert len(by_id(place)) == 9
    with pytest.raises(InvalidInput, match="r holds 9 records already; give another folder"):
        merge(place / "outputs" / "r")
    with pytest.raises(InvalidInput, match=r"no folder is called .*other-shardIofN"):
        merge(place / "outputs" / "other")


@pytest.mark.slow
def test_what_is_not_the_parts_of_one_run_is_refused(place: Path) -> None:
    out, (first, second) = place / "outputs" / "out", shards(place, 1, 2, of=2)

    def refused(why: str, *folders: Path) -> None:
        with pytest.raises(InvalidInput, match=why):
            merge(out, folders)

    refused(r"shards are missing: 2/2; run them with run\.shard=2/2", first)
    refused("are both shard 1/2; leave one out", first, first)
    refused("is no folder; give folders of runs", first, place / "outputs" / "nothing")
    shards(place, 1, of=1, words=("run.name=w",))
    refused(r"one of 2 shards, .*one of 1", first, place / "outputs" / "w-shard1of1")
    for setting, why in (
        ("run.seed=5", r"are not parts of one run:\n  run\.seed: 0 -> 5"),
        ("dataset.limit=6", r"dataset\.limit: None -> 6"),
    ):
        shards(place, 2, of=2, words=("run.name=o", setting))
        refused(why, first, place / "outputs" / "o-shard2of2")
        rmtree(place / "outputs" / "o-shard2of2")
    file = second / "records.jsonl"
    kept = file.read_text().splitlines(keepends=True)
    file.write_text("".join(kept[:-1]))
    refused(r"shard2of2 has 1 of 4 problems left \(file-\d\); run that shard again", first, second)
    marks = [json.loads((folder / "fingerprint.json").read_text()) for folder in (first, second)]
    marks[1]["data"]["file-0"] = marks[0]["data"]["file-0"]
    (second / "fingerprint.json").write_text(json.dumps(marks[1]))
    (taken,) = [x for x in (first / "records.jsonl").open() if x.startswith('{"id": "file-0"')]
    file.write_text("".join([*kept, taken]))
    refused("both hold problem file-0", first, second)
    config = OmegaConf.load(second / "config.yaml")
    config.run.shard = None
    OmegaConf.save(config, second / "config.yaml")
    refused("r-shard2of2 is no shard", first, second)
    assert not out.exists()


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2", "1/2/3"])
def test_a_shard_is_a_part_of_a_whole(text: str) -> None:
    with pytest.raises(InvalidInput, match=rf"run\.shard={re.escape(text)} is no part of a whole"):
        Shard.read(text)


def test_a_shard_without_a_problem_is_refused(place: Path) -> None:
    with pytest.raises(
        InvalidInput, match=r"run\.shard=8/9 is left without a problem, as there are 7"
    ):
        run(composed(place, "run.shard=8/9"))


def test_shards_share_the_cores_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(**settings: Any) -> int | None:
        return threads(OmegaConf.create({"run": settings}))

    for name in ("OMP_NUM_THREADS", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    assert count(shard="1/4") == 2 and count(shard="3/3") == 2 and count(shard="1/16") == 1
    assert count(shard=None) is None and count(threads=3) == 3
    assert count(shard="1/4", threads=5) == 5
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert count(shard="1/4") is None and count(shard="1/4", threads=2) == 2
    with pytest.raises(InvalidInput, match=r"run\.threads=0 must be at least 1"):
        count(threads=0)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_a_launcher_runs_the_jobs_of_a_sweep_in_processes_of_their_own(
    place: Path, launcher: str
) -> None:
    pytest.importorskip(f"hydra_plugins.hydra_{launcher.partition('_')[0]}_launcher")
    job = [sys.executable, "-m", "experiments.run", "-m", f"hydra/launcher={launcher}"]
    job += [*typed(place, search=SAMPLED), "run.shard=1/2,2/2"]
    here = {"PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])}
    done = finished(job, cwd=place, env=os.environ | here)
    assert done.returncode == 0, done.stderr
    table = re.sub(r"\njob .*", "", done.stdout)
    assert re.search(r"2 jobs;.*\nshard=1/2 .*%.*\nshard=2/2 .*%", table)
    assert not list(place.glob(".ttc-sweep-*"))
    if launcher == "submitit_local":  # whose jobs' own lines go into logs
        logs = re.findall(r"job \d of 2: shard=\d/2 has begun, its log: (.+)", done.stderr)
        assert len(logs) == 2 and all("loading" in Path(log).read_text() for log in logs)
        assert sorted(re.findall(r"job (\d) of 2 is done", done.stderr)) == ["1", "2"]
    merge(place / "outputs" / "r")
    run(composed(place, *SAMPLED, "run.name=whole"))
    assert by_id(place) == roughly(by_id(place, "whole"))
