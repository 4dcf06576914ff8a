"""Engines over small random models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.helpers.models import small
from tests.helpers.thinking import thinker
from tests.helpers.tokenizers import WORDS, Letters, Numbers, Words
from ttc import Engine, Sampling
from ttc.branch import Branch

GREEDY = Sampling(temperature=0)


def make_engine(layers: int = 2, context: int = 64, **options: Any) -> Engine:
    return Engine(small(layers, context), Letters(), **options)


def words_engine(tokenizer: type[Words] = Words) -> Engine:
    """Its tokens are whole words, its questions are answered with yes and no."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.5,
        eos_token_id=0,
        bos_token_id=None,
    )
    return Engine(LlamaForCausalLM(config), tokenizer())


def numbers_engine() -> Engine:
    """Its texts are numbers, some of which end soon."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=24,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        initializer_range=0.6,
        eos_token_id=0,
        bos_token_id=None,
    )
    return Engine(LlamaForCausalLM(config), Numbers())


def bytes_engine(tokenizer: Any = None, context: int = 512, **options: Any) -> Engine:
    """A random Llama over a token for each byte, and the tokenizer's own."""
    tokenizer = tokenizer or thinker()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=context,
        initializer_range=0.3,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return Engine(LlamaForCausalLM(config).eval(), tokenizer, **options)


def forked(engine: Engine, n: int) -> list[Branch]:
    """`n` branches of one short prompt."""
    root = engine.root([1, 2, 3])
    branches = engine.fork(root, n)
    engine.release([root])
    return branches


def fail_at(engine: Engine, call: int) -> Callable[..., torch.Tensor]:
    """`engine.runner.forward`, but its `call`-th call from now on raises."""
    forward, calls = engine.runner.forward, iter(range(1, 1000))

    def failing(*args: Any) -> torch.Tensor:
        if next(calls) == call:
            raise RuntimeError("device lost")
        return forward(*args)

    return failing
