"""What the benchmarks' tests run on: a tiny model in a folder, and a file with rows of GSM8K's
form."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ttc.model.loading.load import load_tokenizer


def save_tiny_model(folder: Path, context: int = 1024, layers: int = 2) -> str:
    """A random model with the default model's tokenizer, which ends no text. Returns the folder."""
    shutil.copytree(tiny_model(context, layers).name, folder, dirs_exist_ok=True)
    return str(folder)


@cache
def tiny_model(context: int, layers: int) -> TemporaryDirectory[str]:
    """That model's folder, written once in a process, and for reading alone."""
    folder = TemporaryDirectory()
    tokenizer = load_tokenizer("smollm2-135m")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        bos_token_id=None,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder.name)
    tokenizer.save_pretrained(folder.name)
    return folder


def write_rows(file: Path) -> Path:
    """Three questions with GSM8K's columns. Returns the file."""
    lines = [
        {"question": f"What is {n} plus {n}?", "answer": f"It is {2 * n}.\n#### {2 * n}"}
        for n in (3, 4, 5)
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file
