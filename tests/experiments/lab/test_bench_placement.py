"""The benchmark of placements: what each arm moves, and the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.lab.bench import placement
from experiments.lab.bench.placement import helm_split
from tests.helpers.tiers import slow
from ttc import Split

LAYERS = 9
LAYER = 4 * (4 * 32 * 32 + 3 * 32 * 64 + 2 * 32 + 2 * 16)
TABLE = 4 * 64 * 32


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    shape: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 64,
        "num_hidden_layers": LAYERS,
    }
    monkeypatch.setattr(placement, "SHAPE", placement.SHAPE | shape)
    monkeypatch.setattr(placement, "PASSES", 1)
    monkeypatch.setattr(placement, "helm_split", lambda: Split(k=6))


@pytest.mark.parametrize(
    ("arm", "moved"),
    [
        ("resident", 0),
        # room for a layer beside two buffers, embedding and head
        slow(("streamed", (LAYERS - 1) * LAYER)),
        # of four layers one is a buffer; head and final norm
        slow(("accelerate", (LAYERS - 3) * LAYER + TABLE + 4 * 32)),
        ("split", 4 * (2 * 32 + 2 * 2 * 16) + 2 * 8),  # states, rotations and positions of two rows
    ],
)
def test_each_arm_moves_what_it_has_to(arm: str, moved: int) -> None:
    row = placement.measured(arm, 2, 1e-5)
    assert row["moved_bytes"] == moved and row["pass_s"] > 0
    if arm in ("streamed", "accelerate"):
        assert row["device_bytes"] <= placement.budget_bytes(placement.random_model())


def test_a_record_that_broke_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def measured(arm: str, branches: int, layer_s: float = 0.0) -> dict[str, Any]:
        if len(asked) == 2:
            asked.clear()
            raise KeyboardInterrupt
        asked.append((arm, branches, layer_s))
        return {
            "arm": arm,
            "branches": branches,
            "pass_s": 0.9,
            "layer_s": 0.1,
            "moved_bytes": 0,
            "device_bytes": 0,
            "link_gbps": None,
        }

    monkeypatch.setattr(placement, "measured", measured)
    monkeypatch.setattr(placement, "BRANCHES", (1,))
    file = tmp_path / "placement.json"
    with pytest.raises(KeyboardInterrupt):
        placement.run(out=file)
    assert [row["arm"] for row in json.loads(file.read_text())["rows"]] == ["resident", "split"]
    placement.run(out=file)
    assert asked == [("streamed", 1, 0.1), ("accelerate", 1, 0.1)]


@pytest.mark.slow
def test_the_split_is_that_of_helms_machine() -> None:
    assert helm_split().k == 21
