"""Random Llamas in .gguf files, their weights in any of the kinds that stay as they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

FACTORS = {
    Kind.Q4_0: ([0], 5),
    Kind.Q4_1: ([0, 2], 9),
    Kind.Q8_0: ([0], 74),
    Kind.Q4_K: ([0, 2], 320),
    Kind.Q5_K: ([0, 2], 640),
    Kind.Q6_K: ([208], 1360),
}
"""Where in a block the factors of 16 bits lie, and what these are multiplied with on average."""


def random_weight(kind: Kind, rows: int, width: int, scale: float, seed: int = 0) -> np.ndarray:
    """Rows as bytes; for kinds of blocks random bytes. scale: of the numbers."""
    random = np.random.default_rng(seed)
    if kind not in FACTORS:
        numbers = scale * random.standard_normal((rows, width), np.float32)
        return gguf.quantize(numbers, kind)
    numbers_of, size = gguf.GGML_QUANT_SIZES[kind]
    packed = random.integers(0, 256, (rows, width // numbers_of, size), np.uint8)
    places, average = FACTORS[kind]
    for place in places:
        factors = scale / average * random.standard_normal(packed.shape[:2], np.float32)
        packed[:, :, place : place + 2] = factors.astype(np.float16)[..., None].view(np.uint8)
    return packed.reshape(rows, -1)


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama, its output tied to the embedding."""

    layers: int = 2
    width: int = 256
    inner: int = 512
    heads: int = 4
    kv_heads: int = 2
    vocab: int = 128
    context: int = 128


def write_llama(file: Path, kind: Kind, shape: Shape | None = None, scale: float = 0.03) -> None:
    """A random Llama whose matrices are of one kind. scale: of their numbers."""
    shape = shape or Shape()
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocab)
    writer.add_tokenizer_model("gpt2")
    letters = [chr(ord("0") + n) for n in range(64)]
    writer.add_token_list([*letters, "ab", *(f"<{n}>" for n in range(65, shape.vocab))])
    writer.add_token_types([1] * shape.vocab)
    writer.add_token_merges(["a b"])
    width, inner = shape.width, shape.inner
    narrow = width // shape.heads * shape.kv_heads
    sizes = {"attn_q": (width, width), "attn_k": (narrow, width), "attn_v": (narrow, width)}
    sizes |= {"attn_output": (width, width), "ffn_gate": (inner, width), "ffn_up": (inner, width)}
    sizes |= {"ffn_down": (width, inner)}
    matrices = {
        f"blk.{n}.{name}": size for n in range(shape.layers) for name, size in sizes.items()
    }
    matrices["token_embd"] = (shape.vocab, width)
    for seed, (name, size) in enumerate(matrices.items()):
        packed = random_weight(kind, *size, scale, seed)
        writer.add_tensor(f"{name}.weight", packed, raw_dtype=kind)
    norms = [f"blk.{n}.{name}_norm" for n in range(shape.layers) for name in ("attn", "ffn")]
    for name in (*norms, "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
