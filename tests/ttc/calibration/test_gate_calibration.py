"""Thresholds from hand-made observations, the bound against exact sums, and files that are
refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.tiers import examples
from ttc.calibration.error_bounds import clopper_pearson
from ttc.calibration.gate_calibration import (
    NEVER,
    GateCalibration,
    Observation,
    calibrate,
    percentiles,
    risk_controlled,
)
from ttc.errors import InvalidInput

FIVE = [
    Observation(0.5, 0.00, True),
    Observation(0.6, 0.40, False),
    Observation(0.7, 0.10, True),
    Observation(0.8, 0.20, False),
    Observation(0.9, 0.30, True),
]


def test_percentiles_as_the_paper_sets_them() -> None:
    assert percentiles(FIVE) == pytest.approx((0.8, 0.1))
    assert percentiles(FIVE[:4]) == pytest.approx((0.725, 0.075))  # interpolated
    assert percentiles(FIVE[:1]) == (0.5, 0.0)


def test_a_calibration_by_percentiles() -> None:
    made = calibrate(FIVE, model="m", dataset="d", settings={"seed": 3})
    assert (made.tau_conf, made.r_gap) == pytest.approx((0.8, 0.1))
    assert (made.problems, made.checked, made.skipped, made.disagreements) == (5, 5, 2, 1)
    # (1 - p)^5 + 5p (1 - p)^4 = 0.05
    assert made.disagreement_bound == pytest.approx(0.6574, abs=1e-4)
    assert made.quantiles["max_p"] == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.9])
    assert made.quantiles["gap"] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    assert (made.model, made.dataset, made.max_disagreement, made.settings) == (
        "m",
        "d",
        None,
        {"seed": 3},
    )


values = st.sampled_from([0.1, 0.2, 0.3, 0.4, 0.5])
sets = st.lists(st.builds(Observation, values, values, st.booleans()), min_size=1, max_size=12)


@given(sets, st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]))
@settings(max_examples=examples(150))
def test_risk_controlled_against_trying_all(
    observations: list[Observation], allowed: float
) -> None:
    def counts(tau: float, gap: float) -> tuple[int, int]:
        skipped = [o for o in observations if o.max_p >= tau and o.gap >= gap]
        return len(skipped), sum(not o.agrees for o in skipped)

    pairs = [(o.max_p, g.gap) for o in observations for g in observations] + [(NEVER, 0.0)]
    fine = [counts(*pair) for pair in pairs if counts(*pair)[1] / len(observations) <= allowed]
    skipped, wrong = counts(*risk_controlled(observations, allowed))
    assert skipped == max(n for n, _ in fine)
    assert wrong == min(w for n, w in fine if n == skipped)


@given(st.lists(st.builds(Observation, values, values, st.booleans()), min_size=2, max_size=12))
@settings(max_examples=examples(60))
def test_the_count_comes_from_problems_that_had_no_say(observations: list[Observation]) -> None:
    made = calibrate(observations, model="m", dataset="d", max_disagreement=0.1)
    checked = range(1, len(observations), 2)
    flipped = [
        replace(o, agrees=not o.agrees) if i in checked else o for i, o in enumerate(observations)
    ]
    other = calibrate(flipped, model="m", dataset="d", max_disagreement=0.1)
    assert (made.tau_conf, made.r_gap, made.skipped) == (other.tau_conf, other.r_gap, other.skipped)
    assert made.disagreements + other.disagreements == made.skipped
    assert made.checked == len(observations) // 2 and made.problems == len(observations)
    assert made.disagreement_bound == clopper_pearson(made.disagreements, made.checked)


@pytest.mark.parametrize(
    ("hits", "trials", "bound"),
    [
        (0, 10, 0.2589),  # 1 - 0.05^(1/10)
        (1, 10, 0.3942),  # as in tables
        (5, 10, 0.7776),
        (0, 299, 0.00997),
        (10, 10, 1.0),
        (0, 0, 1.0),
    ],
)
def test_clopper_pearson(hits: int, trials: int, bound: float) -> None:
    assert clopper_pearson(hits, trials) == pytest.approx(bound, abs=1e-4)


@given(st.integers(1, 40), st.data(), st.sampled_from([0.9, 0.95, 0.99]))
@settings(max_examples=examples(50))
def test_clopper_pearson_by_exact_sums(trials: int, data: Any, confidence: float) -> None:
    hits = data.draw(st.integers(0, trials - 1))
    bound = clopper_pearson(hits, trials, confidence)

    def at_most(p: Fraction) -> float:
        return float(
            sum(math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(hits + 1))
        )

    assert at_most(Fraction(bound)) == pytest.approx(1 - confidence, rel=1e-6)
    assert hits / trials < bound <= 1


def test_many_trials_do_not_overflow() -> None:
    assert clopper_pearson(5_000, 10_000) == pytest.approx(0.5083, abs=1e-3)


def test_a_file_holds_all_of_it(tmp_path: Path) -> None:
    made = calibrate(
        FIVE, model="m", dataset="d", max_disagreement=0.5, settings={"search": {"n": 4}}
    )
    file = tmp_path / "new" / "c.json"
    made.save(file)
    assert GateCalibration.load(file, model="m", dataset="d") == made
    assert [p.name for p in file.parent.iterdir()] == ["c.json"]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (
            {"model": "other", "dataset": "d"},
            r"c\.json was calibrated for the model 'm', not for 'other'",
        ),
        (
            {"model": "m", "dataset": "other"},
            r"c\.json was calibrated for the data set 'd', not for 'other'",
        ),
    ],
)
def test_another_model_or_data_set_is_refused_by_name(
    tmp_path: Path, wanted: dict[str, str], message: str
) -> None:
    calibrate(FIVE, model="m", dataset="d").save(tmp_path / "c.json")
    with pytest.raises(InvalidInput, match=message):
        GateCalibration.load(tmp_path / "c.json", **wanted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tau_conf": -1}, "tau_conf=-1"),
        ({"r_gap": "0.1"}, "r_gap='0.1'"),
        ({"skipped": 9}, "must not decrease"),
        ({"problems": 5.0}, "whole"),
        ({"extra": 1}, "extra"),
        ({"model": None}, "None"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    file = tmp_path / "c.json"
    calibrate(FIVE, model="m", dataset="d").save(file)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(InvalidInput, match=message):
        GateCalibration.load(file, model="m", dataset="d")


@pytest.mark.parametrize(
    ("text", "message"), [("{torn", "not JSON"), ("[]", "list"), ("{}", "tau_conf"), (None, "No")]
)
def test_what_is_no_calibration_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "c.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InvalidInput, match=message):
        GateCalibration.load(file, model="m", dataset="d")


def test_what_cannot_be_calibrated_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="0 held-out problems"):
        calibrate([], model="m", dataset="d")
    with pytest.raises(InvalidInput, match="at least 2"):
        calibrate(FIVE[:1], model="m", dataset="d", max_disagreement=0.1)
    with pytest.raises(InvalidInput, match=r"max_disagreement=1\.5"):
        calibrate(FIVE, model="m", dataset="d", max_disagreement=1.5)
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot write"):
        calibrate(FIVE, model="m", dataset="d").save(tmp_path / "file" / "c.json")


SUMS = {
    "name": "sums",
    "task": "chain_sum",
    "params": {"max_terms": 3},
    "size": 100,
    "seed": 0,
    "offset": 0,
}
ROWS = {
    "name": "gsm8k",
    "hub": "openai/gsm8k",
    "subset": "main",
    "split": "test",
    "seed": 0,
    "offset": 0,
}
BEST = {"_target_": "search.BestOfN", "n": 4}


@pytest.mark.parametrize(
    ("its", "run", "same"),
    [
        (SUMS, SUMS, True),
        (SUMS | {"limit": 50}, SUMS | {"offset": 49, "limit": 9}, True),
        (SUMS | {"limit": 50}, SUMS | {"offset": 50, "limit": 9}, False),
        (SUMS | {"size": 50}, SUMS | {"offset": 50}, False),  # `size` rows without a limit
        # with one, that many
        (SUMS | {"limit": 300}, SUMS | {"size": 5, "offset": 299, "limit": 1}, True),
        (SUMS, SUMS | {"seed": 99}, True),  # problem 99 of seed 0 is problem 0 of seed 99
        (SUMS, SUMS | {"seed": 100}, False),
        (SUMS, SUMS | {"params": {"max_terms": 4}}, False),
        # the same, asked otherwise
        (SUMS, SUMS | {"pad_chars": 4200, "instruction": "Think. {question}"}, True),
        (ROWS | {"limit": 10}, ROWS, True),
        (ROWS | {"limit": 10}, ROWS | {"seed": 1}, True),  # rows of the hub have no seed
        (ROWS | {"limit": 10}, ROWS | {"offset": 10}, False),
        (ROWS | {"offset": 10}, ROWS | {"limit": 10}, False),
        (ROWS, ROWS | {"split": "train"}, False),
        ({"path": "a/../b.jsonl"}, {"path": "b.jsonl"}, True),
        ({"path": "a.jsonl"}, {"path": "b.jsonl"}, False),
        ({"path": "a.jsonl"}, ROWS, False),
    ],
)
def test_the_problems_of_a_run_must_be_others(
    its: dict[str, Any], run: dict[str, Any], same: bool
) -> None:
    made = calibrate(FIVE, model="m", dataset="d", settings={"dataset": its, "search": BEST})
    if same:
        with pytest.raises(
            InvalidInput, match=r"c\.json: these problems were used to calibrate; .*dataset\.offset"
        ):
            made.check_use("c.json", run, BEST)
    else:
        made.check_use("c.json", run, BEST)


def test_the_search_of_a_run_must_be_the_same() -> None:
    made = calibrate(FIVE, model="m", dataset="d", settings={"dataset": SUMS, "search": BEST})
    other = SUMS | {"seed": 1000}
    made.check_use("c.json", other, BEST | {"n": 8})
    with pytest.raises(
        InvalidInput,
        match=r"with search\.BestOfN, and its counts do not hold for search\.BeamSearch",
    ):
        made.check_use("c.json", other, {"_target_": "search.BeamSearch"})
    calibrate(FIVE, model="m", dataset="d").check_use("c.json", SUMS, BEST)  # made by hand
