"""Random models of transformers, written as .gguf files the way llama.cpp's converter does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from transformers import modeling_gguf_pytorch_utils as theirs

from ttc.model.loading.gguf_settings import FAMILIES

VOCAB = 96
ALPHABET = [chr(code) for code in range(33, 127)]
"""The first tokens: single characters."""


def write_gguf(
    file: Path,
    architecture: str,
    model: Any,
    keys: Mapping[str, Any],
    tensors: Mapping[str, list[float]] | None = None,
    tokenizer: Mapping[str, Any] | None = None,
    without: frozenset[str] = frozenset(),
) -> None:
    """A model of transformers as a file of this architecture, in float32.

    keys: settings of the architecture beside the sizes that the model's configuration has. tensors:
    more small tensors, by their names. tokenizer: keys of `tokenizer.ggml`, in place of one that
    has the printable characters of ASCII. without: settings that are left out.
    """
    writer = gguf.GGUFWriter(file, architecture)
    sizes = sizes_of(architecture, model.config)
    for name, value in (sizes | dict(keys)).items():
        if name not in without:
            add(writer, f"{architecture}.{name}", value)
    plain = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [*ALPHABET, "ab", "<end>"],
        "token_type": [1] * (VOCAB - 1) + [3],
        "merges": ["a b"],
        "eos_token_id": VOCAB - 1,
    }
    for name, value in (tokenizer or plain).items():
        add(writer, f"tokenizer.ggml.{name}", value)
    for name, numbers in tensors_of(architecture, model).items():
        writer.add_tensor(name, numbers)
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, np.array(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def sizes_of(architecture: str, config: Any) -> dict[str, Any]:
    """The settings that a configuration's attributes are, as far as these are no positions."""
    sizes = {}
    for name, attribute in FAMILIES[architecture].takes.items():
        value = getattr(config, attribute, None)
        if value is not None:
            sizes[name] = value
    return sizes


def tensors_of(architecture: str, model: Any) -> dict[str, np.ndarray]:
    config = model.config
    made_by = theirs.TENSOR_PROCESSORS.get(architecture, theirs.TensorProcessor)
    names = theirs.get_gguf_hf_weights_map(model, made_by(config=config.to_dict()))
    state = {name: weight.detach().float().numpy() for name, weight in model.state_dict().items()}
    tied = config.tie_word_embeddings
    found = {}
    for tensor, weight in names.items():
        if tensor == "output.weight" and tied:
            continue
        numbers = stored(architecture, config, tensor, state[weight])
        if tensor.endswith("_exps"):
            tensor += ".weight"
        found[tensor] = np.ascontiguousarray(numbers, np.float32)
    return found


def stored(architecture: str, config: Any, tensor: str, weight: np.ndarray) -> np.ndarray:
    """A weight in the order that a file has it in."""
    turned = None
    if architecture == "llama" and ".attn_q." in tensor:
        turned = weight.reshape(config.num_attention_heads, 2, -1, *weight.shape[1:])
    if architecture == "llama" and ".attn_k." in tensor:
        turned = weight.reshape(config.num_key_value_heads, 2, -1, *weight.shape[1:])
    if turned is not None:
        return turned.swapaxes(1, 2).reshape(weight.shape)
    if architecture in ("gemma2", "gemma3", "nemotron") and "norm.weight" in tensor:
        return weight + 1
    if tensor.endswith(("gate_exps", "up_exps")):
        return np.split(weight, 2, axis=1)["_up_" in tensor]
    if tensor.endswith("ffn_gate_inp_shexp.weight"):
        return weight[0]
    return weight
