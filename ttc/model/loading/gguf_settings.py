"""The settings of a .gguf file, written into the configuration that transformers makes of it.

transformers reads some settings of a file and leaves out the others without a word. Here each one
(`<arch>.NAME`) is taken, has the only value that the model computes with, is known to change
nothing, or is refused by its name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ttc.errors import UnsupportedModel, refuse
from ttc.model.loading.gguf_file import OTHER_FILES, GgufFile, names, weights
from ttc.model.loading.gguf_rope import rope_parameters

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
ROPE = names(
    "rope.dimension_count rope.freq_base rope.scale_linear rope.scaling.type rope.scaling.factor "
    "rope.scaling.attn_factor rope.scaling.original_context_length rope.scaling.yarn_beta_fast "
    "rope.scaling.yarn_beta_slow"
)
"""What `gguf_rope.py` reads."""

NOTHING = frozenset({"rope.scaling.finetuned", "pooling_type"})
"""Settings that change no prediction of the next token."""

ZERO = names(
    "attention.clamp_kqv attention.max_alibi_bias attention.scale attention.shared_kv_layers "
    "attention.sliding_window attention.temperature_scale attn_logit_softcapping "
    "decoder_block_count expert_count expert_shared_count expert_used_count "
    "final_logit_softcapping leading_dense_block_count nextn_predict_layers rope.scaling.alpha "
    "rope.scaling.yarn_log_multiplier router_logit_softcapping"
)
ZERO_OR_ONE = names(
    "embedding_scale expert_gating_func expert_group_count expert_group_used_count "
    "expert_weights_scale logit_scale residual_scale"
)
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(ZERO, (0,)),
    **dict.fromkeys(ZERO_OR_ONE, (0, 1)),
    "attention.causal": (True,),
    "rope.scaling.yarn_ext_factor": (1,),
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
# nextn_predict_layers guess tokens further on, and are left out
QWEN35 = names(
    "full_attention_interval nextn_predict_layers rope.dimension_count rope.dimension_sections "
    "rope.freq_base ssm.conv_kernel ssm.group_count ssm.inner_size ssm.state_size "
    "ssm.time_step_rank"
).union(SIZES, RMS_NORM, HEADS)

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
        nothing=names(
            "context_length feed_forward_length attention.head_count attention.head_count_kv"
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

LARGEST = {"gemma2": (46, 2), "gemma3": (62, 6)}
"""The layers of the 27B model, whose queries are scaled by the hidden size per head; and how many
layers in turn have one without a window."""


OFF_AT_ZERO = ("attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping")


def settle(config: Any, file: GgufFile) -> None:
    """Write a file's settings into its configuration.

    Raises UnsupportedModel for a setting, by its name, that is not computed here.
    """
    family = family_of(file)
    _check_whole(file)
    _check_keys(file, family)
    if getattr(config, "sliding_window", None):
        config.sliding_window = None  # but where the file states one
    _take(config, file, family)
    if family.rope and not family.whole:
        _set_heads(config, file, family)
    if file.architecture in LARGEST:
        _set_gemma(config, file)
    for tensor, attribute in family.biases.items():
        if tensor in file.tensors:
            setattr(config, attribute, True)
    _set_tokens(config, file)


def family_of(file: GgufFile) -> Architecture:
    if file.architecture not in FAMILIES:
        raise UnsupportedModel(
            f"settings of the architecture {file.architecture!r} are not read from .gguf files, "
            f"those of {', '.join(FAMILIES)} are; {OTHER_FILES}"
        )
    return FAMILIES[file.architecture]


def _check_whole(file: GgufFile) -> None:
    parts, kind = int(file.value("split.count", 1)), file.value("general.type", "model")
    refuse(
        {
            f"{file.name} is one of {parts} parts; join them with llama-gguf-split --merge": (
                parts > 1
            ),
            f"{file.name} holds no model, its general.type is {kind!r}": kind != "model",
        },
        UnsupportedModel,
    )


def _check_keys(file: GgufFile, family: Architecture) -> None:
    prefix = f"{file.architecture}."
    names = {*family.takes, *family.nothing, *NOTHING}
    if family.rope and not family.whole:
        names |= HEADS | ROPE
    for key in file.keys:
        name = key.removeprefix(prefix)
        if name == key:
            continue
        value = file.value(key)
        values = family.only.get(name)
        if values is None and name not in names:
            values = NEUTRAL.get(name, ())
        if values is not None and value not in values and not _is_neutral(file, name, value):
            only = f"only {' and '.join(map(repr, values))}" if values else ""
            file.check(name, value, False, only)


def _is_neutral(file: GgufFile, name: str, value: Any) -> bool:
    """Whether a setting that the model does not take says what it does anyway."""
    if name == "attention.sliding_window":
        return bool(value >= file.setting("context_length", math.inf))
    if name == "attention.scale":
        return math.isclose(value, _head_dim(file) ** -0.5, rel_tol=1e-6)
    return False


def _take(config: Any, file: GgufFile, family: Architecture) -> None:
    for name, attribute in family.takes.items():
        value = file.setting(name, family.missing.get(name))
        if isinstance(value, list):
            file.check(name, value, len(set(value)) == 1)
            value = value[0]
        if name in OFF_AT_ZERO:
            setattr(config, attribute, value or None)
        elif value is not None:
            setattr(config, attribute, value)


def _head_dim(file: GgufFile) -> int:
    each = int(file.setting("embedding_length")) // int(file.setting("attention.head_count"))
    return int(file.setting("attention.key_length", each))


def _set_heads(config: Any, file: GgufFile, family: Architecture) -> None:
    head_dim = _head_dim(file)
    each = config.hidden_size // config.num_attention_heads
    fits = family.heads_apart or head_dim == each
    file.check("attention.key_length", head_dim, fits, f"only {each}")
    value_dim = file.setting("attention.value_length", head_dim)
    file.check("attention.value_length", value_dim, value_dim == head_dim, f"only {head_dim}")
    if family.heads_apart:
        config.head_dim = head_dim
    if file.setting("attention.head_count_kv") is None:
        config.num_key_value_heads = config.num_attention_heads
    rope = rope_parameters(file, head_dim, family.part)
    original = rope.get("original_max_position_embeddings")
    if original and hasattr(config, "original_max_position_embeddings"):
        config.original_max_position_embeddings = original
    config.rope_parameters = rope


def _set_tokens(config: Any, file: GgufFile) -> None:
    """The tokens that begin and end texts. What the file does not name is none, whatever the
    configuration's class has by default."""
    begin, end = (1, 2) if file.value("tokenizer.ggml.model") == "llama" else (None, None)
    ends = [file.value("tokenizer.ggml.eos_token_id", end)]
    ends += [file.value(f"tokenizer.ggml.{name}_token_id") for name in ("eot", "eom")]
    ends = [token for token in dict.fromkeys(ends) if token is not None]
    config.bos_token_id = file.value("tokenizer.ggml.bos_token_id", begin)
    config.pad_token_id = file.value("tokenizer.ggml.padding_token_id")
    config.eos_token_id = ends if len(ends) > 1 else next(iter(ends), None)


def _set_gemma(config: Any, file: GgufFile) -> None:
    largest, period = LARGEST[file.architecture]
    by_hidden_size = config.num_hidden_layers == largest
    per_head = config.hidden_size // config.num_attention_heads
    config.query_pre_attn_scalar = per_head if by_hidden_size else config.head_dim
    config.layer_types = _layer_types(config, file, period)
    theta = file.setting("rope.freq_base_swa")
    if file.architecture == "gemma3":
        local = {"rope_type": "default", "rope_theta": float(theta or 10_000.0)}
        config.rope_parameters = {
            "full_attention": config.rope_parameters,
            "sliding_attention": local,
        }
    else:
        only = config.rope_parameters["rope_theta"]
        file.check("rope.freq_base_swa", theta, theta in (None, only), f"only {only}")


def _layer_types(config: Any, file: GgufFile, period: int) -> list[str]:
    """A window in all layers but one of each `period`, or as the file has it layer by layer."""
    count = config.num_hidden_layers
    if config.sliding_window is None:
        return ["full_attention"] * count
    stated = file.setting("attention.sliding_window_pattern", period)
    if isinstance(stated, int):
        stated = [(layer + 1) % stated != 0 if stated else False for layer in range(count)]
    return ["sliding_attention" if windowed else "full_attention" for windowed in stated[:count]]


def check_tensors(model: Any, file: GgufFile) -> None:
    """Raises UnsupportedModel for a tensor of the file that the model does not take."""
    family = family_of(file)
    if family.whole:
        return
    names = weights(model, file).keys() | {f"{name}.weight" for name in family.factors}
    left = sorted(
        name
        for name in file.tensors
        if name not in names and name.removesuffix(".weight") not in names  # experts have no suffix
    )
    if left:
        raise UnsupportedModel(
            f"{file.name} has {len(left)} tensors that the model has no place for, among them "
            f"{left[0]}; {OTHER_FILES}"
        )
