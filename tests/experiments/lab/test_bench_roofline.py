"""The roofline on paper: what is counted for a plan, by hand."""

from __future__ import annotations

import pytest

from experiments.lab.bench.roofline import MODELS, PEAKS, WAYS, counted, plan_of, step_of


def test_each_way_reads_what_it_must() -> None:
    plan = plan_of(3, 4, 100, own=8)  # each branch attends 100 tokens and 8 of its own
    tree, cascade, alone = (counted(plan, way, groups=4) for way in WAYS)
    assert tree.attended == cascade.attended == alone.attended == alone.read == 12 * 108
    assert tree.read == 3 * 100 + 12 * 8
    assert cascade.read == alone.read  # nothing is common to all problems


def test_a_cascade_is_as_good_as_the_tree_for_one_problem() -> None:
    plan = plan_of(1, 8, 700, own=8)
    tree, cascade, alone = (counted(plan, way, groups=4) for way in WAYS)
    assert tree.read == cascade.read == 700 + 8 * 8
    assert alone.read == 8 * 708


def test_a_step_takes_as_long_as_its_bytes_or_its_operations() -> None:
    shape, plan = MODELS["Llama-3.2-1B"], plan_of(1, 8, 700, own=8)
    keys = counted(plan, "nothing shared", groups=4)
    found = step_of(keys, 8, shape)
    assert found["weight_bytes"] == pytest.approx(1.236e9 * 2, rel=0.01)
    assert found["kv_bytes"] == 8 * 708 * 16 * 2 * 8 * 64 * 2
    assert found["attention_flops"] == 8 * 708 * 16 * 32 * 64 * 4
    h100 = PEAKS[0]
    bytes_s = (found["weight_bytes"] + found["kv_bytes"]) / h100.bandwidth
    assert found["H100 SXM"] == pytest.approx(bytes_s)
