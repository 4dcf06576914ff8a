"""`python -m experiments.bench cost_model`: what is predicted for which pass."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from experiments.lab.bench import cost_model, stored_profile
from tests.helpers.placements import write_profile
from ttc.cost_model.device_profile import DeviceProfile, LinkProfile
from ttc.errors import TTCError

# Each byte read takes a nanosecond, each operation next to nothing, each block a second and each
# pass two.
DEVICE = DeviceProfile(
    name="cpu bfloat16", bandwidth=1e9, flops={1: 1e18}, block_overhead_s=1, pass_overhead_s=2
)


class Timer:
    def __init__(self, *_: object):
        limits, memory = SimpleNamespace(vocab_size=2), SimpleNamespace(live=[])
        self.engine = SimpleNamespace(
            runner=SimpleNamespace(forward=None), limits=limits, memory=memory
        )

    def prefix(self, context: int) -> None:
        assert self.engine.runner.forward([0], None).shape == (1, 2)  # the model does not run

    def seconds(self, rows: int, context: int, enough_s: float = 0.3, prefixes: int = 1) -> float:
        return 10.0


def test_a_pass_is_predicted_from_the_shapes_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_model, "PassTimer", Timer)
    rows = cost_model.measured(
        "Qwen3-0.6B", 2, ((1, 1), (16, 1), (16, 4)), (128,), DEVICE, torch.bfloat16
    )
    assert {(row["model"], row["layers"], row["context"]) for row in rows} == {
        ("Qwen3-0.6B", 2, 128)
    }
    assert [(row["rows"], row["prompts"]) for row in rows] == [(1, 1), (16, 1), (16, 4)]
    block = 2 * (1024 * (2 * 2048 + 2 * 1024 + 3 * 3072) + 2 * 1024 + 2 * 128)
    head = 2 * (151936 * 1024 + 1024)
    for row in rows:
        branches = row["rows"]
        kv = 2 * 8 * 128 * 2 * (row["prompts"] * 128 + branches * (cost_model.OWN_TOKENS + 1))
        embedded = branches * 1024 * 2
        seconds = (embedded + 2 * block + head + 2 * kv) / 1e9 + 2 * 1 + 2
        assert row["predicted_ms"] == pytest.approx(seconds * 1e3)
        assert row["measured_ms"] == 10_000
        assert row["bandwidth"] == 1.0


def test_the_turn_counts_whose_error_is_the_median(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_model, "PassTimer", Timer)
    predicted = cost_model.measured("Qwen3-0.6B", 2, ((1, 1),), (128,), DEVICE, torch.bfloat16)[0][
        "predicted_ms"
    ]

    class Beside(cost_model.ProfileBeside):
        def __init__(self, *times: float | None) -> None:
            self.times = iter(times)

        def measure(  # type: ignore[override]
            self, timer: Timer, rows: int, context: int, group: float, prefixes: int = 1
        ) -> tuple[DeviceProfile, float]:
            pass_s = next(self.times)
            if pass_s is None:
                raise TTCError("too busy")
            return DEVICE, pass_s

    for beside in (Beside(1.0, 500.0, 2.0, 400.0, 3.0), Beside(500.0, 3.0, None, None, 1.0)):
        (row,) = cost_model.measured("Qwen3-0.6B", 2, ((1, 1),), (128,), beside, torch.bfloat16)
        assert (row["predicted_ms"], row["measured_ms"]) == (predicted, 3000)
    with pytest.raises(TTCError, match="too busy"):
        cost_model.measured(
            "Qwen3-0.6B", 2, ((1, 1),), (128,), Beside(1.0, None, None, 2.0, None), torch.bfloat16
        )


def test_turns_of_a_stored_profile_are_added_to_those_of_the_same_passes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stored_profile, "PassTimer", Timer)
    monkeypatch.setattr(stored_profile, "SHAPES", {"Qwen3-0.6B": cost_model.SHAPES["Qwen3-0.6B"]})
    monkeypatch.setattr(stored_profile.time, "sleep", lambda _: None)
    link = LinkProfile(to_device_bandwidth=1e9, to_host_bandwidth=1e9)
    profile = write_profile(tmp_path / "profile.json", [DEVICE], link)
    out = tmp_path / "stored.json"
    out.write_text(json.dumps({"settings": {"layers": 99}, "rows": [{"begun": "2026-01-01"}]}))
    for bandwidth in (1e9, 2e9):
        monkeypatch.setattr(stored_profile, "read_bandwidth", lambda: bandwidth)  # noqa: B023
        stored_profile.run(profile=Path(profile), turns=1, out=out)
    record = json.loads(out.read_text())
    rows = record["rows"]
    assert [row["bandwidth"] for row in rows] == [1.0] * 4 + [2.0] * 4
    assert {row["profile_bandwidth"] for row in rows} == {1.0}
    assert rows[0]["stored_ms"] == rows[0]["now_ms"] == rows[4]["stored_ms"]
    overhead = (stored_profile.LAYERS * 1 + 2) * 1e3
    assert rows[4]["now_ms"] - overhead == pytest.approx((rows[4]["stored_ms"] - overhead) / 2)
    stored = [abs(row["stored_ms"] / 10_000 - 1) for row in rows]
    assert stored_profile.errors(rows, "stored") == pytest.approx(sorted(stored))
