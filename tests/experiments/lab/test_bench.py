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
    measure,
    shaped,
    sweep_budget,
    tiny,
)


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
def test_each_arm_moves_what_its_model_says_within_the_budget() -> None:
    model = tiny(layers=16)
    rows = {
        arm: measure(model, Silent(), arm, Case(12, 32, 32, 16, arm not in PRIVATE)) for arm in ARMS
    }
    moved = {arm: sum(row["to_device_bytes"].values()) for arm, row in rows.items()}
    for arm in PRIVATE:
        assert moved[arm] == pytest.approx(rows[arm]["model_bytes"], rel=0.03)
    for arm in ("+ inter-beam", "+ prefetch"):
        least = rows[arm]["lower_bound_bytes"]
        assert least <= moved[arm] <= 1.1 * least
    assert moved["layerwise"] > 10 * moved["inter-token"] > 20 * moved["+ inter-beam"] > 0
    assert moved["resident"] == 0
    for row in rows.values():
        assert not row["budget_bytes"] or row["device_peak_bytes"] <= row["budget_bytes"]


@pytest.mark.slow
def test_the_sweeps_budget_makes_every_switch_move_something() -> None:
    model, case = tiny(layers=8), Case(4, 64, 64, 32)
    budget = sweep_budget(model, case)
    # 1.25 beams: tokens, layers, K and V, dim, float32
    assert budget == int(1.25 * (64 + 64) * 8 * 2 * 4 * 4)
    assert sweep_budget(model, Case(64, 64, 64, 32)) == int(64 * 128 * 8 * 32 * BUDGET_SHARE)
    rows = [measure(model, Silent(), arm, case, budget=budget) for arm in SWEEP]
    assert all(sum(row["to_device_bytes"].values()) for row in rows)


@pytest.mark.parametrize("shape", ["opt-6.7b", "llama-2-7b"])
def test_the_papers_models_by_their_dimensions(shape: str) -> None:
    row = measure(
        shaped(shape, layers=2, width=128), Silent(), "+ prefetch", Case(4, 16, 16, 8), budget=2**20
    )
    assert row["new_tokens"] == 16 and row["device_peak_bytes"] <= row["budget_bytes"] == 2**20
