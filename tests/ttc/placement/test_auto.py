"""`memory="auto"`: what is chosen from a profile, that it gives the same tokens, and what is
refused before loading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.models import prompt
from tests.helpers.placements import deeper, write_profile
from ttc import Auto, Engine, InvalidInput, OutOfMemory, Sampling, Split, Streamed
from ttc.cost_model.device_profile import DeviceProfile, LinkProfile
from ttc.residency.base import Residency
from ttc.residency.resident import Resident

DEVICE = DeviceProfile(name="cpu float32", bandwidth=1e9, flops={1: 1e10, 64: 1e11})
LINK = LinkProfile(to_device_bandwidth=1e8, to_host_bandwidth=1e8, simulated=True)
SEARCH: dict[str, Any] = {"branches": 3, "prompt_tokens": 24, "output_tokens": 16, "step_tokens": 8}


@pytest.fixture
def folder(tmp_path: Path, letters: None) -> Path:
    """A small model of four layers, and a profile of this machine with made-up figures."""
    deeper("llama").save_pretrained(tmp_path)
    write_profile(tmp_path / "profile.json", [DEVICE], LINK)
    return tmp_path


def auto(folder: Path, **options: Any) -> Auto:
    return Auto(profile=str(folder / "profile.json"), **SEARCH | options)


def loaded(folder: Path, **options: Any) -> Engine:
    return Engine.from_pretrained(folder, device="cpu", dtype="float32", **options)


def tokens(engine: Engine) -> list[list[int]]:
    root = engine.root(prompt(1, 24))
    branches = engine.fork(root, 3)
    engine.release([root])
    for _ in range(2):
        engine.generate(branches, 8, sampling=Sampling(temperature=0.7))
    found = [branch.generated for branch in branches]
    engine.release(branches)
    return found


def sizes(folder: Path) -> tuple[int, int]:
    """Bytes of all weights, and of all KV in the end."""
    best = auto(folder).plan(folder, device="cpu", dtype="float32").best()
    return best.weight_bytes, best.device_bytes - best.weight_bytes


def test_what_is_chosen_gives_the_same_tokens(folder: Path) -> None:
    weights, kv = sizes(folder)
    expected, chosen = tokens(loaded(folder)), set()
    for budget in (weights + kv, weights + kv // 2, weights * 9 // 10, weights * 6 // 10):
        engine = loaded(folder, memory=auto(folder, budget_gib=budget / 2**30))
        assert engine.chosen is not None
        option = engine.chosen.option
        assert type(engine.residency).__name__.lower() == option.memory.replace("_", "")
        assert tokens(engine) == expected
        assert (
            getattr(engine.runner, "device_bytes", weights) + engine.memory.device.peak_bytes
            <= budget
        )
        chosen.add((option.placement, option.memory))
    assert ("resident", "resident") in chosen and len(chosen) > 1


def test_auto_reads_a_profile_in_the_folder_of_the_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    engine = loaded(folder, memory="auto")
    assert engine.chosen is not None and engine.chosen.settings == [
        "placement=resident",
        "memory=resident",
    ]
    assert isinstance(engine.residency, Resident)


def test_the_placement_that_is_named_is_kept(folder: Path) -> None:
    plans = {
        kind: auto(folder).plan(folder, device="cpu", dtype="float32", placement=placement).best()
        for kind, placement in (("split", Split(k=3)), ("streamed", Streamed()))
    }
    assert (plans["split"].placement, plans["split"].number) == ("split", 3)
    assert plans["streamed"].placement == "streamed"
    with pytest.raises(
        InvalidInput, match=r"placement.budget_gib=1 and memory=auto do not go together"
    ):
        auto(folder).plan(folder, device="cpu", dtype="float32", placement=Split(k=3, budget_gib=1))


def test_the_settings_say_how_to_run_what_was_chosen(folder: Path) -> None:
    weights, _ = sizes(folder)
    engine = loaded(folder, memory=auto(folder, budget_gib=weights * 6 / 10 / 2**30, link_gbps=0.5))
    assert engine.chosen is not None
    option, found = engine.chosen.option, engine.chosen.settings
    assert found[0] == f"placement={option.placement}" and f"memory={option.memory}" in found
    left = next(
        float(word.partition("=")[2]) for word in found if word.startswith("memory.budget_gib=")
    )
    assert 0 < left < weights * 6 / 10 / 2**30
    assert "placement.link_gbps=0.5" in found and engine.memory.link.gbps == 0.5


def test_nothing_is_loaded_of_what_cannot_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ttc.model.loading.load.load", lambda *_, **__: pytest.fail("weights were read")
    )
    with pytest.raises(
        OutOfMemory, match=r"no placement and memory policy fits: .* need least, [\d,]+ bytes"
    ):
        loaded(folder, memory=auto(folder, budget_gib=1e-6))
    with pytest.raises(OutOfMemory, match=r"the host is too small"):
        loaded(
            folder,
            memory=auto(folder, budget_gib=sizes(folder)[0] * 0.6 / 2**30, host_budget_gib=1e-6),
        )
    with pytest.raises(
        InvalidInput,
        match=r"none.json cannot be read .*; make a profile with python -m experiments",
    ):
        loaded(folder, memory=Auto(profile=str(folder / "none.json")))
    with pytest.raises(InvalidInput, match=r"memory='fast' is unknown; give 'auto', or a policy"):
        loaded(folder, memory="fast")


def test_a_profile_of_another_machine_is_refused(folder: Path) -> None:
    file = folder / "profile.json"
    record = json.loads(file.read_text())
    record["machine"]["threads"] = 999
    file.write_text(json.dumps(record))
    with pytest.raises(InvalidInput, match="is a profile of another machine"):
        loaded(folder, memory=auto(folder))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget_gib": 0}, "memory.budget_gib=0 must be more than 0, or null"),
        ({"branches": 0}, "memory.branches=0 must be at least 1"),
        ({"link_gbps": "fast"}, "memory.link_gbps='fast' is of type str"),
    ],
)
def test_bad_settings_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Auto(**settings)


def test_an_auto_is_no_policy() -> None:
    assert not issubclass(Auto, Residency)
