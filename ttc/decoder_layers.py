"""A model's decoder layers, found by their attention and not by their names."""

from __future__ import annotations

from typing import Any

from torch import nn

from ttc.errors import UnsupportedModel

LARGE = 0.1
"""The share of a layer's weights that a large matrix holds at least."""


def decoder_layers(model: Any) -> list[nn.Module]:
    """The modules that hold attention layer 0, 1, 2, ..., side by side in one list.

    Raises UnsupportedModel for a model without such a list.
    """
    count = model.config.get_text_config().num_hidden_layers
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model  # not what encodes images
    for module in (*decoder.modules(), *model.modules()):
        if isinstance(module, nn.ModuleList) and len(module) >= count:
            layers = list(module)[:count]
            if all(any(getattr(m, "layer_idx", None) == i for m in layer.modules()) for i, layer in enumerate(layers)):
                return layers
    raise UnsupportedModel(f"{type(model).__name__} has no list of its {count} decoder layers")


def large_linears(layer: nn.Module) -> dict[str, nn.Linear]:
    """The linear layers inside a decoder layer that hold much of its weights, by name."""
    whole = sum(weight.numel() for weight in layer.parameters())
    return {
        name: module
        for name, module in layer.named_modules()
        if type(module) is nn.Linear and module.weight.numel() >= LARGE * whole
    }
