"""The main job end to end on the default model."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hydra.errors import HydraException

from experiments.run import launch
from experiments.runs.problem_loop import run
from experiments.runs.sweep import JobOutcome, Outcomes
from tests.helpers.benches import save_tiny_model
from tests.helpers.configurations import configuration
from tests.helpers.processes import finished, run_until_killed, started
from tests.helpers.records import roughly, without_costs
from tests.helpers.tiers import slow
from ttc import InvalidInput, TTCError, VerifierError
from ttc.compiling import LINE
from verifiers import ArithmeticVerifier

FAST = [
    *("dataset.size=4", "model.dtype=float32", "run.batch=2"),
    *("search.beam_size=2", "search.beam_width=2", "search.max_steps=4"),
]


def job(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "experiments.run", *arguments, f"run.output_dir={folder}"]


def run_here(folder: Path, *arguments: str) -> dict[str, Any]:
    """The job in this process, where the model stays loaded."""
    return run(configuration("run", "run.name=r", f"run.output_dir={folder}", *arguments))


def records(folder: Path, name: str) -> dict[str, Any]:
    lines = (folder / name / "records.jsonl").read_text().splitlines()
    found = {record["id"]: without_costs(record) for record in map(json.loads, lines)}
    assert len(found) == len(lines)  # no problem twice
    return found


def wait_for_records(file: Path, count: int) -> None:
    """Until a run of another process has written so many."""
    deadline = time.monotonic() + 400
    while not file.exists() or file.read_bytes().count(b"\n") < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = [*FAST, "model=hf", f"model.name={save_tiny_model(tmp_path / 'model')}"]
    run_here(tmp_path, *short)
    whole = records(tmp_path, "r")
    assert len(whole) == 4
    file = tmp_path / "killed" / "records.jsonl"
    arguments = ["run.name=killed", f"run.output_dir={tmp_path}", *short]
    run_until_killed("experiments.run", 2, *arguments)
    before = file.read_bytes()
    assert before.count(b"\n") == 2
    file.write_bytes(before + b'{"id": "torn')
    capsys.readouterr()
    run_here(tmp_path, *short, "run.name=killed")
    assert file.read_bytes().startswith(before)
    assert records(tmp_path, "killed") == roughly(whole)
    summary = json.loads((tmp_path / "killed" / "summary.json").read_text())
    assert summary["problems"] == 4 and f"{summary['accuracy']:.1%}" in capsys.readouterr().out


@pytest.mark.few
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search.beam_size=0"], "beam_size=0"),
        (["model=hf"], "model.name must be given"),
        (["dataset=file"], "give dataset.path"),
        (["dataset.path=mine.jsonl"], "dataset=file"),
        (["verifier=self", "+verifier/exit=ranking"], "different ratings"),
        (["verifier=none"], "verifier"),
        (["model.name=/no/such/model"], "/no/such/model"),
        slow((["memory.budget_gib=0.0001"], "at least")),
    ],
)
def test_a_wrong_setting_is_refused_by_name(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    with pytest.raises((TTCError, HydraException), match=message):
        run_here(tmp_path, *arguments)
    assert not list(tmp_path.glob("*/config.yaml"))


@pytest.mark.slow
def test_a_sweep_goes_on_after_a_job_that_fails_and_ends_with_one_table(tmp_path: Path) -> None:
    sweep = ["search=best_of_n", "search.n=0,1,2", "search.max_tokens=8", "dataset.size=1"]
    done = finished(job(tmp_path, "-m", *sweep))
    assert "error: n=0" in done.stderr and done.returncode == 1
    assert sorted(p.parent.name for p in tmp_path.glob("*/summary.json")) == [
        f"sums-best_of_n-arithmetic-seed0-search.max_tokens=8-search.n={n}" for n in (1, 2)
    ]
    table, error, *differences = done.stdout[done.stdout.index("3 jobs") :].split("\n\n")
    assert error == "n=0: error: n=0 must be at least 1"
    assert differences[-1].startswith("costs, pass@k, files and a plot: python -m experiments.comp")
    table = table.splitlines()
    assert [line.split()[0] for line in table[1:]] == ["job", "n=0", "n=1", "n=2"]
    assert "error" in table[2] and "%" in table[3] and "%" in table[4]
    lines = done.stderr.splitlines()
    said = [line for line in lines if line != LINE and " of 1 problem, " not in line]
    title = "BestOfN with ArithmeticVerifier, smollm2-135m, sums: 1 problem"
    assert said[0].startswith("starting: -m search=best_of_n")
    # loaded once, and no other library says anything
    assert [line for line in said[1:] if line and not line.startswith("error: n=0")] == [
        "job 1 of 3: n=0",
        "job 2 of 3: n=1",
        title,
        "loading smollm2-135m",
        "job 3 of 3: n=2",
        title,
    ]


@pytest.mark.slow
def test_a_run_that_several_jobs_of_a_sweep_have_is_told_and_compared_once(tmp_path: Path) -> None:
    sweep = ["search=self_consistency,best_of_n", "verifier=arithmetic,confidence"]
    few = ["search.n=1", "search.max_tokens=8", "dataset.size=1", "run.batch=1,2"]
    done = finished(job(tmp_path, "-m", *sweep, *few))
    assert done.stderr.count("1 of 1 were done already") == 5
    ended = done.stdout[done.stdout.index("3 jobs") :]
    assert [" ".join(line.split()[:2]) for line in ended.splitlines()[2:5]] == [
        "self_consistency arithmetic",
        "best_of_n arithmetic",
        "best_of_n confidence",
    ]
    assert "\nleft out: 5 of 8 jobs have the run of an earlier one" in ended
    assert "not compared" not in ended and "Differences" in ended
    notes = [json.loads(file.read_text()) for file in tmp_path.glob("*/job.json")]
    assert sorted(note["number"] for note in notes) == [0, 4, 6]


@pytest.mark.slow
def test_problems_that_all_fail_end_with_their_reason_and_an_error_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_tiny_model(tmp_path / "model")
    arguments = ["model=hf", f"model.name={model}", "dataset.size=3", "dataset.pad_chars=60000"]
    run_here(tmp_path, *arguments)
    first = capsys.readouterr()
    monkeypatch.setattr(sys, "argv", job(tmp_path, *arguments, "run.name=r")[2:])
    assert launch() == 1
    again = capsys.readouterr()
    assert "3 of 3 were done already" in again.err
    for told in (first.out, again.out):
        assert "3 of 3 problems failed and count as wrong:\n  3 x ContextExceeded: " in told
        assert "run.retry_failed=true" in told and "accuracy            0.0%" in told


@pytest.mark.slow
@pytest.mark.parametrize(("told", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_whoever_is_told_to_end_says_what_is_safe_and_how_to_go_on(
    told: signal.Signals, code: int, tmp_path: Path
) -> None:
    arguments = ["search=greedy", "verifier=none", "dataset.size=1000", "run.batch=1", "run.name=r"]
    with started(job(tmp_path, *arguments), stderr=subprocess.PIPE) as process:
        wait_for_records(tmp_path / "r" / "records.jsonl", 2)
        process.send_signal(told)
        _, said = process.communicate(timeout=400)
    done = len(records(tmp_path, "r"))
    assert process.returncode == code and 2 <= done < 1000 and "Traceback" not in said
    safe, how = said.splitlines()[-2:]
    counted = re.fullmatch(
        rf"stopped; what is done so far is safe \((\d+) problems? in {tmp_path / 'r'}\)", safe
    )
    # one may be on its way to the disk
    assert counted is not None and done - int(counted[1]) in (0, 1)
    assert how == "run the same command to go on"


def test_ctrl_c_in_a_sweep_counts_what_its_jobs_have_recorded(tmp_path: Path) -> None:
    with Outcomes.kept([]) as outcomes:
        outcomes.begin(0, tmp_path / "a")
        outcomes.begin(1, tmp_path / "b")
        assert outcomes.recorded() == "" and outcomes.all() == []
        for name, lines in (("a", "{}\n"), ("b", "{}\n{}\n")):
            (tmp_path / name).mkdir()
            (tmp_path / name / "records.jsonl").write_text(lines)
        assert outcomes.recorded() == f"3 problems in {tmp_path}"


def test_a_sweep_tells_each_job_that_begins_or_ends_elsewhere_once(tmp_path: Path) -> None:
    with Outcomes.kept([]) as outcomes:
        told = set[str]()
        assert list(outcomes.news(told)) == []
        outcomes.begin(0, tmp_path / "a", "job 1 of 2: n=4")
        assert list(outcomes.news(told)) == ["job 1 of 2: n=4 has begun, its log: unknown"]
        outcomes.begin(1, tmp_path / "b", "job 2 of 2: n=8")
        outcomes.add(0, JobOutcome(["n=4"], {"accuracy": 1.0}, "a"))
        outcomes.add(1, JobOutcome(["n=8"], "no room", None))
        assert list(outcomes.news(told)) == [
            "job 1 of 2 is done",
            "job 2 of 2: n=8 has begun, its log: unknown",
            "job 2 of 2 has failed: no room",
        ]
        assert list(outcomes.news(told)) == []


def test_ctrl_c_that_the_launcher_hears_first_says_what_is_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As joblib's, which stops its processes and knows of no record."""

    def interrupted(config: Any, notes: Path) -> dict[str, Any]:
        folder = Path(config.run.output_dir) / config.run.name
        folder.mkdir(parents=True)
        (folder / "records.jsonl").write_text("{}\n")
        raise KeyboardInterrupt

    monkeypatch.setattr("experiments.runs.problem_loop.run", interrupted)
    monkeypatch.setattr(sys, "argv", ["run", "-m", "run.name=a,b", f"run.output_dir={tmp_path}"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt, match=r"what is done so far is safe \(1 problem in"):
        launch()


SHORT = [
    *("model.dtype=float32", "dataset.size=3"),
    *("search=best_of_n", "search.n=2", "search.max_tokens=12"),
]


@pytest.mark.slow
def test_a_verifier_that_cannot_rate_is_known_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> list[list[float]]:
        raise RuntimeError("the judge is out")

    monkeypatch.setattr(ArithmeticVerifier, "rate", broken)
    gated = ["verifier=confidence_gated", "verifier.inner=arithmetic"]
    gated += ["verifier.tau_conf=0", "verifier.r_gap=0"]
    for words in ([], gated):
        with pytest.raises(VerifierError, match=r"judge is out \(.*test_run.py:\d+\), on a branch"):
            run_here(tmp_path, *SHORT, *words)
    assert not list(tmp_path.glob("*/config.yaml"))


@pytest.mark.slow
def test_a_failed_problem_counts_as_wrong_until_it_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run_here(tmp_path, *SHORT, "run.name=whole")
    assert whole["failures"] == 0
    rate = ArithmeticVerifier.rate
    unlucky = records(tmp_path, "whole")["sums-1"]["question"]

    def sometimes(self: Any, branches: Any, questions: Any, backend: Any) -> Any:
        if unlucky in questions:
            raise RuntimeError("no connection")
        return rate(self, branches, questions, backend)

    monkeypatch.setattr(ArithmeticVerifier, "rate", sometimes)
    # an answer is found in what a failed problem has, and it is the right one
    monkeypatch.setattr("experiments.runs.grading.same_answer", lambda *_: True)
    summary = run_here(tmp_path, *SHORT)
    (kind,) = summary["failure_reasons"]
    said = "VerifierError: ArithmeticVerifier raised RuntimeError: no connection (tests/"
    assert (summary["failures"], kind["count"]) == (1, 1) and kind["reason"].startswith(said)
    failed = records(tmp_path, "r")["sums-1"]
    assert failed["branches"] and not failed["correct"] and not failed["correct_strict"]
    assert f"1 x {said.removesuffix(' (tests/')}" in capsys.readouterr().out
    monkeypatch.undo()
    assert run_here(tmp_path, *SHORT)["failures"] == 1
    assert "3 of 3 were done already" in capsys.readouterr().err
    with pytest.raises(InvalidInput, match="another configuration"):
        run_here(tmp_path, *SHORT, "run.retry_failed=true", "run.seed=7")
    with monkeypatch.context() as patched, pytest.raises(InvalidInput, match="no such weights"):
        refused = Mock(side_effect=InvalidInput("no such weights"))
        patched.setattr("experiments.runs.problem_loop.make_backend", refused)
        run_here(tmp_path, *SHORT, "run.retry_failed=true")
    assert len(records(tmp_path, "r")) == 3  # what is refused takes nothing away
    assert run_here(tmp_path, *SHORT, "run.retry_failed=true")["failures"] == 0
    assert "2 of 3 were done already" in capsys.readouterr().err
    again = records(tmp_path, "r")
    assert again["sums-1"] == roughly(records(tmp_path, "whole")["sums-1"])
