"""The benchmark of growing room: one engine begins storages as it goes, the other never does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.lab.bench import growth
from tests.helpers.runs import save_model
from ttc.memory.manager import Memory
from ttc.memory.storage import Storage


def test_growing_and_reserved_storages_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms, begin = list[int](), Memory.begin

    def noted(self: Memory, start: int, room: int, *options: Any, **more: Any) -> Storage:
        rooms.append(room)
        return begin(self, start, room, *options, **more)

    monkeypatch.setattr(Memory, "begin", noted)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(growth, "PROMPT", [1] * 64)
    out = tmp_path / "growth.json"
    growth.run(cases=["3x300"], model=save_model(tmp_path / "model"), out=out)
    (row,) = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert row["growing_ms"] > 0 and row["reserved_ms"] > 0 and row["ratio"] > 0
    assert sum(room > 256 for room in rooms) == 3 and len(rooms) > 3 + 3 * 5
