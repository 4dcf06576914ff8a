"""Streamed weights: the same tokens and logits, two layers on the device, and every byte
counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from experiments.standins import small_models
from tests.helpers.engines import GREEDY
from tests.helpers.exactness import assert_like_plain, grow
from tests.helpers.models import prompt, small
from tests.helpers.placements import LAYERS, deeper, placed, save_without_weights
from ttc import BeamGroups, Engine, InvalidInput, OutOfMemory, Streamed, UnsupportedModel

KIB = 1 / 2**20


def streamed(plain: Any, memory: Any = None, **options: Any) -> Engine:
    return placed(plain, Streamed(**options), memory=memory)


def layer_bytes(model: Any) -> int:
    """Of one layer of a Llama, each weight of which is a multiple of 64 bytes."""
    return sum(4 * weight.numel() for weight in model.model.layers[0].parameters())


def test_each_pass_moves_each_layer_once_and_counts_it() -> None:
    engine = streamed(small(layers=5))
    branch = engine.root(prompt(1, 4))
    before, passes = engine.memory.link.to_device_bytes["weights"], 6
    usage = branch.usage.host_to_device_bytes
    engine.generate([branch], passes, sampling=GREEDY)
    moved = engine.memory.link.to_device_bytes["weights"] - before
    assert moved == passes * 5 * layer_bytes(small(layers=5))
    assert branch.usage.host_to_device_bytes - usage == moved


@pytest.mark.parametrize("kept", [0, 2])
def test_what_a_layer_of_the_model_lets_cross_is_the_mean_of_all_of_them(kept: int) -> None:
    """T_load_w of CAPTURE goes by it: layers that stay have none, and over a pass the bytes are
    those that cross."""
    plain = small(layers=5)
    rest = sum(4 * w.numel() for w in plain.parameters()) + 2 * 4 * 4 - 5 * layer_bytes(plain)
    engine = streamed(plain, budget_gib=(rest + (kept + 2) * layer_bytes(plain)) / 2**30)
    branch = engine.root(prompt(1, 4))
    before = engine.memory.link.to_device_bytes["weights"]
    engine.generate([branch], 1, sampling=GREEDY)
    assert engine.memory.link.to_device_bytes["weights"] - before == (5 - kept) * layer_bytes(plain)
    assert engine.runner.streamed_layer_bytes == (5 - kept) * layer_bytes(plain) // 5


def test_the_weights_are_the_models_own_wherever_they_lie() -> None:
    plain = deeper("qwen3")
    engine = streamed(plain)
    engine.root(prompt(1, 9))
    with engine.lent() as model, torch.no_grad():
        ids = torch.tensor([prompt(2, 20)])
        torch.testing.assert_close(model(ids).logits, plain(ids).logits)
        for name, weight in plain.named_parameters():
            assert torch.equal(model.get_parameter(name), weight), name


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_is_loaded_to_where_it_stays(tied: bool, tmp_path: Path, letters: None) -> None:
    plain = deeper("qwen3", tie_word_embeddings=tied)
    plain.save_pretrained(tmp_path)
    engine = Engine.from_pretrained(tmp_path, device="cpu", dtype="float32", placement=Streamed())
    assert (engine.model.lm_head.weight is engine.model.model.embed_tokens.weight) == tied
    assert len(engine.runner.shapes) == LAYERS
    branch = engine.root(prompt(1, 9))
    engine.generate([branch], 5, sampling=GREEDY)
    assert_like_plain(plain, branch)


def test_a_budget_that_is_too_small_is_refused_before_a_weight_is_read(
    tmp_path: Path, letters: None
) -> None:
    plain = deeper("llama")
    save_without_weights(tmp_path)

    def load(**options: Any) -> None:
        Engine.from_pretrained(
            tmp_path, device="cpu", dtype="float32", placement=Streamed(**options)
        )

    needed = 4 * sum(w.numel() for w in plain.parameters()) + 2 * 4 * 4 - 2 * layer_bytes(plain)
    with pytest.raises(
        OutOfMemory, match=rf"too small: .* need {needed:,}; a budget of {needed:,} bytes"
    ):
        load(budget_gib=1 * KIB)
    with pytest.raises(
        OutOfMemory, match=rf"4 layers that are streamed need {4 * layer_bytes(plain):,}"
    ):
        load(host_budget_gib=1 * KIB)
    with pytest.raises(UnsupportedModel, match="cannot load"):
        load()  # now the weights are looked at


def test_what_layers_have_in_common_stays_on_the_device() -> None:
    plain = deeper("llama")
    plain.model.layers[2].mlp = plain.model.layers[0].mlp
    engine = streamed(plain)
    branch = engine.root(prompt(1, 4))
    before = engine.memory.link.to_device_bytes["weights"]
    engine.generate([branch], 3, sampling=GREEDY)
    mlp_bytes = sum(4 * weight.numel() for weight in plain.model.layers[0].mlp.parameters())
    assert engine.memory.link.to_device_bytes["weights"] - before == 3 * (
        4 * layer_bytes(plain) - 2 * mlp_bytes
    )
    around = (
        sum(4 * w.numel() for w in plain.parameters())
        - (4 * layer_bytes(plain) - mlp_bytes)
        + 2 * 4 * 4
    )
    # layers 1 and 3 are whole
    assert engine.runner.device_bytes == around + mlp_bytes + 2 * layer_bytes(plain)
    assert_like_plain(plain, branch)


def test_layers_that_run_several_times_in_a_pass_come_each_time() -> None:
    config = small_models.config_of("hrm_text")  # two stacks of layers, which run in turn
    torch.manual_seed(0)
    plain = hf.AutoModelForCausalLM.from_config(
        type(config)(**config.to_dict() | {"num_layers_per_stack": 2})
    ).eval()
    engine = streamed(plain)
    for branch in grow(engine):
        assert_like_plain(plain, branch)
    assert engine.memory.link.to_device_bytes["weights"] > 0


def test_a_model_without_lists_of_layers_is_refused() -> None:
    with pytest.raises(
        UnsupportedModel, match="no list of its 4 decoder layers that could come one by one; leave"
    ):
        Streamed().place(small_models.build("xlstm"), "cpu")


def test_two_speeds_of_one_link_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"memory.link_gbps=2.0 and placement.link_gbps=1.0"):
        streamed(small(), BeamGroups(1, link_gbps=2.0), link_gbps=1.0)
    with pytest.raises(
        InvalidInput, match=r"placement.budget_gib=0.0 must be more than 0, or null"
    ):
        Streamed(budget_gib=0.0)


def heavier(model: Any) -> None:
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.down_proj.weight.mul_(-3)


def other_weights(model: Any) -> None:
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight = torch.nn.Parameter(
            layer.self_attn.o_proj.weight.detach() * 4
        )


@pytest.mark.parametrize("change", [heavier, other_weights])
@pytest.mark.parametrize("layers", [2, 5])
def test_weights_that_change_are_those_that_cross_from_then_on(change: Any, layers: int) -> None:
    """The buffers may hold layers that came before the change: two of them always do."""
    plain = small(layers=layers)
    engine = streamed(plain)
    branch = engine.root(prompt(1, 12))
    engine.generate([branch], 3, sampling=GREEDY)
    for model in (engine.model, plain):
        change(model)
    root = engine.root(prompt(1, 12))
    assert root.usage.shared_tokens == 0
    engine.generate([root], 4, sampling=GREEDY)
    assert_like_plain(plain, root)


def test_a_weight_of_another_kind_in_a_streamed_ones_place_is_refused() -> None:
    engine = streamed(small(layers=3))
    module = engine.model.model.layers[1].mlp.down_proj
    weight = module.weight
    module.weight = torch.nn.Parameter(weight.detach()[:, :-1])
    for _ in range(2):
        with pytest.raises(UnsupportedModel, match="in the place of a streamed weight"):
            engine.root(prompt(1, 12))
    module.weight = weight
    engine.root(prompt(1, 12))
