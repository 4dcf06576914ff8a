"""What some models need in a pass besides tokens and positions, and what of them does not run.

Modules that count positions by the length of transformers' cache (Llama 4) get a cache that keeps
nothing and says how long each row's sequence is. Indexers choose the tokens that a layer attends to
(DeepSeek-V3.2, GLM-5); the engine serves such a model up to the length where they choose all. Its
indexers do not run then, and their layers' mask is one element, which hides nothing.
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
    """What the passes of a model need besides tokens and positions; false where that is nothing."""

    def __init__(self, model: Any):
        self._indexers = _indexers(model)
        self._arguments: dict[str, Any] = {}
        if self._indexers:
            nothing_hidden = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=model.device)
            self._arguments["attention_mask"] = nothing_hidden
        if any(asks_for_length(module) for module in model.modules()):
            self._arguments["past_key_values"] = _Lengths()

    def __bool__(self) -> bool:
        return bool(self._arguments)

    @contextmanager
    def running(self) -> Iterator[dict[str, Any]]:
        """A pass runs within, with these arguments: indexers choose all tokens."""
        if not self._indexers:
            yield self._arguments
            return
        from ttc.model.replaced_functions import running_as

        with running_as(self._indexers, map(_chooses_all, self._indexers)):
            yield self._arguments


# ---------------------------------------------------------------- indexers


def all_chosen(model: Any) -> int | None:
    """The most tokens of which a model's indexers choose all; None for a model without indexers.

    Raises UnsupportedModel where that cannot be told.
    """
    return min((_all_chosen(indexer) for indexer in _indexers(model)), default=None)


def _indexers(model: Any) -> list[nn.Module]:
    return [module for module in model.modules() if type(module).__name__.endswith("Indexer")]


def _all_chosen(indexer: Any) -> int:
    names = ("index_topk", "topk_blocks", "block_size", "token_budget", "compress_ratio")
    tokens, blocks, block, budget, ratio = (getattr(indexer, name, 0) for name in names)
    if tokens:
        return int(tokens)
    if blocks and block:  # the last block counts as far as it goes
        return int(blocks * block)
    if budget and ratio:  # whole blocks, and what follows the last of them
        return int((budget // ratio + 1) * ratio - 1)
    raise UnsupportedModel(
        f"its {type(indexer).__name__} chooses which tokens to attend to, and the engine does not "
        "know up to how many tokens it chooses all"
    )


def _chooses_all(indexer: nn.Module) -> Callable[..., Any]:
    """What an indexer runs instead of itself: it gives its mask back, which hides nothing."""
    signature = inspect.signature(type(indexer).forward)

    def chooses_all(*args: Any, **kwargs: Any) -> Any:
        return signature.bind(indexer, *args, **kwargs).arguments.get("attention_mask")

    return chooses_all


# ---------------------------------------------------------------- positions counted by a cache


def asks_for_length(module: nn.Module) -> bool:
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return hasattr(module, "layer_idx") and code is not None and "get_seq_length" in code.co_names


class _Offsets:
    """How far each row's position is beyond its number in the pass; added to these numbers."""

    def __init__(self, positions: Sequence[int] | Tensor):
        counted = torch.as_tensor(positions)
        self.offsets = counted - torch.arange(len(counted), device=counted.device)

    def __radd__(self, numbers: Tensor) -> Tensor:
        return numbers + self.offsets.to(numbers.device)


class _Lengths(Cache):
    """A cache that keeps nothing; the tokens before each row are those of the plan's positions."""

    def __init__(self) -> None:
        super().__init__(layers=[])

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        positions = getattr(current_plan(), "positions", None)
        return 0 if positions is None else _Offsets(positions)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return key_states, value_states
