"""Accelerate's device maps: one device is taken, others are refused with the ways out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload

from tests.ttc.model.test_loading import save
from ttc import Engine, InvalidInput, UnsupportedModel
from ttc.model.device_map import one_device


@pytest.mark.parametrize("device_map", ["auto", "balanced", "sequential", "cpu", {"": "cpu"}, torch.device("cpu")])
def test_a_map_of_one_device_is_that_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device_map: Any) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    save(tmp_path)
    assert Engine.from_pretrained(tmp_path, device_map=device_map, dtype="float32").device.type == "cpu"


def test_modules_may_be_named_one_by_one() -> None:
    assert one_device({"model": 0, "lm_head": 0}) == 0
    assert one_device({"model": "cuda:1", "lm_head": torch.device("cuda:1")}, "auto") == torch.device("cuda:1")


@pytest.mark.parametrize(
    ("device_map", "places"), [({"model": 0, "lm_head": 1}, "0, 1"), ({"model": "cpu", "lm_head": "disk"}, "cpu, disk")]
)
def test_several_places_are_refused_with_the_ways_out(tmp_path: Path, device_map: Any, places: str) -> None:
    save(tmp_path)
    (tmp_path / "model.safetensors").write_text("not weights")
    with pytest.raises(
        InvalidInput, match=f"in 2 places: {places}.*placement=split.*placement=streamed.*backend=openai"
    ):
        Engine.from_pretrained(tmp_path, device_map=device_map)


def test_a_strategy_is_refused_where_there_are_several_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InvalidInput, match=r"spread the weights over 2 GPUs; name one of them.*backend=openai"):
        one_device("auto")


def test_no_device_and_two_devices_are_refused() -> None:
    with pytest.raises(InvalidInput, match="device='cuda' and device_map='cpu' were both given"):
        one_device("cpu", "cuda")
    with pytest.raises(InvalidInput, match="names no device"):
        one_device({})


def test_a_model_that_accelerate_has_spread_is_refused(tmp_path: Path) -> None:
    model = save(tmp_path)
    model.hf_device_map = {"model": 0, "lm_head": "cpu"}
    with pytest.raises(UnsupportedModel, match=r"in other places than one device: 0, cpu.*placement=split"):
        Engine(model, None)
    model.hf_device_map = {"": "cpu"}
    Engine(model, None)
    with pytest.raises(UnsupportedModel, match=r"in other places than one device: the host.*placement=streamed"):
        Engine(cpu_offload(save(tmp_path), torch.device("cpu")), None)
