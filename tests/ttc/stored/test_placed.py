"""Placements, and `memory=auto`, of weights that stay as they are stored: sizes are those stored,
and branches are those of plain transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import LlamaForCausalLM

from experiments.standins.random_gguf import Shape, write_llama
from tests.helpers.exactness import assert_like_plain, grow
from tests.helpers.placements import write_profile
from tests.helpers.tiers import slow
from tests.ttc.stored.test_stored_experts import write_gpt_oss
from ttc import Auto, Engine, OutOfMemory, Split, Streamed
from ttc.cost_model.device_profile import DeviceProfile, LinkProfile
from ttc.model.loading.load import configuration, load
from ttc.model.stored import stored_bytes
from ttc.placement.base import PlacedRunner
from ttc.placement.split import SplitRunner

Write = Callable[[Path], tuple[Path, Any]]


def of_file(kind: Kind) -> Write:
    def write(folder: Path) -> tuple[Path, Any]:
        file = folder / "model.gguf"
        write_llama(file, kind, Shape(layers=3))
        plain = LlamaForCausalLM.from_pretrained(folder, gguf_file=file.name, dtype=torch.float32)
        return file, plain.eval()

    return write


STORED: dict[str, Write] = {
    "Q4_1": of_file(Kind.Q4_1),
    "Q6_K": of_file(Kind.Q6_K),
    "MXFP4": lambda folder: (folder, write_gpt_oss(folder)),
}
"""The name of a model, and transformers' model of the weights that it stands for."""


def engine_of(name: Path, **options: Any) -> Engine:
    engine = Engine.from_pretrained(name, device="cpu", dtype="float32", quantized=True, **options)
    engine.limits.eos_ids = frozenset()
    return engine


@pytest.mark.few(1)
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("placement", [Split(k=2), slow(Streamed())], ids=["split", "streamed"])
def test_a_placed_model_equals_plain_transformers(
    tmp_path: Path, stored: str, placement: Any
) -> None:
    name, plain = STORED[stored](tmp_path)
    engine = engine_of(name, placement=placement)
    assert isinstance(engine.runner, PlacedRunner)
    if isinstance(engine.runner, SplitRunner):  # gpt-oss runs by modules
        assert (engine.runner.host is None) == (stored == "MXFP4")
    for branch in grow(engine):
        assert_like_plain(plain, branch)


@pytest.mark.slow
@pytest.mark.parametrize("stored", ["Q4_1", "MXFP4"])
def test_what_lies_on_each_side_is_counted_in_stored_bytes(tmp_path: Path, stored: str) -> None:
    name, plain = STORED[stored](tmp_path)
    whole = sum(weight.nbytes for weight in plain.parameters())
    split = engine_of(name, placement=Split(k=2)).runner
    streamed = engine_of(name, placement=Streamed()).runner
    assert isinstance(split, PlacedRunner) and isinstance(streamed, PlacedRunner)
    model, _ = load(name, device="cpu", dtype="float32", quantized=True)
    kept = {id(weight): weight.nbytes for weight in model.parameters()}
    assert sum(kept.values()) < 0.7 * whole
    head = model.get_output_embeddings().weight if stored == "MXFP4" else None
    first, *rest = ([p.nbytes for p in layer.parameters()] for layer in model.model.layers)
    table = model.get_input_embeddings()
    table_bytes = (table.weight if head is not None else table.packed).nbytes
    rotary = model.model.rotary_emb.inv_freq.nbytes * 2
    assert split.host_bytes == sum(first) + table_bytes + rotary
    on_device = sum(map(sum, rest)) + model.model.norm.weight.nbytes
    assert split.device_bytes == on_device + (table_bytes if head is None else head.nbytes)
    assert 0 <= streamed.host_bytes - sum(map(sum, [first, *rest])) < 64 * 3 * 20


@pytest.mark.parametrize("stored", ["Q4_1", "MXFP4"])
def test_sizes_are_known_before_weights_are_read(tmp_path: Path, stored: str) -> None:
    name, _ = STORED[stored](tmp_path)
    how: dict[str, Any] = {"device": "cpu", "dtype": "float32", "quantized": True}
    model, _ = load(name, **how)
    assert configuration(name, **how)[2] == stored_bytes(model)


DEVICE = DeviceProfile(name="cpu float32", bandwidth=1e9, flops={1: 1e10, 64: 1e11})
LINK = LinkProfile(to_device_bandwidth=1e8, to_host_bandwidth=1e8, simulated=True)


@pytest.mark.slow
@pytest.mark.parametrize("stored", [slow("Q4_1"), "MXFP4"])
def test_auto_plans_with_stored_bytes(tmp_path: Path, stored: str) -> None:
    name, plain = STORED[stored](tmp_path)
    profile = write_profile(tmp_path / "profile.json", [DEVICE], LINK)
    whole = sum(weight.nbytes for weight in plain.parameters())

    def auto(budget: float | None) -> Auto:
        gib = None if budget is None else budget / 2**30
        search = {"branches": 3, "prompt_tokens": 24, "output_tokens": 16, "step_tokens": 8}
        return Auto(profile=profile, budget_gib=gib, **search)

    how: dict[str, Any] = {"device": "cpu", "dtype": "float32"}
    best = auto(None).plan(name, quantized=True, **how).best()
    assert best.placement == "resident" and best.weight_bytes < 0.7 * whole
    for share in (1.0, 0.8):
        budget = share * best.device_bytes
        engine = engine_of(name, memory=auto(budget))
        assert engine.chosen is not None
        assert (engine.chosen.option.placement == "resident") == (share == 1.0)
        weights = getattr(engine.runner, "device_bytes", best.weight_bytes)
        for branch in grow(engine):
            assert_like_plain(plain, branch)
        assert weights + engine.memory.device.peak_bytes <= budget
    with pytest.raises(OutOfMemory):
        engine_of(name, memory=auto(2000))


def test_what_cannot_be_done_with_stored_weights_is_named(tmp_path: Path) -> None:
    name, _ = STORED["Q4_1"](tmp_path)
    with pytest.raises(OutOfMemory, match="a budget of"):
        engine_of(name, placement=Streamed(budget_gib=1e-6))


@pytest.mark.slow
def test_activations_in_8_bits_reach_the_compiled_layers_of_a_split(tmp_path: Path) -> None:
    name, _ = STORED["Q4_1"](tmp_path)

    def scores(**options: Any) -> torch.Tensor:
        engine = engine_of(name, **options)
        scored = engine.score([engine.root([3, 5, 7, 11])], [[[n] for n in range(20)]]).result()
        return torch.tensor(scored).flatten()

    found = scores(placement=Split(k=2), int8_activations=True)
    assert torch.allclose(found, scores(int8_activations=True), atol=1e-5)
    assert not torch.allclose(found, scores(), atol=1e-5)
