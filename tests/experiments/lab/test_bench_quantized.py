"""The measurement of stored weights: what a process answers, and the tables made of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import AutoConfig, AutoModelForCausalLM

from experiments.lab.bench.quantized_way import Measured, unpack
from experiments.standins.random_gguf import MIXED, Shape, kind_of, write_llama
from ttc.engine import Engine
from ttc.stored.gguf_loading import read_stored
from ttc.stored.layers import StoredLinear

ASKED = {"prefix": 12, "tokens": 1, "beam_steps": 2, "beam_tokens": 1}


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_a_process_measures_prefill_branches_and_beams(tmp_path: Path, architecture: str) -> None:
    file = tmp_path / "model.gguf"
    width = {"llama": 256, "qwen3": 512}[architecture]  # transformers takes Qwen 3's heads as 128
    write_llama(file, MIXED, Shape(width=width, architecture=architecture))
    config = AutoConfig.from_pretrained(tmp_path, gguf_file=file.name)
    model = read_stored(AutoModelForCausalLM, config, torch.bfloat16, file).eval()
    way = Measured(Engine(model, None))
    bytes_before = way.about()["weight_bytes"]
    for figure in ("2", "prefill", "2", "beam 4 x 4"):
        assert way.measure(ASKED | {"figure": figure}) > 0
    unpack(model)
    plain = Measured(Engine(model, None)).about()
    assert plain["products"] == way.about()["products"]
    assert plain["weight_bytes"] == 2 * plain["products"] > 3 * bytes_before
    assert not any(isinstance(module, StoredLinear) for module in model.modules())


def test_a_mixture_has_more_bits_where_llama_cpp_has_them() -> None:
    kinds = {
        name: kind_of(MIXED, name, 16)
        for name in ("blk.1.ffn_down", "blk.2.ffn_down", "blk.2.attn_v", "blk.4.attn_v")
    }
    assert [kind.name for kind in kinds.values()] == ["Q6_K", "Q4_K", "Q4_K", "Q6_K"]
    assert kind_of(MIXED, "blk.0.attn_q", 16) == Kind.Q4_K
    assert kind_of(MIXED, "token_embd", 16) == Kind.Q6_K
    assert kind_of("Q8_0", "output", 16) == kind_of(Kind.Q8_0, "output", 16) == Kind.Q8_0
