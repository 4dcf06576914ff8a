"""What some models are given in a pass beside tokens and positions, and what of them does not run in one.

Modules that count positions by the length of transformers' cache (Llama 4's attention) get a cache that keeps nothing
and says how long each row's sequence is. Indexers choose the tokens that a layer attends to (DeepSeek-V3.2, GLM-5). Up
to some number of tokens they choose all, and up to it the engine serves such a model: its indexers do not run, and the
mask that their layers ask for is one element, which hides nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from ttc.attention.hf_hook import current_plan
from ttc.errors import UnsupportedModel


class ExtraArguments:
    """What the passes of a model need beside tokens and positions; false where that is nothing."""

    def __init__(self, model: Any):
        self._indexers = [(indexer, _chooses_all(indexer)) for indexer in _indexers(model)]
        self._arguments: dict[str, Any] = {}
        if self._indexers:
            self._arguments["attention_mask"] = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=model.device)
        if any(asks_for_length(module) for module in model.modules()):
            self._arguments["past_key_values"] = _Lengths()

    def __bool__(self) -> bool:
        return bool(self._arguments)

    @contextmanager
    def running(self) -> Iterator[dict[str, Any]]:
        """A pass runs within, with these arguments: indexers choose all tokens."""
        before = [indexer.__dict__.get("forward") for indexer, _ in self._indexers]
        for indexer, chooses_all in self._indexers:
            indexer.__dict__["forward"] = chooses_all
        try:
            yield self._arguments
        finally:
            for (indexer, _), forward in zip(self._indexers, before, strict=True):
                del indexer.__dict__["forward"]
                if forward is not None:
                    indexer.__dict__["forward"] = forward


# ---------------------------------------------------------------- indexers


def all_chosen(model: Any) -> int | None:
    """The most tokens of a sequence of which the model's indexers choose all; None for a model without indexers.

    Raises UnsupportedModel where that cannot be told.
    """
    return min((_all_chosen(indexer) for indexer in _indexers(model)), default=None)


def _indexers(model: Any) -> list[nn.Module]:
    return [module for module in model.modules() if type(module).__name__.endswith("Indexer")]


def _all_chosen(indexer: nn.Module) -> int:
    has: Callable[[str], Any] = lambda name: getattr(indexer, name, None)  # noqa: E731
    if has("index_topk"):  # tokens
        return int(has("index_topk"))
    if has("topk_blocks") and has("block_size"):  # blocks of tokens, the last one as far as it goes
        return int(has("topk_blocks") * has("block_size"))
    if has("token_budget") and has("compress_ratio"):  # whole blocks of tokens, and what follows the last of them
        return int((has("token_budget") // has("compress_ratio") + 1) * has("compress_ratio") - 1)
    raise UnsupportedModel(
        f"its {type(indexer).__name__} chooses which tokens to attend to, and the engine does not know up to how many "
        "tokens it chooses all"
    )


def _chooses_all(indexer: nn.Module) -> Callable[..., Any]:
    """What an indexer runs instead of itself: it gives its mask back, which hides nothing, or nothing without one."""
    signature = inspect.signature(indexer.forward)

    def chooses_all(*args: Any, **kwargs: Any) -> Any:
        return signature.bind(*args, **kwargs).arguments.get("attention_mask")

    return chooses_all


# ---------------------------------------------------------------- positions counted by a cache


def asks_for_length(module: nn.Module) -> bool:
    """Whether a layer's module asks the cache how long the sequence is."""
    forward = inspect.unwrap(type(module).forward)
    code = getattr(forward, "__code__", None)
    return hasattr(module, "layer_idx") and code is not None and "get_seq_length" in code.co_names


class _Offsets:
    """What each row's position is more than its number in the pass. It is added to the numbers, where they lie."""

    def __init__(self, positions: Sequence[int] | Tensor):
        counted = torch.as_tensor(positions)
        self.offsets = counted - torch.arange(len(counted), device=counted.device)

    def __radd__(self, numbers: Tensor) -> Tensor:
        return numbers + self.offsets.to(numbers.device)


class _Lengths(Cache):
    """A cache that keeps nothing; the tokens before each row are those that the plan's positions count."""

    def __init__(self) -> None:
        super().__init__(layers=[])

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        positions = getattr(current_plan(), "positions", None)
        return 0 if positions is None else _Offsets(positions)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Keys and values as they are: the plan stores them."""
        return key_states, value_states
