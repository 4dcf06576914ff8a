"""`python -m experiments.profile`: the file that it writes and reads again, and what it refuses."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import experiments.fit.profile
import ttc.calibration.measure_device as measuring
from experiments.fit.profile import report
from experiments.runs.provenance import machine
from ttc.calibration.measure_device import AttentionSpeed, MemoryRates
from ttc.cost_model.device_profile import DeviceProfile, LinkProfile
from ttc.cost_model.profile_file import BY_MODULES, PLAIN, Profile, read
from ttc.errors import InvalidInput

LINK = LinkProfile(
    to_device_bandwidth=16e9, to_host_bandwidth=15e9, to_device_latency_s=5e-6, simulated=True
)


def device(name: str) -> DeviceProfile:
    speeds = {"bandwidth": 40e9, "flops": {1: 30e9, 256: 300e9}, "attention_flops": {1: 20e9}}
    caches = {"l3_bytes": 2**25, "l3_bandwidth": 150e9, "block_overhead_s": 5e-5}
    return DeviceProfile(name=name, **speeds, **caches)


def made_up(where: object, dtype: object, runner: str, *rates: Any, pack: bool = True) -> Any:
    by = "" if runner != "modules" else BY_MODULES if pack else PLAIN
    memory, attention = rates
    return replace(device(f"cpu {str(dtype)[6:]}{by}"), **memory._asdict(), **attention._asdict())


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["experiments.profile", *arguments])
    experiments.fit.profile.main()


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file with made-up figures, which the command has written."""
    speed = AttentionSpeed({1: 20e9}, {}, 0.0)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(measuring, "profile_memory", lambda where: MemoryRates(40e9, 2**25, 150e9))
    monkeypatch.setattr(measuring, "profile_attention", lambda where, dtype: speed)
    monkeypatch.setattr(measuring, "profile_device", made_up)
    monkeypatch.setattr("ttc.model.packed_linear.packs", lambda _, dtype: dtype == torch.bfloat16)
    monkeypatch.setattr(measuring, "profile_link", lambda where, gbps: LINK)
    out = tmp_path / "profile.json"
    run(monkeypatch, "--out", str(out))
    return out


def test_what_is_written_is_read_again(written: Path) -> None:
    profile = read(written)
    names = ["cpu bfloat16", "cpu float32"]
    names += [f"{name}{BY_MODULES}" for name in names] + [f"cpu bfloat16{PLAIN}"]
    assert profile.devices == {name: device(name) for name in names}
    assert profile.link == LINK
    record = json.loads(written.read_text())
    assert record["machine"] == machine() and record["simulated"] == "the link"


def test_the_report_has_a_column_for_each_device() -> None:
    devices = {name: device(name) for name in ("cpu bfloat16", "cpu float32")}
    printed = re.sub(" +", " ", report(Profile(devices, LINK)))
    assert "| | cpu bfloat16 | cpu float32 |" in printed
    assert "| read bandwidth, GB/s | 40.0 | 40.0 |" in printed
    assert "| GFLOP/s of products, rows: 256 | 300 | 300 |" in printed
    speeds = "16.0 GB/s and 5 µs to the device, 15.0 GB/s and 0 µs to the host"
    assert f"link (simulated): {speeds}" in printed


def test_a_profile_of_another_machine_is_refused_with_both_names(written: Path) -> None:
    record = json.loads(written.read_text())
    record["machine"]["cpu"] = "Another"
    written.write_text(json.dumps(record))
    why = r"profile of another machine \(cpu 'Another' there and .* here\); measure"
    with pytest.raises(InvalidInput, match=why):
        read(written)


def test_what_is_no_profile_is_refused(tmp_path: Path, written: Path) -> None:
    with pytest.raises(InvalidInput, match=r"cannot be read .*experiments.profile --out"):
        read(tmp_path / "missing.json")
    for text in ("{}", "[1]", "nonsense", written.read_text().replace('"bandwidth"', '"width"')):
        written.write_text(text)
        with pytest.raises(InvalidInput, match="is no profile of this version"):
            read(written)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dtypes", "int4"], "--dtypes 'int4' is unknown; use names of bfloat16"),
        (["--link-gbps", "0"], "--link-gbps 0.0 must be above 0"),
        (["--out", "no/such/folder.json"], "cannot be written; name a file in a folder that is"),
    ],
)
def test_bad_arguments_are_refused(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(monkeypatch, *arguments)
    assert str(stopped.value).startswith("error: ") and message in str(stopped.value)
