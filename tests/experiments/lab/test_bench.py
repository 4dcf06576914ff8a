"""The memory benchmark's counts: every arm moves what its model says, and prints a table."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from experiments.lab.bench import memory
from experiments.lab.bench.memory import (
    ARMS,
    BUDGET_SHARE,
    PRIVATE,
    SWEEP,
    Case,
    Silent,
    bytes_table,
    measure,
    shaped,
    sweep_budget,
    sweep_table,
    time_table,
    tiny,
)

Rows = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def rows() -> Rows:
    model = tiny(layers=16)
    return {
        arm: measure(model, Silent(), arm, Case(12, 32, 32, 16, arm not in PRIVATE)) for arm in ARMS
    }


@pytest.mark.slow
def test_what_was_measured_by_the_same_code_is_not_measured_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def measured(_model: Any, _tokenizer: Any, arm: str, case: Case) -> dict[str, Any]:
        asked.append(arm)
        moved = {"to_device_bytes": {"kv": 1}, "total_s": 1.0, "baseline_bytes": 1}
        return {"arm": arm, **vars(case), **moved}

    monkeypatch.setattr(memory, "measure", measured)
    monkeypatch.setattr(memory, "provenance", cache(memory.provenance))
    out = tmp_path / "memory.json"
    for _ in range(2):
        memory.run("bytes", quick=True, out=out)
    assert len(asked) == len(memory.BYTES)
    record = json.loads(out.read_text())
    del record["bytes"]["rows"][2]  # as a run that was cut short leaves it
    out.write_text(json.dumps(record))
    memory.run("bytes", quick=True, out=out)
    assert asked[len(memory.BYTES) :] == [memory.BYTES[2][0]]
    rows = json.loads(out.read_text())["bytes"]["rows"]
    assert [(row["arm"], row["step_tokens"]) for row in rows] == list(memory.BYTES)
    monkeypatch.setattr(memory, "changed_modules", lambda _: ["ttc.engine"])
    memory.run("bytes", quick=True, out=out)
    assert len(asked) == 2 * len(memory.BYTES) + 1


@pytest.mark.slow
@pytest.mark.parametrize("arm", PRIVATE)
def test_counted_bytes_agree_with_the_papers_model(rows: Rows, arm: str) -> None:
    counted = sum(rows[arm]["to_device_bytes"].values())
    assert counted == pytest.approx(rows[arm]["model_bytes"], rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["+ inter-beam", "+ prefetch"])
def test_beam_groups_move_little_more_than_they_must(rows: Rows, arm: str) -> None:
    counted = sum(rows[arm]["to_device_bytes"].values())
    assert rows[arm]["lower_bound_bytes"] <= counted <= 1.1 * rows[arm]["lower_bound_bytes"]


@pytest.mark.slow
def test_each_mechanism_moves_less_within_the_budget(rows: Rows) -> None:
    moved = [
        sum(rows[arm]["to_device_bytes"].values())
        for arm in ("layerwise", "inter-token", "+ inter-beam")
    ]
    assert moved[0] > 10 * moved[1] > 20 * moved[2] > 0
    assert all(
        row["device_peak_bytes"] <= row["budget_bytes"]
        for row in rows.values()
        if row["budget_bytes"]
    )
    assert sum(rows["resident"]["to_device_bytes"].values()) == 0


@pytest.mark.slow
def test_tables_have_a_line_for_each_arm(rows: Rows) -> None:
    assert len(time_table({"time": {"rows": list(rows.values())}}).splitlines()) == 2 + len(ARMS)
    assert len(bytes_table({"bytes": {"rows": list(rows.values())}}).splitlines()) == 2 + len(ARMS)
    assert len(time_table({"time": {"rows": [rows["resident"]]}}).splitlines()) == 3


@pytest.mark.slow
def test_the_sweeps_budget_makes_every_switch_move_something() -> None:
    model, case = tiny(layers=8), Case(4, 64, 64, 32)
    budget = sweep_budget(model, case)
    # 1.25 beams: tokens, layers, K and V, dim, float32
    assert budget == int(1.25 * (64 + 64) * 8 * 2 * 4 * 4)
    assert sweep_budget(model, Case(64, 64, 64, 32)) == int(64 * 128 * 8 * 32 * BUDGET_SHARE)
    rows = [measure(model, Silent(), arm, case, budget=budget) for arm in SWEEP]
    assert all(sum(row["to_device_bytes"].values()) for row in rows)
    table = sweep_table({"sweep": {"rows": rows}}).splitlines()
    assert (
        len(table) == 3
        and table[-1].startswith("| 4 | 32 | ")
        and table[-1].count("|") == table[0].count("|")
    )


@pytest.mark.parametrize("shape", ["opt-6.7b", "llama-2-7b"])
def test_the_papers_models_by_their_dimensions(shape: str) -> None:
    row = measure(
        shaped(shape, layers=2, width=128), Silent(), "+ prefetch", Case(4, 16, 16, 8), budget=2**20
    )
    assert row["new_tokens"] == 16 and row["device_peak_bytes"] <= row["budget_bytes"] == 2**20
