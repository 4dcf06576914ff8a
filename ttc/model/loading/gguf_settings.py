"""The settings of a .gguf file, written into the configuration that transformers makes of it.

transformers reads some settings of a file and leaves out the others without a word. Here each one
is taken, is known to change nothing, or is refused by its name.
"""

from __future__ import annotations

import math
from typing import Any

from ttc.errors import UnsupportedModel
from ttc.model.loading.gguf_file import GgufFile
from ttc.model.loading.gguf_keys import FAMILIES, HEADS, NEUTRAL, NOTHING, ROPE, Architecture
from ttc.model.loading.gguf_rope import OTHER_FILES, rope_parameters

GEMMA = {"gemma2": (46, 2), "gemma3": (62, 6)}
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
    if file.architecture in GEMMA:
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
    if int(file.value("split.count", 1)) > 1:
        raise UnsupportedModel(
            f"{file.name} is one of {file.value('split.count')} parts; join them with "
            "llama-gguf-split --merge"
        )
    kind = file.value("general.type", "model")
    if kind != "model":
        raise UnsupportedModel(f"{file.name} holds no model, its general.type is {kind!r}")


def _check_keys(file: GgufFile, family: Architecture) -> None:
    prefix = f"{file.architecture}."
    known = {*family.takes, *family.nothing, *NOTHING}
    if family.rope and not family.whole:
        known |= HEADS | ROPE
    for key in file.keys:
        name = key.removeprefix(prefix)
        if name == key:
            continue
        value = file.value(key)
        values = family.only.get(name)
        if values is None and name not in known:
            values = NEUTRAL.get(name, ())
        if values is not None and value not in values and not _is_neutral(file, name, value):
            raise _refused(file, name, value, values)


def _is_neutral(file: GgufFile, name: str, value: Any) -> bool:
    """Whether a setting that the model does not take says what it does anyway."""
    if name == "attention.sliding_window":
        return bool(value >= file.setting("context_length", math.inf))
    if name == "attention.scale":
        return math.isclose(value, _head_dim(file) ** -0.5, rel_tol=1e-6)
    return False


def _refused(file: GgufFile, name: str, value: Any, values: tuple[Any, ...]) -> UnsupportedModel:
    allowed = f", but for {' and '.join(map(repr, values))}" if values else ""
    return UnsupportedModel(
        f"{file.name} sets {file.architecture}.{name} to {str(value)[:60]}, which is not read "
        f"here{allowed}; {OTHER_FILES}"
    )


def _take(config: Any, file: GgufFile, family: Architecture) -> None:
    for name, attribute in family.takes.items():
        value = file.setting(name, family.missing.get(name))
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise _refused(file, name, value, ())
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
    if not family.heads_apart and head_dim != each:
        raise _refused(file, "attention.key_length", head_dim, (each,))
    value_dim = file.setting("attention.value_length", head_dim)
    if value_dim != head_dim:
        raise _refused(file, "attention.value_length", value_dim, (head_dim,))
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
    largest, period = GEMMA[file.architecture]
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
    elif theta not in (None, config.rope_parameters["rope_theta"]):
        raise _refused(file, "rope.freq_base_swa", theta, (config.rope_parameters["rope_theta"],))


def _layer_types(config: Any, file: GgufFile, period: int) -> list[str]:
    """A window in all layers but one of each `period`, or as the file has it layer by layer."""
    count = config.num_hidden_layers
    if config.sliding_window is None:
        return ["full_attention"] * count
    stated = file.setting("attention.sliding_window_pattern", period)
    if isinstance(stated, int):
        stated = [(layer + 1) % stated != 0 if stated else False for layer in range(count)]
    return ["sliding_attention" if windowed else "full_attention" for windowed in stated[:count]]
