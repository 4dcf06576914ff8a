"""Engines over small random models."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.helpers.models import small
from tests.helpers.tokenizers import WORDS, Letters, Words
from ttc import Engine, Sampling

GREEDY = Sampling(temperature=0)


def make_engine(layers: int = 2, context: int = 64, **options: Any) -> Engine:
    return Engine(small(layers, context), Letters(), **options)


def words_engine(tokenizer: type[Words] = Words) -> Engine:
    """Its tokens are whole words, its questions are answered with yes and no."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, initializer_range=0.5, eos_token_id=0, bos_token_id=None,
    )  # fmt: skip
    return Engine(LlamaForCausalLM(config), tokenizer())
