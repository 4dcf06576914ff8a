"""Random Llamas and Qwens in .gguf files, their weights in any of the kinds that stay as they
are."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

FACTORS = {
    Kind.Q4_0: ([0], 5),
    Kind.Q4_1: ([0, 2], 9),
    Kind.Q5_0: ([0], 9),
    Kind.Q5_1: ([0, 2], 18),
    Kind.Q8_0: ([0], 74),
    Kind.IQ4_NL: ([0], 66),
    Kind.Q4_K: ([0, 2], 320),
    Kind.Q5_K: ([0, 2], 640),
    Kind.Q6_K: ([208], 1360),
}
"""Where in a block the factors of 16 bits lie, and what these are multiplied with on average."""

MOST = 100_003
"""Blocks that are drawn; larger weights repeat them."""


def random_weight(kind: Kind, rows: int, width: int, scale: float, seed: int = 0) -> np.ndarray:
    """Rows as bytes; for kinds of blocks random bytes. scale: of the numbers."""
    random = np.random.default_rng(seed)
    if kind not in FACTORS:
        numbers = scale * random.standard_normal((rows, width), np.float32)
        return gguf.quantize(numbers, kind)
    numbers_of, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rows * width // numbers_of
    packed = random.integers(0, 256, (min(blocks, MOST), size), np.uint8)
    places, average = FACTORS[kind]
    for place in places:
        factors = scale / average * random.standard_normal(len(packed), np.float32)
        packed[:, place : place + 2] = factors.astype(np.float16)[:, None].view(np.uint8)
    return np.resize(packed, (blocks, size)).reshape(rows, -1)


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama, its output tied to the embedding, or of a Qwen 3 (architecture
    "qwen3"), whose heads are as wide, and whose output is a matrix of its own. With architecture
    "qwen2moe" or "qwen3moe" each layer has experts, `inner` is their width, and `routed` is how
    many of them a token goes through."""

    layers: int = 2
    width: int = 256
    inner: int = 512
    heads: int = 4
    kv_heads: int = 2
    vocab: int = 128
    context: int = 128
    architecture: str = "llama"
    experts: int = 8
    routed: int = 2

    @property
    def is_qwen(self) -> bool:
        return self.architecture.startswith("qwen")

    @property
    def has_experts(self) -> bool:
        return self.architecture.endswith("moe")


MIXED = "Q4_K_M"
"""Q4_K, and Q6_K for the output and for some layers' values and `ffn_down`, as llama.cpp mixes."""


def kind_of(kind: Kind | str, name: str, layers: int) -> Kind:
    """The kind of one matrix of a model of one kind, or mixed."""
    if isinstance(kind, Kind):
        return kind
    if kind != MIXED:
        return Kind[kind]
    if name.startswith(("output", "token_embd")):
        return Kind.Q6_K
    _, layer, part = name.split(".")
    n, eighth = int(layer), layers // 8
    more = n < eighth or n >= 7 * layers // 8 or (n - eighth) % 3 == 2
    return Kind.Q6_K if more and part in ("attn_v", "ffn_down", "ffn_down_exps") else Kind.Q4_K


def write_llama(
    file: Path, kind: Kind | str, shape: Shape | None = None, scale: float = 0.03
) -> None:
    """A random model whose matrices are of one kind, or mixed (`MIXED`). scale: of their numbers.

    Matrices are made and written one by one.
    """
    shape = shape or Shape()
    writer = gguf.GGUFWriter(file, shape.architecture)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    if shape.is_qwen:
        writer.add_key_length(shape.width // shape.heads)
        writer.add_value_length(shape.width // shape.heads)
    if shape.has_experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.routed)
        writer.add_expert_feed_forward_length(shape.inner)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocab)
    writer.add_tokenizer_model("gpt2")
    letters = [chr(ord("0") + n) for n in range(64)]
    writer.add_token_list([*letters, "ab", *(f"<{n}>" for n in range(65, shape.vocab))])
    writer.add_token_types([1] * shape.vocab)
    writer.add_token_merges(["a b"])
    matrices, others = _matrices(shape), _others(shape)
    kinds = {name: kind_of(kind, name, shape.layers) for name in matrices}
    for name, (*rows, width) in matrices.items():
        numbers, size = gguf.GGML_QUANT_SIZES[kinds[name]]
        row_bytes = width // numbers * size
        writer.add_tensor_info(
            f"{name}.weight",
            (*rows, row_bytes),
            np.dtype(np.uint8),
            prod(rows) * row_bytes,
            raw_dtype=kinds[name],
        )
    for name, values in others.items():
        writer.add_tensor_info(name, values.shape, values.dtype, values.nbytes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for seed, (name, (*rows, width)) in enumerate(matrices.items()):
        packed = random_weight(kinds[name], prod(rows), width, scale, seed)
        writer.write_tensor_data(packed.view(np.uint8).reshape(len(packed), -1))
    for values in others.values():
        writer.write_tensor_data(values)
    writer.close()


def _matrices(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Their sizes, (rows, width), or (experts, rows, width)."""
    width, inner = shape.width, shape.inner
    narrow = width // shape.heads * shape.kv_heads
    sizes: dict[str, tuple[int, ...]] = {
        "attn_q": (width, width),
        "attn_k": (narrow, width),
        "attn_v": (narrow, width),
        "attn_output": (width, width),
    }
    mlp = {"ffn_gate": (inner, width), "ffn_up": (inner, width), "ffn_down": (width, inner)}
    if shape.has_experts:
        sizes |= {f"{name}_exps": (shape.experts, *size) for name, size in mlp.items()}
    if shape.architecture == "qwen2moe":
        sizes |= {f"{name}_shexp": size for name, size in mlp.items()}
    if not shape.has_experts:
        sizes |= mlp
    made = {f"blk.{n}.{name}": size for n in range(shape.layers) for name, size in sizes.items()}
    made["token_embd"] = (shape.vocab, width)
    if shape.is_qwen:
        made["output"] = (shape.vocab, width)
    return made


def _others(shape: Shape) -> dict[str, np.ndarray]:
    """Norms, which are ones, and random biases and routers, by the names of their tensors."""
    random = np.random.default_rng(0)
    width, head = shape.width, shape.width // shape.heads
    of_layer: dict[str, tuple[int, ...]] = {"attn_norm": (width,), "ffn_norm": (width,)}
    if shape.architecture.startswith("qwen3"):
        of_layer |= {"attn_q_norm": (head,), "attn_k_norm": (head,)}
    if shape.has_experts:
        of_layer["ffn_gate_inp"] = (shape.experts, width)
    if shape.architecture == "qwen2moe":
        of_layer["ffn_gate_inp_shexp"] = (width,)
    made = {
        f"blk.{n}.{name}.weight": np.ones(size, np.float32)
        if name.endswith("norm")
        else random.standard_normal(size, np.float32)
        for n in range(shape.layers)
        for name, size in of_layer.items()
    }
    if shape.architecture.startswith("qwen2"):
        biases = {"attn_q": width, "attn_k": head * shape.kv_heads, "attn_v": head * shape.kv_heads}
        made |= {
            f"blk.{n}.{name}.bias": random.standard_normal(size, np.float32)
            for n in range(shape.layers)
            for name, size in biases.items()
        }
    return made | {"output_norm.weight": np.ones(width, np.float32)}
