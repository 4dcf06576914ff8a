"""Units from a configuration: against the weights and the engine's own shapes of real models, and
refusals."""

from __future__ import annotations

import pytest
import torch
import transformers as hf

from experiments.standins import small_models
from tests.helpers.models import COMMON, FAMILIES, FEW, build
from tests.helpers.tiers import some_quick
from ttc.cost_model.unit import held_bytes
from ttc.errors import UnsupportedModel
from ttc.model.check.model_check import examine
from ttc.model.loading.partition import partition, partition_units


@pytest.mark.parametrize("family", some_quick(FAMILIES, FEW))
def test_units_hold_the_weights_of_the_model_and_the_kv_of_the_engine(family: str) -> None:
    config_class, extra = FAMILIES[family]
    units = partition_units(config_class(**(COMMON | extra)), torch.float32)
    model = build(family)
    shapes = examine(model)[0]
    assert sum(unit.param_bytes for unit in units) == sum(w.numel() * 4 for w in model.parameters())
    assert [unit.kv_elements for unit in units[1:-1]] == [shape.elements for shape in shapes]
    assert [unit.window for unit in units[1:-1]] == [shape.window for shape in shapes]
    assert [unit.is_block for unit in units] == [False, *[True] * len(shapes), False]
    assert {unit.bytes_per_element for unit in units} == {4}


RECURRENT = ["qwen3_5_text", "jamba", "lfm2: convolutions", "mamba2", "falcon_h1"]
ODD = ["dbrx", "diffllama", "emu3", "gemma4", "jetmoe", "longcat_flash", "mllama", "stablelm"]
"""They look at values, have a configuration of another kind than their class, call attention twice
in a layer, pass no keyword arguments on to it, or have a layer that does not run where there is
text alone."""
MORE = ["deepseek_v32", "minimax", "nemotron_h", "qwen4_exp_text", "zamba", "zamba2"]
"""Indexers, a cache of their own, layers of an MLP alone, and weights that layers have in
common."""


@pytest.mark.parametrize(
    "case",
    some_quick(RECURRENT + ODD + MORE, [RECURRENT[0], ODD[0], MORE[0]]),
)
def test_units_hold_what_the_engine_keeps_of_other_layers_too(case: str) -> None:
    model = small_models.build(case)
    units = partition(model.config, torch.float32, type(model)).units
    shapes, recurrent = examine(model)
    assert sum(unit.kv_elements for unit in units) == sum(shape.elements for shape in shapes)
    kept = {} if recurrent is None else recurrent.shape.part_bytes()
    assert sum(unit.state_bytes for unit in units) == sum(kept.values())
    assert [unit.state_bytes > 0 for unit in units[1:-1]] == [
        recurrent is not None and layer in recurrent.layers for layer in range(len(units) - 2)
    ]
    assert sum(unit.param_bytes for unit in units) == sum(
        4 * weight.numel() for weight in model.parameters()
    )


def test_a_llama_by_hand() -> None:
    # H 32, I 48, 4 query heads and 2 KV heads of 8, a vocabulary of 128; the embedding is not tied.
    embedding, block, _, output = partition_units(hf.LlamaConfig(**COMMON), torch.bfloat16)
    matrices = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 48
    assert (embedding.param_bytes, embedding.multiplied, embedding.tied_bytes) == (
        128 * 32 * 2,
        0,
        0,
    )
    assert (block.multiplied, block.param_bytes) == (matrices, 2 * (matrices + 2 * 32))
    assert (block.kv_elements, block.score_elements, block.hidden) == (2 * 2 * 8, 2 * 4 * 8, 32)
    assert (output.multiplied, output.param_bytes) == (128 * 32, 2 * (128 * 32 + 32))


def test_a_tied_embedding_counts_once_and_as_a_copy() -> None:
    tied = partition_units(hf.LlamaConfig(**COMMON, tie_word_embeddings=True), torch.bfloat16)
    assert (tied[0].param_bytes, tied[0].tied_bytes) == (0, 128 * 32 * 2)
    assert tied[-1].param_bytes == 2 * (128 * 32 + 32)


def test_learned_positions_belong_to_the_embedding() -> None:
    config_class, extra = FAMILIES["gpt2"]
    embedding = partition_units(config_class(**(COMMON | extra)), torch.float32)[0]
    assert embedding.param_bytes == 4 * 256 * 32  # the tokens' table is tied
    assert embedding.tied_bytes == 4 * 128 * 32


def test_a_row_goes_through_two_of_four_experts() -> None:
    config_class, extra = FAMILIES["mixtral"]
    block = partition_units(config_class(**(COMMON | extra)), torch.float32)[1]
    attention, router, expert = 2 * 32 * 32 + 2 * 32 * 16, 32 * 4, 3 * 32 * 48
    assert (block.experts, block.routed, block.expert_bytes) == (4, 2, 4 * 4 * expert)
    assert block.multiplied == attention + router + 2 * expert


def test_what_is_no_decoder_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="T5Config"):
        partition_units(
            hf.T5Config(vocab_size=64, d_model=16, num_layers=2, num_heads=2, d_kv=8, d_ff=32)
        )
    with pytest.raises(
        UnsupportedModel, match="layer 0 of RwkvForCausalLM neither calls attention"
    ):
        partition_units(small_models.config_of("rwkv"))


def test_what_layers_have_in_common_is_counted_by_the_last_and_read_by_each() -> None:
    units = partition_units(small_models.config_of("zamba"), torch.float32)
    first, last = units[2], units[4]  # the layers that have attention, by the same weights
    assert [name for name, _ in first.tied] == ["block 3"] and not last.tied
    assert last.param_bytes - first.param_bytes == first.tied_bytes > 0
    assert first.w_param(1) == last.w_param(1) and first.multiplied == last.multiplied
    assert (
        held_bytes(units[:3])
        == sum(unit.param_bytes for unit in units[:3]) + first.tied_bytes + units[0].tied_bytes
    )
    assert held_bytes(units[2:5]) == sum(unit.param_bytes for unit in units[2:5])


def test_modules_run_before_or_after_the_layers() -> None:
    found = partition(small_models.config_of("gpt2"), torch.float32)
    names = ("wte", "wpe", "ln_f")
    assert [found.begun[f"transformer.{name}"] for name in names] == [(0, 0), (0, 0), (4, 4)]
    model = small_models.build("mllama")
    assert partition(model.config, torch.float32, type(model)).runs == (True, True, True, False)
