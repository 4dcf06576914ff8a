"""Observations against a reference on a small model, and both jobs end to end."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from experiments.fit.calibrate.calibration import observe, report
from experiments.runs.build import make_verifier, resolved
from experiments.runs.problem_loop import run
from search import BeamSearch, BestOfN, solve
from search.options import SolveOptions
from tests.helpers.benches import save_tiny_model
from tests.helpers.configurations import assert_refused, configuration
from tests.helpers.engines import numbers_engine
from tests.helpers.processes import finished
from tests.helpers.records import records
from ttc import Engine, InvalidInput, Problem
from ttc.calibration.gate_calibration import Observation, calibrate
from ttc.compiling import LINE
from verifiers import ConfidenceGatedVerifier, ConfidenceVerifier, SelfVerifier


class LongFirst:
    """Prefers many different tokens; fails on the problem "bad"."""

    def rate(
        self, branches: Sequence[Any], questions: Sequence[str], backend: Any
    ) -> list[list[float]]:
        if "bad" in questions:
            raise RuntimeError("no weights")
        return [[float(len(set(b.generated)))] for b in branches]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return numbers_engine()


PROBLEMS = [Problem(q) for q in ("one", "two", "three", "four", "five", "six")]


def test_observations_of_best_of_n(engine: Engine) -> None:
    search = BestOfN(n=4, max_tokens=5)
    found = observe(search, LongFirst(), PROBLEMS, engine=engine, options=SolveOptions(seed=2))
    for problem, observation in zip(PROBLEMS, found, strict=True):
        result = solve(search, problem=problem, engine=engine, seed=2, verifier=LongFirst())
        branches = sorted(result.branches, key=lambda b: b.path)
        p = [sum(b.top1) / len(b.top1) for b in branches]
        top, second = sorted(p, reverse=True)[:2]
        # the first of equals
        by_p = max(branches, key=lambda b: round(sum(b.top1) / len(b.top1), 5))
        by_length = max(branches, key=lambda b: len(set(b.generated)))
        told = (top, (top - second) / top)
        assert (observation.max_p, observation.gap) == pytest.approx(told, abs=1e-5)
        assert observation.agrees == (by_p.generated == by_length.generated)
    assert {o.agrees for o in found} == {True, False}
    assert engine.kv_bytes() == 0


def test_the_gate_repeats_what_was_observed(engine: Engine) -> None:
    """A beam search with the gate ends as the calibration counted, problem by problem."""
    search = BeamSearch(beam_size=2, beam_width=2, step_tokens=3, max_steps=3)
    found = observe(search, LongFirst(), PROBLEMS, engine=engine)
    tau_conf = sorted(o.max_p for o in found)[2]
    gate = ConfidenceGatedVerifier(LongFirst(), tau_conf, 0.0)
    gated = solve(search, problem=PROBLEMS, engine=engine, verifier=gate)
    full = solve(search, problem=PROBLEMS, engine=engine, verifier=LongFirst())
    for observation, short, long in zip(found, gated, full, strict=True):
        skipped = observation.max_p >= tau_conf
        assert bool(short.usage.verifications_skipped) == skipped
        assert short.best is not None and long.best is not None
        same = short.best.generated == long.best.generated
        assert same == (observation.agrees or not skipped)
    assert sum(o.max_p >= tau_conf for o in found) == 4


def test_a_problem_that_fails_is_left_out(engine: Engine) -> None:
    problems = [PROBLEMS[0], Problem("bad"), PROBLEMS[1]]
    search = BestOfN(n=3, max_tokens=4)
    found = observe(search, LongFirst(), problems, engine=engine)
    alone = [observe(search, LongFirst(), [p], engine=engine)[0] for p in PROBLEMS[:2]]
    assert [o.max_p for o in found] == pytest.approx([o.max_p for o in alone], abs=1e-5)
    assert [o.agrees for o in found] == [o.agrees for o in alone]


def test_the_report_says_what_is_not_shown() -> None:
    def told(count: int, limit: float | None, unused: int = 0) -> str:
        seen = [Observation(0.9, 0.5, True)] * count
        return report(calibrate(seen, model="m", dataset="d", max_disagreement=limit), unused)

    text = told(20, 0.01, unused=3)
    assert "20 (3 more could not be used)" in text and "10 of 10 checked" in text
    assert "25.9% of problems, with 95% confidence" in text
    assert "598 held-out problems" in text  # 2 x 299, the least n with 0.99^n <= 0.05
    assert "not shown" not in told(598, 0.01) + told(20, None)
    assert "no number of problems" in told(20, 0.0)


# ---------------------------------------------------------------- the jobs

SEARCH = ["search=best_of_n", "search.n=3", "search.max_tokens=12", "run.batch=4"]


@pytest.mark.slow
def test_a_calibration_and_the_run_that_uses_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, model = tmp_path / "c.json", save_tiny_model(tmp_path / "model")
    search = [*SEARCH, "model=hf", f"model.name={model}", "model.dtype=float32"]
    held_out = ["dataset.size=6", "dataset.seed=7", "calibrate.max_disagreement=1"]
    words = [*search, "verifier.inner=self", *held_out, f"calibrate.file={file}"]
    done = finished([sys.executable, "-m", "experiments.calibrate", *words])
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    said = [line for line in lines if line != LINE and not line.startswith("calibrate: ")]
    # no other library says anything
    assert said[0].startswith("starting: ") and said[1] == f"loading {model}" and len(said) == 3
    assert "names no end token" in said[2]
    made = json.loads(file.read_text())
    assert (made["model"], made["dataset"]) == (model, "sums")
    assert (made["problems"], made["checked"]) == (6, 3)
    settings = made["settings"]
    assert settings["dataset"]["seed"] == 7
    assert settings["verifier"]["_target_"] == "verifiers.SelfVerifier"
    assert settings["sharing"]["rule"] == "exact" and settings["dtype"] == "float32"
    assert settings["gate"]["_target_"] is settings["cache"]["_target_"] is None
    assert f"{made['tau_conf']:.4f}" in done.stdout and str(file) in done.stdout

    gated = ["verifier=confidence_gated", "verifier.inner=self", f"verifier.calibration={file}"]
    place = ["dataset.size=6", f"run.output_dir={tmp_path / 'outputs'}", "run.name=r"]
    gated_run = [*search, *gated, *place]
    summary = run(configuration("run", *gated_run))
    skips = 0
    for record in records(tmp_path):
        p = sorted((b["score"] for b in record["branches"]), reverse=True)
        skipped = record["usage"]["verifications_skipped"]
        assert (record["usage"]["verifier_tokens"] == 0) == bool(skipped)
        if skipped:
            assert p[0] >= made["tau_conf"] and (p[0] - p[1]) / p[0] >= made["r_gap"]
        skips += skipped
    assert summary["problems"] == 6
    assert summary["approximate"] == ({"problems_not_verified": skips} if skips else {})
    assert ("approximate: problems not verified" in capsys.readouterr().out) == (skips > 0)
    config = (tmp_path / "outputs" / "r" / "config.yaml").read_text()
    assert f"tau_conf: {made['tau_conf']}" in config and "verifiers.SelfVerifier" in config

    made["tau_conf"] = 0.123  # the file changes under the run
    file.write_text(json.dumps(made))
    for more, message in (
        ([], r"verifier\.tau_conf.*0\.123"),
        (["dataset=gsm8k"], "data set 'sums', not for 'gsm8k'"),
        # problem 7 is seed 7's first
        (["dataset.offset=5", "dataset.limit=3"], "were used to calibrate"),
    ):
        with pytest.raises(InvalidInput, match=message):
            run(configuration("run", *gated_run, *more))


@pytest.mark.slow
def test_an_inner_verifier_by_name_or_with_settings() -> None:
    def made(*words: str) -> Any:
        return make_verifier(resolved(configuration("run", "verifier=confidence_gated", *words)))

    named = made("verifier.inner=confidence", "verifier.r_gap=0.3")
    assert named == ConfidenceGatedVerifier(ConfidenceVerifier(), 0.9, 0.3)
    nested = made("verifier/inner=confidence", "verifier.inner.metric=logprob")
    assert nested == ConfidenceGatedVerifier(ConfidenceVerifier("logprob"))
    assert make_verifier(configuration("run", "verifier=none")) is None


def test_a_calibration_sets_the_thresholds(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    calibrate([Observation(0.7, 0.3, True)], model="m", dataset="sums").save(file)
    gated = ["verifier=confidence_gated", f"verifier.calibration={file}"]
    config = resolved(configuration("run", *gated, "model.name=m", "verifier.tau_conf=0.1"))
    assert make_verifier(config) == ConfidenceGatedVerifier(SelfVerifier(), 0.7, 0.3)
    with pytest.raises(InvalidInput, match="the model 'm', not for 'smollm2-135m'"):
        resolved(configuration("run", *gated))


@pytest.mark.slow
def test_a_run_on_the_problems_that_were_calibrated_on_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    whole = configuration("run", "model.name=m", "search=best_of_n", "dataset.limit=20")
    parts = {
        name: OmegaConf.to_container(whole[name], resolve=True) for name in ("dataset", "search")
    }
    calibrate([Observation(0.7, 0.3, True)], model="m", dataset="sums", settings=parts).save(file)
    gated = ["verifier=confidence_gated", f"verifier.calibration={file}", "model.name=m"]
    gated.append("search=best_of_n")
    for other in ("dataset.offset=20", "dataset.seed=1000"):
        assert resolved(configuration("run", *gated, other)).verifier.tau_conf == 0.7
    for same in ("dataset.offset=19", "dataset.seed=19", "dataset.pad_chars=99"):
        with pytest.raises(InvalidInput, match="these problems were used to calibrate"):
            resolved(configuration("run", *gated, same))
    with pytest.raises(InvalidInput, match=r"calibrated with search\.BestOfN"):
        resolved(configuration("run", *gated[:-1], "search=beam_search", "dataset.offset=20"))


GATED = "verifier=confidence_gated"


@pytest.mark.few
@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        ("run", [GATED, "verifier.inner=slef"], "verifier.inner=slef is unknown; is it self. use"),
        ("run", [GATED, "verifier.inner.questoin=x"], "questoin"),
        ("run", [GATED, "verifier.calibration=/no/such.json"], "/no/such.json"),
        ("calibrate", [], "calibrate.file"),
        ("calibrate", ["calibrate.fil=x"], "fil"),
        ("calibrate", ["calibrate.file=x", "verifier=none"], "other than none"),
        ("calibrate", ["calibrate.file=x", "search=greedy"], "does not rate"),
        ("calibrate", ["calibrate.file=x", "run.batch=0"], "run.batch=0"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(
    tmp_path: Path, module: str, arguments: list[str], message: str
) -> None:
    assert_refused(module, arguments, message, tmp_path)
