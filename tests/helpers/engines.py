"""Engines over small random models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


def random_llama(
    vocab: int, context: int, spread: float, *, eos: int | None = 0, layers: int = 2
) -> Any:
    """A small Llama with random weights; spread: their standard deviation."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=context,
        initializer_range=spread,
        eos_token_id=eos,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config)


def words_engine(tokenizer: type[Words] = Words) -> Engine:
    """Its tokens are whole words, its questions are answered with yes and no."""
    return Engine(random_llama(len(WORDS), 64, 0.5), tokenizer())


def numbers_engine() -> Engine:
    """Its texts are numbers, some of which end soon."""
    return Engine(random_llama(24, 256, 0.6), Numbers())


def bytes_engine(tokenizer: Any = None, context: int = 512, **options: Any) -> Engine:
    """A random Llama over a token for each byte, and the tokenizer's own."""
    tokenizer = tokenizer or thinker()
    model = random_llama(len(tokenizer), context, 0.3, eos=tokenizer.eos_token_id, layers=1)
    return Engine(model.eval(), tokenizer, **options)


def forked(engine: Engine, n: int) -> list[Branch]:
    """`n` branches of one short prompt."""
    root = engine.root([1, 2, 3])
    branches = engine.fork(root, n)
    engine.release([root])
    return branches


@contextmanager
def at_pass(
    engine: Engine, number: int = 0, act: Callable[[], object] = lambda: None
) -> Iterator[list[int]]:
    """Something happens while the model makes a pass. Gives the rows of each pass."""
    forward, passes = engine.runner.forward, list[int]()

    def counted(tokens: Any, *rest: Any) -> Any:
        passes.append(len(tokens))
        if len(passes) == number:
            act()
        return forward(tokens, *rest)

    engine.runner.forward = counted  # type: ignore[method-assign]
    try:
        yield passes
    finally:
        engine.runner.forward = forward  # type: ignore[method-assign]


def fail_at(engine: Engine, call: int) -> Callable[..., torch.Tensor]:
    """`engine.runner.forward`, but its `call`-th call from now on raises."""
    forward, calls = engine.runner.forward, iter(range(1, 1000))

    def failing(*args: Any) -> torch.Tensor:
        if next(calls) == call:
            raise RuntimeError("device lost")
        return forward(*args)

    return failing
