"""A model's decoder layers, found by their attention and not by their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from ttc.errors import UnsupportedModel

NUMBERS = ("layer_idx", "layer_id")
"""What attention and recurrent modules call the number of their layer."""


def decoder_layers(model: Any) -> list[nn.Module]:
    """The modules that hold attention layer 0, 1, 2, ..., side by side in one list; each may hold
    several in a row.

    Raises UnsupportedModel for a model without such a list.
    """
    count = model.config.get_text_config().num_hidden_layers
    # not what encodes images
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    lists = [*_lists(decoder), *_lists(model)]
    for suits in (_in_order, _unnumbered):
        for layers in (whole[:count] for whole in lists):
            if count % len(layers) == 0 and suits(layers, count):
                return layers
    raise UnsupportedModel(f"{type(model).__name__} has no list of its {count} decoder layers")


def layer_stacks(model: Any) -> list[list[nn.Module]]:
    """The lists of modules that hold attention layers, each from number 0 on, of a model with
    several such lists."""
    return [layers for layers in _lists(model) if _in_order(layers, len(layers))]


def _lists(model: nn.Module) -> list[list[nn.Module]]:
    return [
        list(module)
        for module in model.modules()
        if isinstance(module, nn.ModuleList) and len(module)
    ]


def _in_order(layers: Sequence[nn.Module], count: int) -> bool:
    """Whether the first of `layers` holds the first of `count` numbers, the second the next, ..."""
    each = count // len(layers)
    return all(
        {*range(n * each, (n + 1) * each)} <= {*_numbers(layer)} for n, layer in enumerate(layers)
    )


def _unnumbered(layers: Sequence[nn.Module], count: int) -> bool:
    """Whether `count` layers hold attention modules without numbers (the first GPT)."""
    if len(layers) != count or any([*_numbers(layer)] for layer in layers):
        return False
    return all(map(_has_attention, layers))


def _has_attention(layer: nn.Module) -> bool:
    return any(type(module).__name__.endswith("Attention") for module in layer.modules())


def _numbers(layer: nn.Module) -> Iterator[int]:
    for module in layer.modules():
        for name in NUMBERS:
            if isinstance(number := getattr(module, name, None), int):
                yield number
