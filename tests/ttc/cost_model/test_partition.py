"""Units from a configuration: against the weights and the engine's own shapes of real models, and refusals."""

from __future__ import annotations

import pytest
import torch
import transformers as hf

from experiments.bench import architectures
from tests.helpers.models import COMMON, FAMILIES, build
from ttc.cost_model.partition import partition_units
from ttc.errors import UnsupportedModel
from ttc.model.check import check_model, examine


@pytest.mark.parametrize("family", FAMILIES)
def test_units_hold_the_weights_of_the_model_and_the_kv_of_the_engine(family: str) -> None:
    config_class, extra = FAMILIES[family]
    units = partition_units(config_class(**(COMMON | extra)), torch.float32)
    model = build(family)
    shapes = check_model(model)
    assert sum(unit.param_bytes for unit in units) == sum(w.numel() * 4 for w in model.parameters())
    assert [unit.kv_elements for unit in units[1:-1]] == [shape.elements for shape in shapes]
    assert [unit.window for unit in units[1:-1]] == [shape.window for shape in shapes]
    assert [unit.is_block for unit in units] == [False, *[True] * len(shapes), False]
    assert {unit.bytes_per_element for unit in units} == {4}


RECURRENT = ["qwen3_5_text", "jamba", "lfm2: convolutions", "mamba2", "falcon_h1"]
ODD = ["dbrx", "diffllama", "emu3", "gemma4", "jetmoe", "stablelm"]
"""They look at values, have a configuration of another kind than their class, call attention twice in a layer, or pass
no keyword arguments on to it."""


@pytest.mark.parametrize("case", RECURRENT + ODD)
def test_units_hold_what_the_engine_keeps_of_other_layers_too(case: str) -> None:
    model = architectures.build(case)
    units = partition_units(model.config, torch.float32, type(model))
    shapes, recurrent = examine(model)
    assert sum(unit.kv_elements for unit in units) == sum(shape.elements for shape in shapes)
    assert sum(unit.state_bytes for unit in units) == (0 if recurrent is None else recurrent.shape.nbytes)
    assert [unit.state_bytes > 0 for unit in units[1:-1]] == [
        recurrent is not None and layer in recurrent.layers for layer in range(len(units) - 2)
    ]
    assert sum(unit.param_bytes for unit in units) == sum(4 * weight.numel() for weight in model.parameters())


def test_a_llama_by_hand() -> None:
    # H 32, I 48, 4 query heads and 2 KV heads of 8, a vocabulary of 128; the embedding is not tied.
    embedding, block, _, output = partition_units(hf.LlamaConfig(**COMMON), torch.bfloat16)
    matrices = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 48
    assert (embedding.param_bytes, embedding.multiplied, embedding.tied_bytes) == (128 * 32 * 2, 0, 0)
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
        partition_units(hf.T5Config(vocab_size=64, d_model=16, num_layers=2, num_heads=2, d_kv=8, d_ff=32))
    gptj = hf.GPTJConfig(vocab_size=64, n_embd=16, n_layer=2, n_head=2, rotary_dim=4)
    with pytest.raises(UnsupportedModel, match="0 of the 2 layers of GPTJForCausalLM call attention"):
        partition_units(gptj)
