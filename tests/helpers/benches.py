"""What the benchmarks' tests run on: a tiny model in a folder, and a file with rows of GSM8K's
form."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ttc.model.loading import load_tokenizer


def save_tiny_model(folder: Path, context: int = 1024) -> str:
    """A random model of two layers with the default model's tokenizer, which ends no text. Returns
    the folder."""
    tokenizer = load_tokenizer("smollm2-135m")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        bos_token_id=None,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def write_rows(file: Path) -> Path:
    """Three questions with GSM8K's columns. Returns the file."""
    lines = [
        {"question": f"What is {n} plus {n}?", "answer": f"It is {2 * n}.\n#### {2 * n}"}
        for n in (3, 4, 5)
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file
