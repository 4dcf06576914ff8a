"""Which parts of a model lie on which side of a split, and what both sides need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from ttc.decoder_layers import decoder_layers
from ttc.errors import UnsupportedModel, refusing
from ttc.model.loading.partition import Partition, partition
from ttc.model.stored import stored_bytes

_PARTITIONS: WeakKeyDictionary[Any, Partition] = WeakKeyDictionary()


def partition_of(model: Any) -> Partition:
    """A model's partition, counted once."""
    if model not in _PARTITIONS:
        stored = stored_bytes(model)
        _PARTITIONS[model] = partition(model.config, model.dtype, type(model), stored)
    return _PARTITIONS[model]


def split_layers(model: Any) -> list[nn.Module]:
    """The decoder layers. Raises UnsupportedModel where they cannot lie in different places."""
    with refusing(
        UnsupportedModel,
        "{error}, one of which runs after the other, so it cannot be split; placement=streamed may "
        "take it",
        UnsupportedModel,
    ):
        layers = decoder_layers(model)
    owners: dict[nn.Module, int] = {}
    for n, layer in enumerate(layers):
        for module in layer.modules():
            owner = owners.setdefault(module, n)
            if owner != n and weights_of([module]):
                raise UnsupportedModel(
                    f"layers {owner} and {n} of {type(model).__name__} are partly the same "
                    "modules, which cannot lie in two places; placement=streamed takes such a model"
                )
    return layers


def host_names(model: Any, rest: Mapping[str, nn.Module], k: int) -> set[str]:
    """Which of the modules outside the layers lie on the host: those that run before the device's
    layers do. Of what is not called as a module, tables and what has no weights; rotations,
    whenever they are needed first.

    rest: these modules, by name. k: units on the host.
    """
    if not k:
        return set()
    begun = partition_of(model).begun
    names = set[str]()
    for name, module in rest.items():
        has_weights = bool(weights_of([module]))
        uncalled = k if has_weights and not isinstance(module, nn.Embedding) else 0
        first, last = begun.get(name, (0, uncalled))
        if (last if has_weights else first) < k:
            names.add(name)
    return names


def weights_of(modules: Iterable[nn.Module]) -> set[int]:
    """The weights of modules without their parts, by id."""
    return {id(weight) for module in modules for weight in module.parameters(recurse=False)}


def take_apart(
    modules: Iterable[nn.Module], others: Iterable[nn.Module], device: torch.device
) -> None:
    """Give modules copies on `device` of the weights that they have in common with others."""
    theirs = weights_of(others)
    copies: dict[int, nn.Parameter] = {}
    for module in modules:
        for name, weight in list(module.named_parameters(recurse=False)):
            if id(weight) in theirs:
                if id(weight) not in copies:
                    copy = weight.data.to(device, copy=True)
                    copies[id(weight)] = nn.Parameter(copy, requires_grad=False)
                setattr(module, name, copies[id(weight)])
