"""Small random models of every supported family, and prompts for them."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB = 128
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
MOE = {"num_experts_per_tok": 2, "num_local_experts": 4}
MLA = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "head_dim": 4,
    "v_head_dim": 6,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
}
FAMILIES: dict[str, tuple[type, dict[str, Any]]] = {
    "llama": (hf.LlamaConfig, {}),
    "qwen2": (hf.Qwen2Config, {}),
    "qwen3": (hf.Qwen3Config, {}),
    "mistral": (hf.MistralConfig, {"sliding_window": 8}),
    "opt": (
        hf.OPTConfig,
        {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.3, "activation_function": "gelu"},
    ),
    "gpt2": (hf.GPT2Config, {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}),
    "gpt_neox": (hf.GPTNeoXConfig, {}),
    "phi3": (hf.Phi3Config, {}),
    "gemma2": (
        hf.Gemma2Config,
        {
            "sliding_window": 8,
            "query_pre_attn_scalar": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "gemma3": (
        hf.Gemma3TextConfig,
        {
            "sliding_window": 8,
            "query_pre_attn_scalar": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "olmo2": (hf.Olmo2Config, {}),
    "mixtral": (hf.MixtralConfig, MOE),
    "gpt_oss": (hf.GptOssConfig, {**MOE, "sliding_window": 8}),
    "deepseek_v3": (hf.DeepseekV3Config, MLA),
}

FEW = ("llama", "gpt2", "gemma3", "deepseek_v3")
"""Those of `FAMILIES` that `make test` runs, where a test goes through all of them."""


def build(family: str, dtype: torch.dtype = torch.float32) -> Any:
    config_class, extra = FAMILIES[family]
    return of_config(config_class, dtype, **extra)


def of_config(config_class: Any, dtype: torch.dtype = torch.float32, **settings: Any) -> Any:
    torch.manual_seed(0)
    config = config_class(**(COMMON | settings))
    model = hf.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    return model


def prompt(seed: int, length: int) -> list[int]:
    return torch.randint(
        1, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)
    ).tolist()


def small(layers: int = 2, context: int = 64, eos: int | None = None) -> LlamaForCausalLM:
    """A random Llama of 16 units and one KV head. eos: the token that ends its texts."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=context,
        initializer_range=0.4,
        eos_token_id=eos,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def deep(layers: int, heads: int, context: int, width: int = 8) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=width,
        max_position_embeddings=context,
        initializer_range=0.4,
        eos_token_id=None,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config)
