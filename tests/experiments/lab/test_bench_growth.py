"""The benchmark of growing tails: one engine grows them, the other never does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from experiments.lab.bench import growth
from tests.helpers.runs import save_model
from ttc.memory.manager import KVMemory


def test_growing_and_reserved_tails_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tails, allocate = list[int](), KVMemory.allocate

    def noted(self: KVMemory, tokens: int, rows: int | None = None, **options: int) -> object:
        if rows is not None:
            tails.append(tokens)
        return allocate(self, tokens, rows, **options)

    monkeypatch.setattr(KVMemory, "allocate", noted)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(growth, "PROMPT", [1] * 64)
    out = tmp_path / "growth.json"
    growth.run(["3x300"], save_model(tmp_path / "model"), out)
    (row,) = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert row["growing_ms"] > 0 and row["reserved_ms"] > 0 and row["ratio"] > 0
    assert sum(tokens > 256 for tokens in tails) == 1 and len(tails) > 5
    assert "| 3 x 300 |" in growth.table({"rows": [row]})
