"""Runs in shards: which problems each one solves, and that together they are the run of one
process."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from experiments.eval.merge.merging import merge
from experiments.runs.problem_loop import run
from experiments.runs.shards import Shard, threads
from tests.helpers.processes import finished
from tests.helpers.records import roughly, without_costs
from tests.helpers.runs import composed, save_model, save_rows
from ttc import InvalidInput

SAMPLED = ["search=self_consistency", "search.n=2", "search.max_tokens=8"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    save_model(tmp_path / "model")
    rows: list[dict[str, Any]] = [
        {"question": f"{i} and {i} ?", "answer": str(2 * i)} for i in range(7)
    ]
    save_rows(tmp_path / "rows.jsonl", [*rows[:3], {"question": ""}, *rows[3:], {"answer": "1"}])
    return tmp_path


def shards(place: Path, *indices: int, of: int = 3, words: tuple[str, ...] = ()) -> list[Path]:
    for index in indices:
        run(composed(place, *SAMPLED, f"run.shard={index}/{of}", *words))
    return [place / "outputs" / f"r-shard{index}of{of}" for index in indices]


def records(folder: Path) -> dict[str, Any]:
    lines = map(json.loads, (folder / "records.jsonl").read_text().splitlines())
    return {record["id"]: without_costs(record) for record in lines}


def test_merged_shards_are_the_run_of_one_process(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = run(composed(place, *SAMPLED, "run.name=whole"))
    folders, out, whole = (
        shards(place, 1, 2, 3),
        place / "outputs" / "r",
        place / "outputs" / "whole",
    )
    assert [len(records(folder)) for folder in folders] == [4, 3, 2]
    assert f"python -m experiments.merge {out}" in capsys.readouterr().out
    merge(out, [folders[2], folders[0], folders[1]])
    assert records(out) == roughly(records(whole)) and len(records(out)) == 9
    ids = [f"file-{i}" for i in (0, 1, 2, 4, 5, 6, 7)]
    assert [name for name in records(out) if name in ids] == ids  # in the order of the data
    merged = json.loads((out / "summary.json").read_text())
    same = (
        "problems",
        "correct",
        "failures",
        "failure_reasons",
        "pass_at_k",
        "maj_at_k",
        "generated_tokens",
    )
    assert {name: merged[name] for name in same} == {name: summary[name] for name in same}
    for file in ("fingerprint.json", "provenance.json"):
        assert json.loads((out / file).read_text()) == json.loads((whole / file).read_text())
    apart = {"run.name": "r", "run.shard": None}
    config = OmegaConf.load(out / "config.yaml")
    assert {key: OmegaConf.select(config, key) for key in apart} == apart
    capsys.readouterr()
    run(composed(place, *SAMPLED))  # goes on as the run of one process would
    assert "9 of 9 were done already" in capsys.readouterr().err


@pytest.mark.slow
def test_shards_are_found_by_their_names(place: Path) -> None:
    shards(place, 1, 2, of=2)
    merge(place / "outputs" / "r")
    assert len(records(place / "outputs" / "r")) == 9
    with pytest.raises(InvalidInput, match="r holds 9 records already; give another folder"):
        merge(place / "outputs" / "r")
    with pytest.raises(InvalidInput, match=r"no folder is called .*other-shardIofN"):
        merge(place / "outputs" / "other")


@pytest.mark.slow
def test_what_is_not_the_parts_of_one_run_is_refused(place: Path) -> None:
    out, (first, second) = place / "outputs" / "out", shards(place, 1, 2, of=2)
    with pytest.raises(
        InvalidInput, match=r"shards are missing: 2/2; run them with run\.shard=2/2"
    ):
        merge(out, [first])
    with pytest.raises(InvalidInput, match="are both shard 1/2; leave one out"):
        merge(out, [first, first])
    with pytest.raises(InvalidInput, match="is no folder; give folders of runs"):
        merge(out, [first, place / "outputs" / "nothing"])
    shards(place, 1, of=1, words=("run.name=w",))
    with pytest.raises(InvalidInput, match=r"one of 2 shards, .*one of 1"):
        merge(out, [first, place / "outputs" / "w-shard1of1"])
    other = place / "outputs" / "o-shard2of2"
    shards(place, 2, of=2, words=("run.name=o", "run.seed=5"))
    with pytest.raises(InvalidInput, match=r"are not parts of one run:\n  run\.seed: 0 -> 5"):
        merge(out, [first, other])
    shards(place, 2, of=2, words=("run.name=few", "dataset.limit=6"))
    with pytest.raises(InvalidInput, match=r"dataset\.limit: None -> 6"):
        merge(out, [first, place / "outputs" / "few-shard2of2"])
    file = second / "records.jsonl"
    kept = file.read_text().splitlines(keepends=True)
    file.write_text("".join(kept[:-1]))
    with pytest.raises(
        InvalidInput,
        match=r"r-shard2of2 has 1 of 4 problems left \(file-\d\); run that shard again",
    ):
        merge(out, [first, second])
    doubled = json.loads((second / "fingerprint.json").read_text())
    doubled["data"]["file-0"] = json.loads((first / "fingerprint.json").read_text())["data"][
        "file-0"
    ]
    (second / "fingerprint.json").write_text(json.dumps(doubled))
    taken = [
        line
        for line in (first / "records.jsonl").read_text().splitlines(keepends=True)
        if '"file-0"' in line
    ]
    file.write_text("".join([*kept, *taken]))
    with pytest.raises(InvalidInput, match="both hold problem file-0"):
        merge(out, [first, second])
    config = OmegaConf.load(second / "config.yaml")
    config.run.shard = None
    OmegaConf.save(config, second / "config.yaml")
    with pytest.raises(InvalidInput, match="r-shard2of2 is no shard"):
        merge(out, [first, second])
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
    assert (
        count(shard=None) is None and count(shard="1/4", threads=5) == 5 and count(threads=3) == 3
    )
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert count(shard="1/4") is None and count(shard="1/4", threads=2) == 2
    with pytest.raises(InvalidInput, match=r"run\.threads=0 must be at least 1"):
        count(threads=0)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_a_launcher_runs_the_jobs_of_a_sweep_in_processes_of_their_own(
    place: Path, launcher: str
) -> None:
    pytest.importorskip(
        f"hydra_plugins.hydra_{launcher.partition('_')[0]}_launcher",
        reason=f"{launcher} is missing",
    )
    words = [
        "model=hf",
        f"model.name={place / 'model'}",
        "model.dtype=float32",
        "dataset=file",
        *SAMPLED,
    ]
    words += [
        f"dataset.path={place / 'rows.jsonl'}",
        "dataset.instruction='{question}'",
        "run.name=r",
    ]
    job = [sys.executable, "-m", "experiments.run", "-m", f"hydra/launcher={launcher}", *words]
    job += [f"run.output_dir={place / 'outputs'}", "run.shard=1/2,2/2"]
    here = {"PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])}
    done = finished(job, cwd=place, env=os.environ | here)
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"2 jobs;.*\nshard=1/2 .*%.*\nshard=2/2 .*%", re.sub(r"\njob .*", "", done.stdout)
    )
    assert not list(place.glob(".ttc-sweep-*"))
    if launcher == "submitit_local":  # whose jobs' own lines go into logs
        logs = re.findall(r"job \d of 2: shard=\d/2 has begun, its log: (.+)", done.stderr)
        assert len(logs) == 2 and all("loading" in Path(log).read_text() for log in logs)
        assert sorted(re.findall(r"job (\d) of 2 is done", done.stderr)) == ["1", "2"]
    merge(place / "outputs" / "r")
    run(composed(place, *SAMPLED, "run.name=whole"))
    assert records(place / "outputs" / "r") == roughly(records(place / "outputs" / "whole"))
