"""What level 2 is calibrated on, against the searches that use it, and both jobs end to end on the
default model."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import experiments.fit.calibrate.calibration
import experiments.runs.problem_loop
from experiments.fit.calibrate.calibration import observe_exits, report_exit
from experiments.runs.build import make_verifier, resolved
from search import BeamSearch, BestOfN, solve
from search.options import SolveOptions
from tests.helpers.configurations import assert_refused, configuration
from tests.helpers.engines import words_engine
from tests.helpers.tokenizers import KnownWords
from ttc import EarlyExit, Engine, InvalidInput, Problem
from ttc.calibration.exit_calibration import ExitCalibration, agrees, calibrate_exit, chosen, replay
from ttc.calibration.layer_profile import BranchProfile
from verifiers import ConfidenceGatedVerifier, SelfVerifier

PROBLEMS = [Problem(q) for q in ("a", "b is a", "c b a", "a a b", "it is a b", "c c c")]
SEARCH = BestOfN(n=4, max_tokens=4)


@pytest.fixture
def engine() -> Engine:
    return words_engine(KnownWords)


@pytest.mark.parametrize("fresh", [False, True])
def test_a_replayed_exit_chooses_what_the_search_chooses(engine: Engine, fresh: bool) -> None:
    verifier = SelfVerifier("is it right ?", fresh=fresh)
    ratings = observe_exits(SEARCH, verifier, PROBLEMS, engine=engine, options=SolveOptions(seed=1))
    exit = EarlyExit("ranking", l_min=1, patience=1)
    early = SelfVerifier("is it right ?", exit, fresh)
    same = []
    for problem, rating in zip(PROBLEMS, ratings, strict=True):
        full = solve(SEARCH, problem=problem, engine=engine, seed=1, verifier=verifier)
        left = solve(SEARCH, problem=problem, engine=engine, seed=1, verifier=early)
        assert full.best is not None and left.best is not None
        assert full.best.score == pytest.approx(max(profile.p[-1] for profile in rating), abs=1e-5)
        assert left.best.path == (chosen(rating, replay(rating, exit)),)
        same.append(full.best.path == left.best.path)
    assert same == [agrees(rating, replay(rating, exit)) for rating in ratings]
    assert {True, False} == set(same)  # the case is worth testing
    assert engine.kv_bytes() == 0


def test_what_cannot_be_observed_is_left_out_or_refused(engine: Engine) -> None:
    problems = [PROBLEMS[1], Problem("a " * 70), PROBLEMS[2]]  # one is longer than the context
    verifier = SelfVerifier("is it right ?")
    assert len(observe_exits(SEARCH, verifier, problems, engine=engine)) == 2
    with pytest.raises(InvalidInput, match="BeamSearch rates a problem more than once"):
        observe_exits(
            BeamSearch(beam_size=2, beam_width=2, step_tokens=2),
            verifier,
            PROBLEMS[:2],
            engine=engine,
        )
    assert engine.kv_bytes() == 0


def test_the_report_says_what_an_exit_does() -> None:
    def branch(*p: float) -> BranchProfile:
        return BranchProfile([3.0, 1.0, 0.5, 0.5], [0.0] * 4, list(p), 10)

    steady = [[branch(0.9, 0.9, 0.9, 0.9), branch(0.1, 0.1, 0.1, 0.1)]] * 8
    text = report_exit(
        calibrate_exit(steady, model="m", dataset="d", max_disagreement=0.1, look_layers=0.5), 2
    )
    assert "8 (2 more could not be used)" in text and "ranking, l_min 1, patience 1" in text
    assert (
        "1.0 of 4 layers per branch, 4 checked" in text
        and "1.0 per branch, which cost as much as 0.0" in text
    )
    assert "0 of 4" in text and "52.7% of problems" in text and "58 held-out problems" in text
    text = report_exit(calibrate_exit(steady, model="m", dataset="d"), 0)
    assert "entropy, l_min 2, theta" in text and "not shown" not in text
    late = [[branch(0.1, 0.9, 0.9, 0.9), branch(0.9, 0.1, 0.1, 0.1)]]
    made = calibrate_exit((steady[:1] + late) * 30, model="m", dataset="d", max_disagreement=0.1)
    assert "not shown" in report_exit(made, 0) and "too many disagree" in report_exit(made, 0)
    never = [[branch(0.9, 0.9, 0.9, 0.1), branch(0.1, 0.1, 0.1, 0.9)]] * 8
    assert "none: " in report_exit(
        calibrate_exit(never, model="m", dataset="d", max_disagreement=0.0), 0
    )


# ---------------------------------------------------------------- the jobs


@pytest.mark.slow
def test_a_calibration_and_the_run_that_uses_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.json"
    common = [
        "search=best_of_n",
        "search.n=3",
        "search.max_tokens=12",
        "run.batch=4",
        "verifier=self",
    ]
    held_out = ["dataset.size=4", "dataset.seed=7", f"calibrate.file={file}", "calibrate.level=2"]
    made = experiments.fit.calibrate.calibration.run(
        configuration("calibrate", *common, *held_out, "calibrate.max_disagreement=1")
    )
    assert isinstance(made, ExitCalibration) and made.layers == 30
    assert (made.problems, made.checked) == (4, 2) and made.exit.l_min < 30 and made.look_layers > 0
    assert ExitCalibration.load(file, model="smollm2-135m", dataset="sums") == made
    assert (
        made.settings["dataset"]["seed"] == 7
        and made.settings["verifier"]["_target_"] == "verifiers.SelfVerifier"
    )
    assert str(file) in capsys.readouterr().out

    calibrated = ["+verifier/exit=calibrated", f"verifier.exit.calibration={file}"]
    place = ["dataset.size=2", f"run.output_dir={tmp_path}", "run.name=r"]
    experiments.runs.problem_loop.run(configuration("run", *common, *calibrated, *place))
    lines = (tmp_path / "r" / "records.jsonl").read_text().splitlines()
    usages = [json.loads(line)["usage"] for line in lines]
    assert len(usages) == 2 and all(usage["exit_layer_rows_saved"] > 0 for usage in usages)
    config = (tmp_path / "r" / "config.yaml").read_text()
    assert (
        "ttc.EarlyExit" in config
        and f"l_min: {made.exit.l_min}\n" in config
        and str(file) not in config
    )
    with pytest.raises(InvalidInput, match="these problems were used to calibrate"):
        experiments.runs.problem_loop.run(
            configuration(
                "run", *common, *calibrated, *place, "dataset.offset=7", "dataset.limit=2"
            )
        )
    with pytest.raises(InvalidInput, match=r"calibrated with search\.BestOfN"):
        experiments.runs.problem_loop.run(
            configuration("run", "search=diverse_prompts", *common[3:], *calibrated, *place)
        )
    with pytest.raises(InvalidInput, match="the data set 'sums', not for 'gsm8k'"):
        experiments.runs.problem_loop.run(
            configuration("run", *common, *calibrated, *place, "dataset=gsm8k")
        )


def profiles() -> list[Any]:
    p = [
        BranchProfile([4.0, 3.0, 2.9], [4.0, 3.0, 2.9], [0.5, share, share], 9)
        for share in (0.2, 0.8)
    ]
    return [p, p]


@pytest.mark.slow
@pytest.mark.parametrize("inner", [False, True])
def test_a_calibrated_exit_is_resolved(tmp_path: Path, inner: bool) -> None:
    file = tmp_path / "c.json"
    made = calibrate_exit(profiles(), model="m", dataset="sums")
    made.save(file)
    if inner:
        chosen = [
            "verifier=confidence_gated",
            "verifier/inner=self",
            "+verifier/exit@verifier.inner.exit=calibrated",
        ]
    else:
        chosen = ["verifier=self", "+verifier/exit=calibrated"]
    key = "verifier.inner.exit.calibration" if inner else "verifier.exit.calibration"
    config = resolved(configuration("run", *chosen, f"{key}={file}", "model.name=m"))
    found = make_verifier(config)
    if inner:
        assert isinstance(found, ConfidenceGatedVerifier)
        found = found.inner  # type: ignore[assignment]
    assert found == SelfVerifier(exit=made.exit)
    shown = config.verifier.inner.exit if inner else config.verifier.exit
    assert {k: v for k, v in shown.items() if k != "_target_"} == asdict(made.exit)
    with pytest.raises(InvalidInput, match="the model 'm', not for 'smollm2-135m'"):
        resolved(configuration("run", *chosen, f"{key}={file}"))
    with pytest.raises(InvalidInput, match=f"{key} is not given"):
        resolved(configuration("run", *chosen))


def test_settings_of_the_verifier_reach_it() -> None:
    fresh = configuration("run", "verifier=self", "verifier.fresh=true", "+verifier/exit=ranking")
    assert make_verifier(resolved(fresh)) == SelfVerifier(exit=EarlyExit("ranking"), fresh=True)


EXIT = ["calibrate.level=2", "calibrate.file=x", "verifier=self", "search=best_of_n"]


@pytest.mark.few
@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        ("calibrate", [*EXIT, "calibrate.level=3"], "calibrate.level=3"),
        (
            "calibrate",
            [*EXIT, "calibrate.level=1", "calibrate.eps=1"],
            r"calibrate.eps=1\.0 belongs",
        ),
        ("calibrate", [*EXIT, "verifier=arithmetic"], "ArithmeticVerifier runs no model"),
        ("calibrate", [*EXIT, "verifier=none"], "other than none"),
        ("calibrate", [*EXIT, "+verifier/exit=ranking"], "has an exit already"),
        (
            "calibrate",
            [*EXIT, "search=self_consistency", "search.weighted=true"],
            "SelfConsistency does not choose",
        ),
        (
            "run",
            ["verifier=self", "+verifier/exit=calibrated", "verifier.exit.calibration=/no/such"],
            "/no/such",
        ),
        ("run", ["verifier=self", "+verifier/exit=calibrated", "verifier.exit.theta=1"], "theta"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(
    tmp_path: Path, module: str, arguments: list[str], message: str
) -> None:
    assert_refused(module, arguments, message, tmp_path)
