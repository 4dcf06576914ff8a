"""A stored profile at the memory bandwidth of another moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.placements import write_profile
from ttc.cost_model.device_profile import DeviceProfile, LinkProfile
from ttc.cost_model.profile_file import read
from ttc.cost_model.read_now import read_now

LINK = LinkProfile(to_device_bandwidth=16e9, to_host_bandwidth=16e9)


def test_what_is_bound_by_memory_is_as_fast_as_memory_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two operations for a number of two bytes: one row at 40 GB/s is 40e9 operations a second.
    cpu = DeviceProfile(
        name="cpu bfloat16",
        bandwidth=40e9,
        flops={1: 40e9, 4: 80e9, 16: 64e9},
        attention_flops={1: 40e9},
        l3_bytes=1e6,
        l3_bandwidth=1e11,
        block_overhead_s=1e-5,
        piece_s=1e-5,
    )
    gpu = DeviceProfile(name="cuda bfloat16", bandwidth=2e11, flops={1: 1e11})
    file = write_profile(tmp_path / "profile.json", [cpu, gpu], LINK)
    monkeypatch.setattr("ttc.cost_model.read_now.read_bandwidth", lambda: 20e9)
    profile = read_now(file)
    now = profile.device("cpu bfloat16")
    assert now.bandwidth == 20e9
    # all of the time of one row is reading, which takes twice as long; half of that of 4 rows, a
    # tenth of that of 16
    assert now.flops == pytest.approx({1: 20e9, 4: 80e9 / 1.5, 16: 64e9 / 1.1})
    # two queries to a head that is read
    assert now.attention_flops == pytest.approx({1: 40e9 / 1.5})
    assert (now.l3_bandwidth, now.block_overhead_s, now.piece_s) == (1e11, 1e-5, 1e-5)
    assert profile.device("cuda bfloat16") == gpu and profile.link == LINK


def test_one_of_two_profiles_that_drifted_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles = [
        DeviceProfile(name=f"cpu {kind}", bandwidth=bandwidth, flops={1: 20e9})
        for kind, bandwidth in (("bfloat16", 40e9), ("float32", 10e9))
    ]
    file = write_profile(tmp_path / "profile.json", profiles, LINK)
    monkeypatch.setattr("ttc.cost_model.read_now.read_bandwidth", lambda: 40e9)
    assert read_now(file).device("cpu float32").bandwidth == 40e9


def test_a_small_drift_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = DeviceProfile(name="cpu float32", bandwidth=40e9, flops={1: 20e9})
    file = write_profile(tmp_path / "profile.json", [cpu], LINK)
    for now in (28e9, 58e9):
        monkeypatch.setattr("ttc.cost_model.read_now.read_bandwidth", lambda now=now: now)
        assert read_now(file) == read(file)


def test_numbers_of_four_bytes_are_read_half_as_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = DeviceProfile(name="cpu float32", bandwidth=40e9, flops={1: 20e9})
    file = write_profile(tmp_path / "profile.json", [cpu], LINK)
    monkeypatch.setattr("ttc.cost_model.read_now.read_bandwidth", lambda: 80e9)
    assert read_now(file).device("cpu float32 by modules").flops == pytest.approx({1: 40e9})
