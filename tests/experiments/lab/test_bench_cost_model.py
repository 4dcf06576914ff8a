"""`python -m experiments.bench cost_model`: what is predicted for which pass, and how errors are
summed up."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import experiments.lab.bench.command as bench
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


def test_errors_are_summed_up_without_their_signs() -> None:
    times = [(110, 100), (80, 100), (100, 100)]
    rows = [
        {
            "model": "m",
            "layers": 2,
            "context": 1024,
            "rows": 4,
            "prompts": 1,
            "predicted_ms": p,
            "measured_ms": m,
        }
        for p, m in times
    ]
    printed = cost_model.table(rows)
    assert "| m | 2 | 1,024 | 4 | 1 | 110.00 | 100.00 | +10.0% |" in printed
    assert printed.endswith("median error 10.0%, largest 20.0%; 2 of 3 within 15%")


def test_the_command_measures_the_machine_beside_each_case(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cost_model, "PassTimer", Timer)
    asked = []

    class Beside:
        def __init__(self, *_: object):
            pass

        def measure(
            self, timer: Timer, rows: int, context: int, group: float, prefixes: int = 1
        ) -> tuple[DeviceProfile, float]:
            asked.append((rows, prefixes, context, group))
            return DEVICE, 3.0

    monkeypatch.setattr(cost_model, "ProfileBeside", Beside)
    out = tmp_path / "cost_model.json"
    monkeypatch.setattr(
        sys, "argv", ["experiments.bench", "cost_model", "--quick", "--out", str(out)]
    )
    bench.main()
    record = json.loads(out.read_text())
    assert record["model"] == "random weights, bfloat16"
    cases = [(*rows, context, 2) for context in (128, 1024) for rows in ((1, 1), (16, 1), (16, 4))]
    assert asked == [case for case in cases for _ in range(5)]
    assert {row["measured_ms"] for row in record["rows"]} == {3000}
    assert [(row["rows"], row["prompts"], row["context"], 2) for row in record["rows"]] == cases


def test_errors_of_a_stored_profile_are_added_turn_by_turn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stored_profile, "PassTimer", Timer)
    monkeypatch.setattr(stored_profile, "SHAPES", {"Qwen3-0.6B": cost_model.SHAPES["Qwen3-0.6B"]})
    monkeypatch.setattr(stored_profile.time, "sleep", lambda _: None)
    link = LinkProfile(to_device_bandwidth=1e9, to_host_bandwidth=1e9)
    profile = write_profile(tmp_path / "profile.json", [DEVICE], link)
    out = tmp_path / "stored.json"
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
    assert "as stored: median error" in stored_profile.table(record)


def test_turns_of_several_machines_and_days_stay_side_by_side(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A record from before rows named their machine, and a turn of this one a day and a half
    later."""
    monkeypatch.setattr(stored_profile, "PassTimer", Timer)
    monkeypatch.setattr(stored_profile, "SHAPES", {"Qwen3-0.6B": cost_model.SHAPES["Qwen3-0.6B"]})
    monkeypatch.setattr(stored_profile, "machine", lambda: {"cpu": "New", "threads": 2})
    monkeypatch.setattr(stored_profile, "commit", lambda: "b" * 40)
    monkeypatch.setattr(stored_profile.time, "sleep", lambda _: None)
    link = LinkProfile(to_device_bandwidth=1e9, to_host_bandwidth=1e9)
    profile = write_profile(tmp_path / "profile.json", [DEVICE], link)
    begun = (datetime.now(UTC) - timedelta(hours=36)).isoformat(timespec="seconds")
    row = {"begun": begun, "bandwidth": 3.0, "model": "m", "context": 128, "rows": 1}
    row |= {"measured_ms": 10.0, "stored_ms": 12.0, "now_ms": 9.0}
    out = tmp_path / "stored.json"
    settings = {"layers": stored_profile.LAYERS, "shapes": ["Qwen3-0.6B"]}
    old = {"machine": {"cpu": "Old", "threads": 1}, "commit": "a" * 40, "rows": [row]}
    out.write_text(json.dumps(old | {"settings": settings | {"profile_bandwidth": 4e9}}))
    stored_profile.run(profile=Path(profile), turns=1, out=out)
    record = json.loads(out.read_text())
    assert [row["commit"][0] for row in record["rows"]] == ["a", *"bbbb"]
    assert record["rows"][0]["profile_bandwidth"] == 4.0
    printed = stored_profile.table(record)
    old_name, new_name = (f"{name}, AVX512 with bfloat16, " for name in ("Old", "New"))
    assert f"| {old_name}1 thread | all 1 | | | 20% | 20% | 10% | 10% |" in printed
    assert f"| {new_name}2 threads | all 1 |" in printed
    assert printed.endswith("2 turns on 2 machines, over 36.0 hours.")


def test_a_record_of_other_passes_is_begun_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stored_profile, "PassTimer", Timer)
    monkeypatch.setattr(stored_profile, "SHAPES", {"Qwen3-0.6B": cost_model.SHAPES["Qwen3-0.6B"]})
    monkeypatch.setattr(stored_profile.time, "sleep", lambda _: None)
    link = LinkProfile(to_device_bandwidth=1e9, to_host_bandwidth=1e9)
    profile = write_profile(tmp_path / "profile.json", [DEVICE], link)
    out = tmp_path / "stored.json"
    out.write_text(json.dumps({"settings": {"layers": 99}, "rows": [{"begun": "2026-01-01"}]}))
    stored_profile.run(profile=Path(profile), turns=1, out=out)
    assert len(json.loads(out.read_text())["rows"]) == 4
