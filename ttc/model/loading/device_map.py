"""Accelerate's device maps: of one device, or of several, where layers run where they lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from accelerate.utils import (
    find_tied_parameters,
    get_balanced_memory,
    get_max_memory,
    infer_auto_device_map,
)

from ttc.errors import InvalidInput, OutOfMemory, UnsupportedModel, refuse
from ttc.model.places import WAYS_OUT, place_of
from ttc.parts import handlers

DeviceMap = str | int | torch.device | Mapping[str, Any]
"""What transformers takes: a device, the name of a strategy, or each module's device by its
name."""
Over = str | dict[str, torch.device]
"""A map over several devices: the name of a strategy, or each module's device by its name."""
STRATEGIES = ("auto", "balanced", "balanced_low_0", "sequential")


def devices_of(
    device_map: DeviceMap, device: str | int | torch.device | None = None
) -> tuple[Any, Over | None]:
    """(device, None) for a map of one device; (the device where passes begin, map) for several.

    A strategy means all GPUs of a machine, or its CPU without one. device: what else was asked for.
    Raises InvalidInput for both, for layers on a processor or a disk beside a device, and for
    devices that are not here.
    """
    if device is not None and device != "auto":
        raise InvalidInput(
            f"device={str(device)!r} and device_map={device_map!r} were both given; give one of "
            "them"
        )
    if isinstance(device_map, str) and device_map in STRATEGIES:
        return ("cuda:0", device_map) if torch.cuda.device_count() > 1 else ("auto", None)
    if not isinstance(device_map, Mapping):
        return device_map, None
    places = {name: place_of(place) for name, place in device_map.items()}
    if not places:
        raise InvalidInput("device_map={} names no device; leave it out, or give {'': 'cuda:0'}")
    different = list(dict.fromkeys(places.values()))
    if len(different) == 1:
        return different[0], None
    count = torch.cuda.device_count()
    names = ", ".join(map(str, different))
    for place in different:
        slow = not isinstance(place, torch.device) or place.type in ("cpu", "meta")
        refuse(
            {
                f"device_map puts weights on {place}, in a map of {names}. {WAYS_OUT}": slow,
                f"device_map names {place}, and PyTorch finds {count} CUDA devices here": (
                    not slow and place.type == "cuda" and (place.index or 0) >= count
                ),
            }
        )
    return different[0], places


def weights_over(model: Any, over: Over) -> dict[str, torch.device]:
    """Where the weights of each module go, by its name. model: on PyTorch's "meta" device.

    Raises OutOfMemory where a strategy finds no room on the GPUs, InvalidInput for a map that does
    not fit the model, UnsupportedModel for a model that runs on one device alone.
    """
    kind = type(model).__name__
    for why_one_device in handlers("one device").values():
        if reason := why_one_device(model):
            raise UnsupportedModel(f"{reason}; give a device_map of one device. {WAYS_OUT}")
    places = _by_strategy(model, over) if isinstance(over, str) else dict(over)
    weights = model.state_dict()
    names = {name for name, _ in model.named_modules()}.union(weights)
    missing = [name for name in weights if _device_in(places, name) is None]
    refuse(
        {
            **{
                f"device_map names {name!r}, which a {kind} does not have": name not in names
                for name in places
            },
            f"device_map has no device for {len(missing)} weights of a {kind}, among them "
            f"{', '.join(missing[:1])}": missing,
            **{
                f"device_map puts {' and '.join(tied)} on different devices, and these are one "
                "tensor": len({_device_in(places, name) for name in tied}) > 1
                for tied in find_tied_parameters(model)
            },
        }
    )
    first = next(iter(places.values()))
    buffers = [name for name, _ in model.named_buffers() if _device_in(places, name) is None]
    return places | {name.rpartition(".")[0]: first for name in buffers}


def _device_in(places: Mapping[str, torch.device], name: str) -> torch.device | None:
    while name and name not in places:
        name = name.rpartition(".")[0]
    return places.get(name)


def _by_strategy(model: Any, strategy: str) -> dict[str, torch.device]:
    whole = sorted(model._no_split_modules or ())
    room = get_max_memory()
    if strategy != "sequential":
        low_zero = strategy == "balanced_low_0"
        room = get_balanced_memory(model, no_split_module_classes=whole, low_zero=low_zero)
    places = infer_auto_device_map(model, max_memory=room, no_split_module_classes=whole)
    if left := [name for name, place in places.items() if not isinstance(place, int)]:
        raise OutOfMemory(
            f"the GPUs have no room for {len(left)} modules of a {type(model).__name__} in "
            f"{model.dtype}, the first of which is {left[0]}. {WAYS_OUT}"
        )
    return {name: torch.device("cuda", place) for name, place in places.items()}
