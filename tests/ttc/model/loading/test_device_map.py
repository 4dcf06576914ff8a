"""Accelerate's device maps: of one device, of several, and what neither the engine nor the model
can use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload
from transformers import LlamaConfig, LlamaForCausalLM

import ttc.model.loading.device_map
from tests.ttc.model.loading.test_loading import save
from ttc import Engine, InvalidInput, OutOfMemory, UnsupportedModel
from ttc.model.loading.device_map import devices_of, weights_over
from ttc.model.places import is_spread

FIRST, SECOND = torch.device("cuda:0"), torch.device("cuda:1")


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def empty_model(tied: bool = False) -> Any:
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=4,
        num_attention_heads=2,
        tie_word_embeddings=tied,
    )
    with torch.device("meta"):
        return LlamaForCausalLM(config)


def bytes_of(module: Any) -> int:
    return sum(weight.numel() * weight.element_size() for weight in module.parameters())


@pytest.mark.parametrize(
    "device_map", ["auto", "balanced", "sequential", "cpu", {"": "cpu"}, torch.device("cpu")]
)
def test_a_map_of_one_device_is_that_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device_map: Any
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    save(tmp_path)
    assert (
        Engine.from_pretrained(tmp_path, device_map=device_map, dtype="float32").device.type
        == "cpu"
    )


def test_modules_may_be_named_one_by_one() -> None:
    assert devices_of({"model": 0, "lm_head": "cuda"}) == (FIRST, None)
    assert devices_of({"model": "cuda:1", "lm_head": SECOND}, "auto") == (SECOND, None)


def test_passes_begin_on_the_first_of_several_devices(two_gpus: None) -> None:
    assert devices_of({"model": 1, "lm_head": "cuda:0"}) == (
        SECOND,
        {"model": SECOND, "lm_head": FIRST},
    )
    assert devices_of("balanced") == ("cuda:0", "balanced")


WAYS_OUT = ".*placement=split.*placement=streamed.*openai"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (({"model": 0, "a": "cpu"},), f"weights on cpu, in a map of cuda:0, cpu{WAYS_OUT}"),
        (({"model": 0, "a": "disk"},), f"weights on disk, in a map of cuda:0, disk{WAYS_OUT}"),
        (({"model": 0, "a": 2},), "names cuda:2, and PyTorch finds 2 CUDA devices"),
        (("cpu", "cuda"), "device='cuda' and device_map='cpu' were both given"),
        (({},), "names no device"),
    ],
)
def test_maps_of_no_or_wrong_devices_are_refused(
    two_gpus: None, given: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        devices_of(*given)


def test_a_map_has_a_place_for_every_module() -> None:
    places = {
        "model.embed_tokens": FIRST,
        "model.norm": SECOND,
        "lm_head": SECOND,
        "model.layers": SECOND,
    }
    assert weights_over(empty_model(), places) == places | {"model.rotary_emb": FIRST}
    with pytest.raises(
        InvalidInput, match=r"no device for 1 weights of a LlamaForCausalLM, among them model\.norm"
    ):
        weights_over(
            empty_model(), {name: place for name, place in places.items() if name != "model.norm"}
        )
    with pytest.raises(
        InvalidInput, match=r"names 'model\.layers\.4', which a LlamaForCausalLM does not have"
    ):
        weights_over(empty_model(), places | {"model.layers.4": FIRST})


def test_weights_that_are_one_tensor_stay_together() -> None:
    places = {"model": FIRST, "lm_head": SECOND}
    assert weights_over(empty_model(), places) == places
    with pytest.raises(
        InvalidInput, match=r"lm_head\.weight.* on different devices, and these are one tensor"
    ):
        weights_over(empty_model(tied=True), places)
    assert weights_over(empty_model(tied=True), {"": FIRST, "model.layers.3": SECOND})


def test_a_strategy_fills_the_gpus_layer_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = empty_model()
    layer, rest = bytes_of(model.model.layers[0]), bytes_of(model.model.embed_tokens)
    # Accelerate leaves room for one more of the largest
    on_first = rest + 2 * layer + max(layer, rest)
    room: dict[Any, int] = {0: on_first, 1: 10**9, "cpu": 10**9}
    monkeypatch.setattr(ttc.model.loading.device_map, "get_max_memory", lambda: room)
    found = weights_over(model, "sequential")
    assert [found[f"model.layers.{n}"] for n in range(4)] == [FIRST, FIRST, SECOND, SECOND]
    assert found["lm_head"] == SECOND
    monkeypatch.setattr(
        ttc.model.loading.device_map, "get_balanced_memory", lambda *_, **__: {0: 10**9}
    )
    assert set(weights_over(model, "auto").values()) == {FIRST}
    room[1] = layer + layer // 2
    with pytest.raises(
        OutOfMemory,
        match=r"the GPUs have no room for \d modules of a LlamaForCausalLM.*placement=split",
    ):
        weights_over(model, "sequential")


def test_a_model_that_accelerate_keeps_elsewhere_than_it_computes_is_refused(
    tmp_path: Path,
) -> None:
    model = save(tmp_path)
    model.hf_device_map = {"model": 0, "lm_head": "cpu"}
    with pytest.raises(
        UnsupportedModel, match=r"in places where it does not compute: 0, cpu.*placement=split"
    ):
        Engine(model, None)
    model.hf_device_map = {"": "cpu"}
    assert not is_spread(model)
    Engine(model, None)
    with pytest.raises(
        UnsupportedModel, match=r"in places where it does not compute: the host.*placement=streamed"
    ):
        Engine(cpu_offload(save(tmp_path), torch.device("cpu")), None)
