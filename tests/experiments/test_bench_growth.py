"""The benchmark of growing tails: one engine grows them, the other never does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.lab.bench import growth
from tests.helpers.benches import save_tiny_model
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
    out = tmp_path / "growth.json"
    growth.run(["3x300"], save_tiny_model(tmp_path / "model"), out)
    (row,) = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert row["growing_ms"] > 0 and row["reserved_ms"] > 0 and row["ratio"] > 0
    assert sum(tokens > 256 for tokens in tails) == 1 and len(tails) > 5
    assert "| 3 x 300 |" in growth.table({"rows": [row]})
