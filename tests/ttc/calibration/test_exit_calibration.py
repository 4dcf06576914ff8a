"""Replays against the engine, the paper's rule and the risk-controlled choice by hand, and files
that are refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.exits import CANDIDATES, LAYERS, ask, build, problems
from tests.helpers.tiers import examples
from tests.helpers.tokenizers import Letters
from ttc import EarlyExit, Engine, InvalidInput
from ttc.calibration.error_bounds import clopper_pearson
from ttc.calibration.exit_calibration import (
    ExitCalibration,
    agrees,
    calibrate_exit,
    candidates,
    chosen,
    looks,
    paper_rule,
    replay,
    risk_controlled,
    stable_entropies,
)
from ttc.calibration.gate_calibration import GateCalibration, Observation, calibrate
from ttc.calibration.layer_profile import BranchProfile, layer_profile


def profile(p: list[float], entropy: list[float] | None = None) -> BranchProfile:
    return BranchProfile(
        entropy or [1 / layer for layer in range(1, len(p) + 1)], [math.nan] * len(p), p, 1
    )


def same_p(*p: list[float]) -> list[BranchProfile]:
    return [profile(list(values)) for values in p]


# -------------------------------------------------------------------- against the engine


def test_a_replay_is_what_the_engine_does() -> None:
    engine = Engine(build("llama"), Letters())
    branches, more = problems(engine)
    found = layer_profile(engine, branches, more, [CANDIDATES] * 5, 1)
    ratings = [found[:3], found[3:]]
    exits = [*candidates(ratings), paper_rule(ratings), EarlyExit(l_min=1, theta=4.0, eps=math.inf)]
    exits += [
        EarlyExit(theta=4.0, eps=eps, common_depth=common)
        for eps in (0.1, 0.3, 0.6)
        for common in (False, True)
    ]
    seen = set()
    for exit in exits:
        expected, report = ask(engine, branches, more, exit)
        depths = [replay(rating, exit) for rating in ratings]
        assert depths[0] + depths[1] == report.depths
        assert sum(looks(depth, exit) for depth in report.depths) == report.lens_rows
        odds = [math.exp(row[0]) / sum(map(math.exp, row)) for row in expected]
        for rating, own, part in zip(ratings, depths, (odds[:3], odds[3:]), strict=True):
            assert chosen(rating, own) == part.index(max(part))
        seen.add(tuple(report.depths))
    assert len(seen) > 8  # the cases are worth testing


# -------------------------------------------------------------------- by hand

FALLING = [4.0, 3.0, 2.9, 1.0, 0.9]


def test_the_papers_rule_by_hand() -> None:
    one = [profile([0.5] * 5, FALLING), profile([0.5] * 5, [5.0, 4.95, 2.0, 1.0, 1.0])]
    two = [profile([0.5] * 5, [9.0, 7.0, 5.0, 3.0, 1.0])]
    # changes: 1, 0.1, 1.9, 0.1 | 0.05, 2.95, 1, 0 | 2, 2, 2, 2
    found = paper_rule([one, two])
    assert (found.theta, found.eps) == pytest.approx(((3.0 + 4.95) / 2, 1.45))
    assert replace(found, theta=2.0, eps=0.1) == EarlyExit("entropy", l_min=2, common_depth=False)
    assert stable_entropies([one, two], 0.2) == [2.9, 4.95]  # the third branch is never stable
    assert stable_entropies([one, two], 0.2, l_min=4) == [0.9, 1.0]
    assert paper_rule([one, two], 0.2) == EarlyExit(theta=(2.9 + 4.95) / 2, eps=0.2)
    made = calibrate_exit([one, two], model="m", dataset="d", eps=0.2, look_layers=0.5)
    assert [replay(rating, made.exit) for rating in (one, two)] == [[3, 5], [5]]
    assert (made.layers, made.problems, made.checked, made.disagreements) == (5, 2, 2, 0)
    assert (made.depth, made.looks) == pytest.approx((13 / 3, 13 / 3))  # looked at from layer 1 on
    assert made.quantiles["depth"] == [3.0, 4.0, 5.0, 5.0, 5.0]
    assert made.quantiles["stable_entropy"][2] == pytest.approx(3.925)
    assert made.quantiles["change"][-1] == 2.95


def test_branches_that_leave_at_different_depths_are_compared_as_the_engine_compares_them() -> None:
    settled = profile([0.1, 0.6, 0.2, 0.2], [3.0, 0.5, 0.5, 0.5])
    late = profile([0.1, 0.9, 0.4, 0.5], [9.0, 7.0, 5.0, 3.0])
    exit = EarlyExit(theta=1.0, eps=9.0)
    assert replay([settled, late], exit) == [2, 4] and chosen([settled, late], [2, 4]) == 0
    assert not agrees([settled, late], [2, 4])
    assert replay([settled, late], replace(exit, common_depth=True)) == [4, 4]


def test_equal_scores_go_to_the_first_branch() -> None:
    assert chosen(same_p([0.3], [0.7], [0.7 + 1e-9]), [1, 1, 1]) == 1


A = same_p([0.2, 0.9, 0.9, 0.9], [0.8, 0.1, 0.1, 0.1])  # settled from layer 2 on
B = same_p([0.2, 0.4, 0.9, 0.9], [0.8, 0.6, 0.1, 0.1])  # from layer 3 on


levels = st.sampled_from([0.1, 0.2, 0.3, 0.5, 0.9])
ratings = st.lists(
    st.lists(
        st.builds(
            profile,
            st.lists(levels, min_size=4, max_size=4),
            st.lists(levels, min_size=4, max_size=4),
        ),
        min_size=1,
        max_size=3,
    ),
    min_size=1,
    max_size=4,
)


def every_exit(problems: list[Any]) -> list[EarlyExit]:
    """The exits of four layers that are worth a try, written out."""
    # l_min, patience: both fit before the last layer
    ranking = [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 1)]
    found = [EarlyExit("ranking", l_min=l_min, patience=patience) for l_min, patience in ranking]
    entropies = [own.entropy for rating in problems for own in rating]
    steps = [abs(h[layer] - h[layer - 1]) for h in entropies for layer in (1, 2, 3)]
    for l_min in (2, 3):
        for eps in np.quantile(steps, [0.25, 0.5, 0.75, 1.0]):
            close = [
                [h[i] for i in range(l_min - 1, 4) if abs(h[i] - h[i - 1]) < eps] for h in entropies
            ]
            if first := [levels[0] for levels in close if levels]:
                for theta in np.quantile(first, [0.25, 0.5, 0.75, 1.0]):
                    found.append(
                        EarlyExit("entropy", l_min, float(theta), float(eps), common_depth=True)
                    )
    return found


@given(ratings)
@settings(max_examples=examples(40))
def test_the_candidates_are_those_worth_a_try(problems: list[Any]) -> None:
    assert list(candidates(problems)) == every_exit(problems)


@given(ratings, st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.sampled_from([0.0, 0.5]))
@settings(max_examples=examples(40))
def test_no_candidate_within_the_bound_saves_more(
    problems: list[Any], allowed: float, look_layers: float
) -> None:
    def saved(exit: EarlyExit) -> float:
        return sum(
            4 - d - look_layers * (looks(d, exit) - 1)
            for rating in problems
            for d in replay(rating, exit)
        )

    def wrong(exit: EarlyExit) -> float:
        return sum(not agrees(rating, replay(rating, exit)) for rating in problems) / len(problems)

    found = risk_controlled(problems, allowed, look_layers)
    assert wrong(found) <= allowed and saved(found) >= 0
    assert all(
        saved(exit) <= saved(found) for exit in every_exit(problems) if wrong(exit) <= allowed
    )


def test_the_count_comes_from_problems_that_had_no_say() -> None:
    made = calibrate_exit(
        [A, B, A, B, A, A], model="m", dataset="d", max_disagreement=0.0, settings={"seed": 3}
    )
    assert made.exit == EarlyExit("ranking", l_min=2, patience=1)  # from the first, third and fifth
    assert (made.problems, made.checked, made.disagreements) == (6, 3, 2)
    assert made.disagreement_bound == clopper_pearson(2, 3)
    assert (made.depth, made.looks, made.layers) == (2.0, 1.0, 4)
    assert (made.model, made.dataset, made.max_disagreement, made.settings) == (
        "m",
        "d",
        0.0,
        {"seed": 3},
    )


# -------------------------------------------------------------------- files and input


def test_a_file_holds_all_of_it(tmp_path: Path) -> None:
    made = calibrate_exit(
        [A, B], model="m", dataset="d", max_disagreement=0.5, settings={"search": {"n": 4}}
    )
    made.save(tmp_path / "new" / "c.json")
    assert ExitCalibration.load(tmp_path / "new" / "c.json", model="m", dataset="d") == made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"exit": {"theta": "low"}}, "theta='low'"),
        ({"exit": {"l_min": 2.5}}, r"l_min=2\.5"),
        ({"exit": {"depth": 3}}, "depth"),
        ({"exit": None}, "damaged"),
        ({"layers": 1}, "l_min, layers"),
        ({"checked": 9}, "must not decrease"),
        ({"tau_conf": 1}, "tau_conf"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    file = tmp_path / "c.json"
    calibrate_exit([A, B], model="m", dataset="d").save(file)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(InvalidInput, match=message):
        ExitCalibration.load(file, model="m", dataset="d")


def test_the_other_levels_file_is_refused(tmp_path: Path) -> None:
    calibrate([Observation(0.5, 0.5, True)], model="m", dataset="d").save(tmp_path / "one.json")
    calibrate_exit([A, B], model="m", dataset="d").save(tmp_path / "two.json")
    with pytest.raises(InvalidInput, match=r"one\.json is no ExitCalibration .*'tau_conf'"):
        ExitCalibration.load(tmp_path / "one.json", model="m", dataset="d")
    with pytest.raises(InvalidInput, match=r"two\.json is no GateCalibration .*'exit'"):
        GateCalibration.load(tmp_path / "two.json", model="m", dataset="d")


@pytest.mark.parametrize(
    ("problems", "options", "message"),
    [
        ([], {}, "0 held-out problems"),
        ([A], {"max_disagreement": 0.1}, "at least 2"),
        ([A, B], {"max_disagreement": 1.5}, r"max_disagreement=1\.5"),
        ([A, B], {"max_disagreement": 0.1, "eps": 1.0}, r"eps=1\.0 belongs"),
        ([A, B], {"eps": -1.0}, r"eps=-1\.0"),
        ([A, B], {"eps": math.inf}, "eps=inf"),
        ([A, B], {"eps": math.nan}, "eps=nan"),
        ([same_p([0.1, 0.2])], {"eps": 0.5}, r"eps=0\.5 nats; use a larger"),
        ([A, same_p([0.1] * LAYERS)], {}, r"\[4, 5\] layers"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(
    problems: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        calibrate_exit(problems, model="m", dataset="d", **options)
