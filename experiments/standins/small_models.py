"""Every causal language model of transformers, small and random: made by a rule for the fields of
configurations, and by hand where that is not enough."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from huggingface_hub.errors import (
    StrictDataclassClassValidationError,
    StrictDataclassFieldValidationError,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

VOCAB, WINDOW = 128, 16
SPECIAL = ("bos_token_id", "eos_token_id")
SMALL: dict[str, Any] = {
    **dict.fromkeys(
        ["hidden_size", "d_model", "n_embd", "embed_dim", "embedding_size", "word_embed_proj_dim"],
        32,
    ),
    **dict.fromkeys(["emb_dim", "dim_model", "hidden_dim", "lru_width", "embedding_dim"], 32),
    **dict.fromkeys(
        ["intermediate_size", "ffn_dim", "d_ff", "dff", "ffn_hidden_size", "decoder_ffn_dim"], 48
    ),
    **dict.fromkeys(
        ["n_inner", "intermediate_size_mlp", "shared_intermediate_size", "encoder_ffn_dim"], 48
    ),
    **dict.fromkeys(
        ["dense_intermediate_size", "prefix_dense_intermediate_size", "expert_ffn_hidden_size"], 48
    ),
    **dict.fromkeys(["moe_intermediate_size", "shared_expert_intermediate_size"], 16),
    **dict.fromkeys(
        ["moe_shared_expert_intermediate_size", "shared_experts_intermediate_size"], 16
    ),
    **dict.fromkeys(
        [
            "num_hidden_layers",
            "n_layer",
            "n_layers",
            "num_layers",
            "decoder_layers",
            "encoder_layers",
        ],
        4,
    ),
    **dict.fromkeys(
        ["num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"], 4
    ),
    **dict.fromkeys(["encoder_attention_heads", "swa_num_attention_heads", "attention_heads"], 4),
    **dict.fromkeys(
        ["num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads", "num_query_groups"], 2
    ),
    **dict.fromkeys(
        ["head_dim", "kv_channels", "attention_head_dim", "swa_head_dim", "dim_head"], 8
    ),
    **dict.fromkeys(["query_pre_attn_scalar", "attention_head_size"], 8),
    **dict.fromkeys(["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"], 4),
    **dict.fromkeys(
        ["num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts", "moe_k"], 2
    ),
    **dict.fromkeys(
        ["n_group", "topk_group", "num_expert_group", "n_shared_experts", "num_shared_experts"], 1
    ),
    **dict.fromkeys(["q_lora_rank", "kv_lora_rank"], 16),
    **dict.fromkeys(
        ["sliding_window", "sliding_window_size", "attention_window_size", "window_size"], WINDOW
    ),
    **dict.fromkeys(["attention_chunk_size", "keep_window_size", "local_attention"], WINDOW),
    **dict.fromkeys(
        ["max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "model_max_length"], 256
    ),
    **dict.fromkeys(["initializer_range", "init_std"], 0.3),
    "floor_scale": WINDOW,
    **dict.fromkeys(SPECIAL, None),
    "vocab_size": VOCAB,
    "vocab_size_per_layer_input": VOCAB,
    "pad_token_id": 0,
    "hidden_size_per_layer_input": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "qk_head_dim": 12,
    "v_head_dim": 6,
    "first_k_dense_replace": 1,
    "num_kv_shared_layers": 0,
    "max_window_layers": 1,
    "use_sliding_window": True,
    "is_decoder": True,
    "rotary_dim": 4,
    "mamba_d_state": 8,
    "mamba_d_head": 8,
    "mamba_n_heads": 8,
    **dict.fromkeys(["mamba_n_groups", "mamba_ngroups", "n_groups"], 1),
    **dict.fromkeys(
        ["mamba_num_heads", "mamba_head_dim", "mamba_headdim", "ssm_state_size", "state_size"], 8
    ),
    **dict.fromkeys(["chunk_size", "mamba_chunk_size"], 8),
    **dict.fromkeys(["linear_key_head_dim", "linear_value_head_dim", "linear_head_dim"], 32),
    **dict.fromkeys(["linear_num_value_heads", "linear_num_heads"], 4),
    "linear_num_key_heads": 2,
    "type_vocab_size": 2,
    "original_max_position_embeddings": 256,
}
"""Fields of configurations, by name, and what makes the model small; a configuration gets those
that it has."""

CONV, FULL, LINEAR, LOCAL = "conv", "full_attention", "linear_attention", "sliding_attention"
ROPE = {"rope_type": "default", "rope_theta": 1e4}
ASSISTANT = {
    "num_hidden_layers": 4,
    **dict.fromkeys(["hidden_size_per_layer_input", "vocab_size_per_layer_input"], 0),
    "num_kv_shared_layers": 4,
    "layer_types": [LOCAL, FULL] * 2,
}
DOTS3 = {
    **dict.fromkeys(["swa_num_attention_heads", "swa_num_key_value_heads"], 4),
    **dict.fromkeys(["swa_q_lora_rank", "swa_kv_lora_rank"], 16),
    **{"swa_head_dim": 12, "swa_qk_nope_head_dim": 8, "swa_v_head_dim": 6},
}
QWEN4 = {
    "layer_types": [LINEAR, "indexed_attention"] * 2,
    **dict.fromkeys(["indexer_n_heads", "indexer_head_dim", "indexer_compress_ratio"], 8),
    "indexer_budget": 256,
    "indexer_kv_heads": 1,
    "linear_num_value_heads": 2,
    "hc_lowrank": 8,
}
BY_HAND: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {"layer_types": [LINEAR, FULL] * 2},
    "bamba": {"attn_layer_indices": [1, 3]},
    "blt": {
        "encoder_hash_byte_group_vocab": 64,
        "patcher_config": {"num_key_value_heads": 4},
        "global_config": {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 8},
        "decoder_config": {"num_key_value_heads": 4, "hidden_size_global": 64},
        "encoder_config": {"num_key_value_heads": 4, "hidden_size_global": 64},
    },
    "cohere_compass_text": {
        "layer_types": [LOCAL, FULL] * 2,
        "rope_parameters": {LOCAL: ROPE, FULL: ROPE},
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {"moe_num_experts": 4, "moe_top_k": 2},
    },
    "dots3_note": {
        "audio_config": {"adapter_input_size": 32, "adapter_out_dim": 32},
        "vision_config": {
            "mlp_layer_types": ["dense"] * 4,
            "adapter_in_dim": 32,
            "adapter_out_dim": 32,
        },
        "text_config": DOTS3,
    },
    "dots3_note_text": DOTS3,
    "falcon_h1": {"mamba_d_ssm": 64},
    "gemma4_assistant": {"text_config": ASSISTANT},
    "gemma4_unified_assistant": {"text_config": ASSISTANT},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {"layer_types": [LINEAR, FULL] * 2},
    "hrm_text": {"num_layers_per_stack": 1, "num_hidden_layers": 8},  # 2 high cycles of 3 + 1
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
    },
    "kimi_linear": {"layer_types": [LINEAR, FULL] * 2},
    "lfm2_moe": {"layer_types": [FULL] * 4, "num_dense_layers": 1},
    "mamba2": {"num_heads": 8, "n_groups": 2},
    "nemotron_h": {"n_groups": 2},
    "musicgen": {"decoder": {"num_codebooks": 1}},
    "musicgen_melody": {"decoder": {"num_codebooks": 1}},
    "qwen3_next": {"layer_types": [LINEAR, FULL] * 2},
    "qwen4_exp": {"text_config": QWEN4},
    "qwen4_exp_text": QWEN4,
    "reformer": {"axial_pos_embds": False, "attn_layers": ["local"] * 4, "num_buckets": 4},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layers_block_type": [LINEAR, "hybrid"] * 2},
    "zamba2": {"layers_block_type": [LINEAR, "hybrid"] * 2, "n_mamba_heads": 8},
    "zaya": {"num_experts_per_tok": 1},
    "falcon: alibi": {"alibi": True, "multi_query": False, "num_kv_heads": 4},
    "falcon: shared heads": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "gemma3n_text: shared KV": {"num_kv_shared_layers": 2},
    "gemma4_text: shared KV": {"num_kv_shared_layers": 2, "layer_types": [LOCAL, FULL] * 2},
    "lfm2: convolutions": {"layer_types": [CONV, FULL, CONV, FULL]},
    "lfm2_moe: convolutions": {"layer_types": [CONV, FULL, CONV, FULL], "num_dense_layers": 1},
    "llama4_text: no chunks": {"layer_types": [FULL] * 4},
    "llama: yarn": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}},
    "minimax_m3_vl_text: sparse": {
        "layer_types": [FULL, "minimax_m3_sparse"] * 2,
        "index_n_heads": 2,
        "index_head_dim": 8,
    },
    "mixtral: no window": {"sliding_window": None},
    "moshi: no window": {"sliding_window": 256},
    "phimoe: no window": {"sliding_window": None},
    "qwen2: no window": {"use_sliding_window": False},
    "qwen2_moe: no window": {"use_sliding_window": False},
}
"""What single families need beside `SMALL`, and variants of families ("family: variant")."""

_DRAFTS = (
    "it drafts on the keys and values of another model, and this transformers raises an error for "
    "any size of it"
)
CANNOT_BUILD = {
    "gemma3n": "its vision tower is a model of timm, which is not installed; its text part is "
    "gemma3n_text",
    "gemma4_assistant": _DRAFTS,
    "gemma4_unified_assistant": _DRAFTS,
}
"""Why no configuration builds these; the error itself stands beside it."""


class CannotBuild(Exception):
    """A small configuration does not build this family; the message says why."""


class Characters:
    """A tokenizer of one token per character."""

    eos_token_id = None

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [ord(c) % VOCAB for c in text]

    def decode(self, tokens: list[int], **_: Any) -> str:
        return "".join(map(chr, tokens))


def cases() -> list[str]:
    """All causal language models of the installed transformers by their `model_type`, and the
    variants."""
    return sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *BY_HAND})


def model_class(case: str) -> str:
    return str(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(case.split(":")[0], "?"))


def is_decoder(case: str) -> bool:
    """Whether a family is a decoder by design: not an encoder, which transformers has as a masked
    language model too, and neither an encoder-decoder nor half of one, whose configuration has
    `decoder_layers` or a `decoder`."""
    family = case.split(":")[0]
    if family in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        return False
    config_class = getattr(transformers, CONFIG_MAPPING_NAMES.get(family, ""), None)
    fields = getattr(config_class, "__dataclass_fields__", {})
    of_two_parts = any(name == "decoder" or name.endswith("decoder_layers") for name in fields)
    return not of_two_parts and not (fields and fields["is_encoder_decoder"].default)


def config_of(case: str, window: int = WINDOW) -> Any:
    """A small configuration, made by rule. Raises CannotBuild."""
    name = CONFIG_MAPPING_NAMES.get(case.split(":")[0])
    config_class = getattr(transformers, name or "", None)
    if config_class is None:
        raise CannotBuild("transformers has no configuration class for it")
    return _shrink(config_class, BY_HAND.get(case, {}), window)


def _shrink(config_class: Any, by_hand: dict[str, Any], window: int) -> Any:
    try:
        default = config_class()
    except StrictDataclassClassValidationError:  # its defaults don't fit together
        default = config_class(**by_hand)
    names = set(default.to_dict()) | set(getattr(config_class, "__dataclass_fields__", {}))
    fields = {name: value for name, value in SMALL.items() if name in names}
    fields |= {name: window for name in fields if fields[name] == WINDOW and _is_window(name)}
    if "kv_lora_rank" in names:  # multi-head latent attention
        fields |= {"num_key_value_heads": 4, "head_dim": 4}
    for part, part_class in (getattr(default, "sub_configs", None) or {}).items():
        inner = by_hand.get(part, {})
        part_class = (
            type(getattr(default, part)) if getattr(default, part, None) is not None else part_class
        )
        if isinstance(inner, dict) and hasattr(part_class, "model_type"):
            fields[part] = _shrink(part_class, inner, window)
    fields |= {
        name: value for name, value in by_hand.items() if name not in (default.sub_configs or {})
    }
    try:
        return config_class(**fields)
    except StrictDataclassFieldValidationError:  # its special tokens cannot be None
        return config_class(
            **{name: value for name, value in fields.items() if name not in SPECIAL}
        )


def _is_window(name: str) -> bool:
    return "window" in name or "chunk" in name or "local" in name


def build(case: str, window: int = WINDOW) -> Any:
    """A small random model in float32. Raises CannotBuild."""
    torch.manual_seed(0)
    try:
        model = _model(case, config_of(case, window)).to(torch.float32).eval()
    except CannotBuild:
        raise
    except Exception as error:
        raise CannotBuild(f"{type(error).__name__}: {error}") from error
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():  # large enough for attention to matter
            if weight.ndim > 1 and weight.is_floating_point():
                weight.normal_(0, 0.3, generator=generator)
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.eos_token_id = None
    return model.requires_grad_(False)


def _model(case: str, config: Any) -> Any:
    decoder = getattr(config, "decoder", None)
    # the model is made from a part of its configuration
    if "decoder" in getattr(decoder, "model_type", ""):
        return getattr(transformers, model_class(case))._from_config(decoder, dtype=torch.float32)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def tokens(seed: int, length: int) -> list[int]:
    return torch.randint(
        1, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)
    ).tolist()
