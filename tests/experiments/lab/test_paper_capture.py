"""Table III of CAPTURE: what is measured, and what the model of time says, on a model that takes no
time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from experiments.lab.paper.capture import (
    ACT,
    ARMS,
    CHOSEN,
    EVEN,
    FITS,
    KV,
    POINTS,
    STATIC,
    Setting,
    engine_of,
    given_contexts,
    layer_weight_bytes,
    measured,
    over_link,
    sweep,
    times_at,
)
from ttc import Capture
from ttc.cost_model.capture import CaptureTimes, Line, allocation

SMALL = Setting(
    hidden=64, layers=3, branches=3, context=64, block_tokens=8, mini_batch_tokens=64, turns=1
)
TIMES = CaptureTimes(kv_gen=Line(2e-6), load_kv=Line(0.0), forward_s=1e-4)


@pytest.mark.few
@pytest.mark.parametrize("arm", ARMS)
def test_bytes_of_a_step_are_those_of_its_blocks(arm: str) -> None:
    point = replace(POINTS[1], act_gpu=0.25)
    row = measured(SMALL, point, arm, times_at(point, TIMES, SMALL), lambda: TIMES)
    token, moved = 4 * SMALL.hidden, row["bytes_per_step"]
    # aligned
    assert moved["weights"] == pytest.approx(SMALL.layers * layer_weight_bytes(SMALL), rel=0.01)
    held = row["act_gpu"] + row["act_host"] + row["kv_host"]
    # the others stay on the device
    assert held == SMALL.tokens if arm != FITS else 0 < held < SMALL.tokens
    assert moved.get("stream" if arm == FITS else "kv", 0) == SMALL.layers * row["kv_host"] * token
    assert moved.get("act", 0) == SMALL.layers * row["act_host"] * token // 2
    if arm == CHOSEN:  # by times that the engine itself has measured
        assert row["engine_times"]["forward_s"] > 0
        return
    kinds = {
        KV: (False, True),
        FITS: (False, True),
        ACT: (True, False),
        EVEN: (True, True),
        STATIC: (True, True),
    }
    assert (row["act_gpu"] > 0, row["kv_host"] > 0) == kinds[arm] and row["engine_times"] is None
    if arm in (EVEN, STATIC):  # two of three tokens of the host, to a block of each branch
        share = 0.25 + 0.75 * 2 / 3
        assert (
            abs(held - row["kv_host"] - share * SMALL.tokens) <= SMALL.branches * SMALL.block_tokens
        )


def test_the_models_gain_comes_with_slow_links_and_goes_with_fast_ones() -> None:
    """Worked out for a link of three times a token's generation: a step is the slower of link and
    computing."""
    setting = Setting(hidden=64, branches=10, context=100)
    times = CaptureTimes(kv_gen=Line(1e-6), load_kv=Line(0.0))
    rows = sweep(times, setting)
    assert all(row["over_kv"] >= later["over_kv"] - 0.01 for row, later in pairwise(rows))
    assert rows[0]["act_share"] == 1 and rows[0]["over_kv"] > 1.5 and rows[-1]["over_kv"] < 1.1
    at = over_link(times, 3e-6, setting)
    assert at.load_act.slope == 1.5e-6
    assert at.load_w == pytest.approx(3e-6 * layer_weight_bytes(setting) / (4 * 64))
    assert at.layer_s(600, 400, 0) == pytest.approx(at.load_w + 600 * 3e-6 + 400 * 1.5e-6)


def test_the_static_rule_fills_the_activations_of_the_first_branches() -> None:
    engine = engine_of(SMALL, Capture(act_share=1.0, block_tokens=SMALL.block_tokens))
    branches = given_contexts(engine, SMALL, act_first=0.5)
    acts = [
        sum(len(segment.tokens) for segment in b.leaf.path() if segment.storage.acts)
        for b in branches
    ]
    assert acts == [SMALL.context, SMALL.context // 2, 0]
    engine.release(branches)


def test_by_the_model_algorithm_1_gains_most_over_the_static_rule_at_the_first_point() -> None:
    """With T_kv_gen 1, T_load_kv 1 / 0.69 and nothing else: 0.62 of 1 on the device leaves a third
    of 0.38 as KV."""
    times = CaptureTimes(kv_gen=Line(0.69), load_kv=Line(1.0), load_act=Line(0.5))
    share = POINTS[0].static_share
    assert share == pytest.approx(0.62 + 0.38 * 2 / 3)
    static = times.layer_s(1000 * (1 - share), 1000 * (share - 0.62), 620)
    act_gpu, act_host, kv_host = allocation(times, 620, 1000)
    assert static / times.layer_s(kv_host, act_host, act_gpu) == pytest.approx(1.47, abs=0.01)
