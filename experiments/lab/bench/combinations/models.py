"""Small models of a draw, and what runs them."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers as hf

from experiments.standins import small_models
from experiments.standins.random_gguf import Shape, write_llama
from ttc.model.loading.load import load
from ttc.model.runner_choice import runner_for
from ttc.model.running.runner import ModelRunner

WIDTHS: dict[str, Any] = {
    "vocab_size": small_models.VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
}
WINDOWED: dict[str, Any] = {
    "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention"],
}
LATENT: dict[str, Any] = {
    **{"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4},
    **{"head_dim": 4, "v_head_dim": 6, "first_k_dense_replace": 2},
}
STATE_SPACE: dict[str, Any] = {
    **{"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "pad_token_id": 0},
    **{"num_experts": 1, "num_experts_per_tok": 1, "use_mamba_kernels": False},
}
ONLY_STATES: dict[str, Any] = {
    **{"num_heads": 8, "head_dim": 8, "n_groups": 2, "state_size": 8, "chunk_size": 8},
    "pad_token_id": 0,
}
MODELS: dict[str, Any] = {
    "llama": lambda: hf.LlamaConfig(**WIDTHS, num_key_value_heads=2),
    "gpt2": lambda: hf.GPT2Config(**WIDTHS, n_inner=48),
    "mistral": lambda: hf.MistralConfig(**WIDTHS, num_key_value_heads=1, sliding_window=16),
    "gemma3": lambda: hf.Gemma3TextConfig(
        **WIDTHS, **WINDOWED, num_key_value_heads=2, head_dim=8, query_pre_attn_scalar=8
    ),
    "deepseek_v3": lambda: hf.DeepseekV3Config(**WIDTHS, **LATENT, num_key_value_heads=4),
    "lfm2": lambda: hf.Lfm2Config(
        **WIDTHS, num_key_value_heads=2, layer_types=["conv", "full_attention"]
    ),
    "jamba": lambda: hf.JambaConfig(**WIDTHS, **STATE_SPACE, num_key_value_heads=2),
    "mamba2": lambda: hf.Mamba2Config(
        **{name: WIDTHS[name] for name in WIDTHS if "attention" not in name}, **ONLY_STATES
    ),
}
"""Small decoders of attention layers of several kinds, and of layers that keep a state."""
REAL = "smollm2-135m"
"""The default model with its weights, which no draw has."""
RECURRENT = ("qwen3_next", "falcon_h1", "kimi_linear", "zamba2", "bamba", "lfm2_moe: convolutions")
RARE = (
    *("gpt_oss", "llama4_text", "gemma3n_text: shared KV", "gemma4_text: shared KV", "gemma2"),
    *("mixtral", *RECURRENT),
)
"""Of `small_models`, with layers of other kinds."""
STATEFUL = ("lfm2", "jamba", "mamba2", *RECURRENT)
IN_FLOAT32 = ("jamba", "mamba2", *RECURRENT)
"""They compute their states in float32, whatever the type of the model."""
SHARES = {"llama": 6, "gpt2": 4, "mistral": 4, "lfm2": 3, "gemma3": 2, "jamba": 2}
"""How often models are drawn; the others, which take longer, less than once."""


STORED = {
    "stored Q8_0": Shape(width=64, inner=96, context=512),
    "stored Q4_1": Shape(width=64, inner=96, context=512, architecture="qwen3"),
    "stored Q5_0": Shape(width=32, inner=64, context=512, architecture="qwen3moe", experts=4),
    "stored Q6_K": Shape(width=256, inner=256, context=512),
}
"""Weights that stay as .gguf files store them, by their kinds."""


@cache
def model_of(name: str, compiled: str | None) -> Any:
    dtype = torch.float64 if compiled is None else torch.float32
    if name in STORED:
        return _stored(name)
    if name == REAL:
        model, _ = load(name, dtype=dtype)
        model.generation_config.eos_token_id = None
        return model
    torch.manual_seed(0)
    if name in RARE:
        model = small_models.build(name)
    else:
        model = hf.AutoModelForCausalLM.from_config(MODELS[name]()).eval().requires_grad_(False)
    model.generation_config.eos_token_id = None
    model.set_experts_implementation("eager")  # the others take no float64
    return model.to(dtype)


def _stored(name: str) -> Any:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "model.gguf"
        write_llama(file, name.split()[1], STORED[name], scale=0.2)
        return load(file, dtype="float32", quantized=True)[0]


@cache
def runner_of(name: str, compiled: str | None, drafts: bool) -> ModelRunner:
    """What runs a model in one engine after the other, checked once. drafts: for the model that
    drafts, which runs beside."""
    return new_runner(name, compiled)


def new_runner(name: str, compiled: str | None) -> ModelRunner:
    model = copy.deepcopy(model_of(name, compiled))
    return runner_for(model, "auto" if compiled == "layers" else "modules")


@cache
def reward_model(compiled: str | None) -> Any:
    return copy.deepcopy(model_of("llama", compiled))
