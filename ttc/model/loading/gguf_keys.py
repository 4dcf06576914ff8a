"""Which settings of a .gguf file are taken, by architecture.

`<arch>.NAME` is a setting of the architecture. Each is taken, has the only value that the model
computes with, or changes nothing. All others are refused (`ttc.model.loading.gguf_settings`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SIZES = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "vocab_size": "vocab_size",
}
RMS_NORM = {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
EXPERTS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
SOFTCAPPING = {"final_logit_softcapping": "final_logit_softcapping"}

HEADS = frozenset({"attention.key_length", "attention.value_length"})
ROPE = frozenset(
    {
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scale_linear",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scaling.attn_factor",
        "rope.scaling.original_context_length",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
    }
)
"""What `ttc.model.loading.gguf_rope` reads."""

NOTHING = frozenset({"rope.scaling.finetuned", "pooling_type"})
"""Settings that change no prediction of the next token."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.scale": (0,),
    "attention.shared_kv_layers": (0,),
    "attention.sliding_window": (0,),
    "attention.temperature_scale": (0,),
    "attn_logit_softcapping": (0,),
    "decoder_block_count": (0,),
    "embedding_scale": (0, 1),
    "expert_count": (0,),
    "expert_gating_func": (0, 1),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "expert_shared_count": (0,),
    "expert_used_count": (0,),
    "expert_weights_scale": (0, 1),
    "final_logit_softcapping": (0,),
    "leading_dense_block_count": (0,),
    "logit_scale": (0, 1),
    "nextn_predict_layers": (0,),
    "residual_scale": (0, 1),
    "rope.scaling.alpha": (0,),
    "rope.scaling.yarn_ext_factor": (1,),
    "rope.scaling.yarn_log_multiplier": (0,),
    "router_logit_softcapping": (0,),
    "use_parallel_residual": (False,),
}
"""Values with which a setting changes nothing, in every architecture that does not take it."""


@dataclass(frozen=True)
class Architecture:
    """An architecture.

    takes: the configuration's attribute that a setting is written into. missing: values of settings
    that a file may leave out, where they are not none. only: the only values of settings that the
    model computes with. nothing: settings that change nothing, or that transformers reads. rope:
    whether positions are rotary. heads_apart: whether heads may have other widths than hidden size
    / heads. part: whether a part of a head's numbers may turn with the position. factors: tensors
    that divide rotary frequencies. biases: the configuration's attribute that says that there are
    biases, by one of them. whole: whether transformers reads all sizes and positions itself.
    """

    takes: Mapping[str, str]
    missing: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    nothing: frozenset[str] = frozenset()
    rope: bool = True
    heads_apart: bool = True
    part: bool = False
    factors: frozenset[str] = frozenset()
    biases: Mapping[str, str] = field(default_factory=dict)
    whole: bool = False


ATTENTION_BIAS = {"blk.0.attn_output.bias": "attention_bias"}
DENSE = Architecture(SIZES | RMS_NORM)
LLAMA = Architecture(
    SIZES | RMS_NORM,
    only={"tensor_data_layout": ("Meta AI original pth",)},
    factors=frozenset({"rope_freqs", "rope_factors_long", "rope_factors_short"}),
    biases=ATTENTION_BIAS | {"blk.0.ffn_down.bias": "mlp_bias"},
)
GEMMA = SIZES | RMS_NORM | SOFTCAPPING
LAYER_NORM = "attention.layer_norm_epsilon"
WINDOW = {"attention.sliding_window": "sliding_window"}
WINDOWED = frozenset({"attention.sliding_window_pattern", "rope.freq_base_swa"})
"""Read by `ttc.model.loading.gguf_settings`."""
QWEN35 = frozenset(
    {
        *SIZES,
        *RMS_NORM,
        *HEADS,
        "full_attention_interval",
        "nextn_predict_layers",  # layers that guess tokens further on, which are left out
        "rope.dimension_count",
        "rope.dimension_sections",
        "rope.freq_base",
        "ssm.conv_kernel",
        "ssm.group_count",
        "ssm.inner_size",
        "ssm.state_size",
        "ssm.time_step_rank",
    }
)

FAMILIES: Mapping[str, Architecture] = {
    "llama": LLAMA,
    "qwen2": DENSE,
    "qwen2moe": Architecture(
        SIZES
        | RMS_NORM
        | EXPERTS
        | {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
        only={"expert_weights_norm": (False,)},
    ),
    "qwen3": Architecture(SIZES | RMS_NORM, biases=ATTENTION_BIAS),
    "qwen3moe": Architecture(
        SIZES | RMS_NORM | EXPERTS,
        only={"expert_weights_norm": (True,)},
        biases=ATTENTION_BIAS,
    ),
    "gemma2": Architecture(
        GEMMA | WINDOW | {"attn_logit_softcapping": "attn_logit_softcapping"},
        missing={
            "attention.sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        nothing=WINDOWED,
    ),
    "gemma3": Architecture(GEMMA | WINDOW, nothing=WINDOWED),
    "phi3": Architecture(
        SIZES | RMS_NORM | WINDOW,
        part=True,
        factors=frozenset({"rope_factors_long", "rope_factors_short"}),
    ),
    "starcoder2": Architecture(SIZES | {LAYER_NORM: "norm_epsilon"}, heads_apart=False),
    "stablelm": Architecture(
        SIZES | {LAYER_NORM: "layer_norm_eps"},
        nothing=frozenset({"use_parallel_residual"}),  # by its tensors, which transformers reads
        heads_apart=False,
        part=True,
    ),
    "nemotron": Architecture(SIZES | {LAYER_NORM: "norm_eps"}, part=True),
    "gpt2": Architecture(
        {
            "block_count": "n_layer",
            "context_length": "n_positions",
            "embedding_length": "n_embd",
            "feed_forward_length": "n_inner",
            "attention.head_count": "n_head",
            "vocab_size": "vocab_size",
            LAYER_NORM: "layer_norm_epsilon",
        },
        nothing=frozenset({"attention.head_count_kv"}),
        rope=False,
        heads_apart=False,
    ),
    "mamba": Architecture(
        {
            "block_count": "num_hidden_layers",
            "embedding_length": "hidden_size",
            "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
            "ssm.conv_kernel": "conv_kernel",
            "ssm.inner_size": "intermediate_size",
            "ssm.state_size": "state_size",
            "ssm.time_step_rank": "time_step_rank",
            "vocab_size": "vocab_size",
        },
        only={"ssm.dt_b_c_rms": (False,), "ssm.group_count": (0,)},
        nothing=frozenset(
            {
                "context_length",
                "feed_forward_length",
                "attention.head_count",
                "attention.head_count_kv",
            }
        ),
        rope=False,
    ),
    "lfm2": Architecture(
        {"attention.layer_norm_rms_epsilon": "norm_eps"},
        nothing=frozenset({*SIZES, "rope.freq_base", "shortconv.l_cache"}),
        whole=True,
    ),
    "qwen35": Architecture({}, nothing=QWEN35, whole=True),
    "qwen35moe": Architecture(
        {},
        only={"expert_weights_norm": (True,)},
        nothing=QWEN35 | {*EXPERTS, "expert_shared_feed_forward_length"},
        whole=True,
    ),
}
