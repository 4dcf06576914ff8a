"""What level 2 is calibrated on, against the searches that use it, and both jobs end to end on the
default model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from experiments.fit.calibrate import calibration
from experiments.fit.calibrate.calibration import observe_exits, report_exit
from experiments.runs.build import make_verifier, resolved
from experiments.runs.problem_loop import run
from search import BeamSearch, BestOfN, solve
from search.options import SolveOptions
from tests.helpers.configurations import assert_refused, configuration
from tests.helpers.engines import words_engine
from tests.helpers.records import records
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
    beams = BeamSearch(beam_size=2, beam_width=2, step_tokens=2)
    with pytest.raises(InvalidInput, match="BeamSearch rates a problem more than once"):
        observe_exits(beams, verifier, PROBLEMS[:2], engine=engine)
    assert engine.kv_bytes() == 0


def test_the_report_says_what_an_exit_does() -> None:
    def branch(*p: float) -> BranchProfile:
        return BranchProfile([3.0, 1.0, 0.5, 0.5], [0.0] * 4, list(p), 10)

    def told(ratings: list[Any], unused: int = 0, **settings: float) -> str:
        return report_exit(calibrate_exit(ratings, model="m", dataset="d", **settings), unused)

    steady = [[branch(0.9, 0.9, 0.9, 0.9), branch(0.1, 0.1, 0.1, 0.1)]] * 8
    text = told(steady, 2, max_disagreement=0.1, look_layers=0.5)
    assert "8 (2 more could not be used)" in text and "ranking, l_min 1, patience 1" in text
    assert "1.0 of 4 layers per branch, 4 checked" in text
    assert "1.0 per branch, which cost as much as 0.0" in text
    assert "0 of 4" in text and "52.7% of problems" in text and "58 held-out problems" in text
    text = told(steady)
    assert "entropy, l_min 2, theta" in text and "not shown" not in text
    late = [[branch(0.1, 0.9, 0.9, 0.9), branch(0.9, 0.1, 0.1, 0.1)]]
    text = told((steady[:1] + late) * 30, max_disagreement=0.1)
    assert "not shown" in text and "too many disagree" in text
    never = [[branch(0.9, 0.9, 0.9, 0.1), branch(0.1, 0.1, 0.1, 0.9)]] * 8
    assert "none: " in told(never, max_disagreement=0.0)


# ---------------------------------------------------------------- the jobs


@pytest.mark.slow
def test_a_calibration_and_the_run_that_uses_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.json"
    common = ["search=best_of_n", "search.n=3", "search.max_tokens=12", "verifier=self"]
    held_out = ["dataset.size=4", "dataset.seed=7", f"calibrate.file={file}", "calibrate.level=2"]
    config = configuration("calibrate", *common, *held_out, "calibrate.max_disagreement=1")
    made = calibration.run(config)
    assert isinstance(made, ExitCalibration) and made.layers == 30
    assert (made.problems, made.checked) == (4, 2) and made.exit.l_min < 30 and made.look_layers > 0
    assert ExitCalibration.load(file, model="smollm2-135m", dataset="sums") == made
    assert made.settings["dataset"]["seed"] == 7
    assert made.settings["verifier"]["_target_"] == "verifiers.SelfVerifier"
    assert str(file) in capsys.readouterr().out

    calibrated = ["+verifier/exit=calibrated", f"verifier.exit.calibration={file}"]
    place = ["dataset.size=2", f"run.output_dir={tmp_path / 'outputs'}", "run.name=r"]
    words = [*common, *calibrated, *place]
    run(configuration("run", *words))
    usages = [record["usage"] for record in records(tmp_path)]
    assert len(usages) == 2 and all(usage["exit_layer_rows_saved"] > 0 for usage in usages)
    kept = (tmp_path / "outputs" / "r" / "config.yaml").read_text()
    assert "ttc.EarlyExit" in kept and f"l_min: {made.exit.l_min}\n" in kept
    assert str(file) not in kept
    for other, why in (
        ([*words, "dataset.offset=7", "dataset.limit=2"], "these problems were used to calibrate"),
        ([*words[3:], "search=diverse_prompts"], r"calibrated with search\.BestOfN"),
        ([*words, "dataset=gsm8k"], "the data set 'sums', not for 'gsm8k'"),
    ):
        with pytest.raises(InvalidInput, match=why):
            run(configuration("run", *other))


def profiles() -> list[Any]:
    layers = [4.0, 3.0, 2.9]
    p = [BranchProfile(layers, layers, [0.5, share, share], 9) for share in (0.2, 0.8)]
    return [p, p]


@pytest.mark.slow
@pytest.mark.parametrize("inner", [False, True])
def test_a_calibrated_exit_is_resolved(tmp_path: Path, inner: bool) -> None:
    file = tmp_path / "c.json"
    made = calibrate_exit(profiles(), model="m", dataset="sums")
    made.save(file)
    chosen = ["verifier=self", "+verifier/exit=calibrated"]
    key = "verifier.exit.calibration"
    if inner:
        chosen = ["verifier=confidence_gated", "verifier/inner=self"]
        chosen.append("+verifier/exit@verifier.inner.exit=calibrated")
        key = "verifier.inner.exit.calibration"
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
WEIGHED = ["search=self_consistency", "search.weighted=true"]
CALIBRATED = ["verifier=self", "+verifier/exit=calibrated"]


@pytest.mark.few
@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        ("calibrate", [*EXIT, "calibrate.level=3"], "calibrate.level=3"),
        ("calibrate", [*EXIT, "calibrate.level=1", "calibrate.eps=1"], r"eps=1\.0 belongs"),
        ("calibrate", [*EXIT, "verifier=arithmetic"], "ArithmeticVerifier runs no model"),
        ("calibrate", [*EXIT, "verifier=none"], "other than none"),
        ("calibrate", [*EXIT, "+verifier/exit=ranking"], "has an exit already"),
        ("calibrate", [*EXIT, *WEIGHED], "SelfConsistency does not choose"),
        ("run", [*CALIBRATED, "verifier.exit.calibration=/no/such"], "/no/such"),
        ("run", [*CALIBRATED, "verifier.exit.theta=1"], "theta"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(
    tmp_path: Path, module: str, arguments: list[str], message: str
) -> None:
    assert_refused(module, arguments, message, tmp_path)
