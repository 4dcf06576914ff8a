"""The benchmark of KV in 8 bits, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from experiments.lab.bench import kv_storage
from tests.helpers.benches import save_tiny_model


@pytest.mark.slow
def test_errors_bytes_and_times_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_storage, "CASES", ((2, 20, 8),))
    monkeypatch.setattr(kv_storage, "ROUNDS", 2)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    out = tmp_path / "kv_storage.json"
    kv_storage.run(texts=2, tokens=40, model=save_tiny_model(tmp_path / "model"), out=out)
    found = json.loads(out.read_text(encoding="utf-8"))
    attention, scores, (row,) = found["attention"], found["scores"], found["steps"]
    assert 0 < attention["int8"]["median"] < attention["fp8"]["median"] < 0.1
    assert scores["int8"]["tokens"] == 2 * 40 and 0 < scores["int8"]["mean_gap"] < 0.1
    # heads of 16 in bfloat16, beside a byte a number and a scale
    assert row["int8_kv_bytes"] * 32 == row["bfloat16_kv_bytes"] * 20
    assert all(row[f"{name}_ms"] > 0 for name in kv_storage.MEMORY)
