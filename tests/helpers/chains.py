"""A model whose every token decides the next one, so that a test knows what it writes."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def chain(text: str, tokenizer: Any, after: str = ":") -> LlamaForCausalLM:
    """A model that writes `text` over and over after each `after`. No letter may come twice in both
    together.

    tokenizer: with a token for each letter.
    """
    letters = [tokenizer.encode(letter, add_special_tokens=False) for letter in after + text]
    numbers = [number for (number,) in letters]
    assert len(set(numbers)) == len(numbers)
    size = max(len(tokenizer), *numbers) + 1
    width = size + size % 2
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=width,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for weights in model.parameters():
            weights.zero_()
        model.model.norm.weight.fill_(1)
        model.model.embed_tokens.weight[:, :size] = torch.eye(size)
        for now, then in zip(numbers, [*numbers[1:], numbers[0]], strict=True):
            model.lm_head.weight[then, now] = 10
    return model.eval().requires_grad_(False)
