"""Accelerate's device maps: of one device, which takes all weights, or of several, where layers run where they lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from accelerate.utils import find_tied_parameters, get_balanced_memory, get_max_memory, infer_auto_device_map

from ttc.errors import InvalidInput, OutOfMemory, UnsupportedModel
from ttc.model.least_time_step import LeastTimeStep

DeviceMap = str | int | torch.device | Mapping[str, Any]
"""What transformers takes as `device_map`: a device, the name of a strategy, or each module's device by its name."""
Over = str | dict[str, torch.device]
"""A map over several devices: the name of a strategy, or each module's device by its name."""
STRATEGIES = ("auto", "balanced", "balanced_low_0", "sequential")
WAYS_OUT = (
    "For a model larger than its devices: placement=split keeps the first layers and their KV on the host, "
    "placement=streamed keeps all weights there, both beside one device; or a server with tensor parallelism, and "
    "backend=openai"
)


def devices_of(device_map: DeviceMap, device: str | int | torch.device | None = None) -> tuple[Any, Over | None]:
    """(device, map): the one device of a map, and None; or the device on which passes begin, and a map over several.

    A strategy means all GPUs of a machine, or its CPU without one. device: what else was asked for. Raises InvalidInput
    for both, for a map that has layers on a processor or a disk beside a device, and for devices that are not here.
    """
    if device is not None and device != "auto":
        raise InvalidInput(f"device={str(device)!r} and device_map={device_map!r} were both given; give one of them")
    if isinstance(device_map, str) and device_map in STRATEGIES:
        return ("cuda:0", device_map) if torch.cuda.device_count() > 1 else ("auto", None)
    if not isinstance(device_map, Mapping):
        return device_map, None
    places = {str(place): place for place in map(_place, device_map.values())}
    if not places:
        raise InvalidInput("device_map={} names no device; leave it out, or give {'': 'cuda:0'}")
    first, *others = places.values()
    if not others:
        return first, None
    for place in places.values():
        _check_device(place, ", ".join(places))
    return first, {name: _place(place) for name, place in device_map.items()}


def _place(place: Any) -> Any:
    """A device of a map; a name that is none stays as it is."""
    try:
        device = torch.device("cuda", place) if isinstance(place, int) else torch.device(place)
    except RuntimeError:
        return place
    return torch.device("cuda", 0) if device == torch.device("cuda") else device


def _check_device(place: Any, places: str) -> None:
    """Raise InvalidInput for what cannot be one of several devices."""
    if not isinstance(place, torch.device) or place.type in ("cpu", "meta"):
        raise InvalidInput(f"device_map puts weights on {place}, in a map of {places}. {WAYS_OUT}")
    if place.type == "cuda" and (place.index or 0) >= (count := torch.cuda.device_count()):
        raise InvalidInput(f"device_map names {place}, and PyTorch finds {count} CUDA devices here")


def weights_over(model: Any, over: Over) -> dict[str, torch.device]:
    """Where the weights of each module go, by its name. model: without weights, on PyTorch's "meta" device.

    Raises OutOfMemory where a strategy finds no room on the GPUs, InvalidInput for a map that does not fit the model,
    and UnsupportedModel for a model that runs on one device alone.
    """
    _check_can_spread(model)
    places = _by_strategy(model, over) if isinstance(over, str) else dict(over)
    kind, names = type(model).__name__, {*dict(model.named_modules()), *model.state_dict()}
    if unknown := [name for name in places if name not in names]:
        raise InvalidInput(f"device_map names {unknown[0]!r}, which a {kind} does not have")
    if missing := [name for name in model.state_dict() if _device_in(places, name) is None]:
        raise InvalidInput(f"device_map has no device for {len(missing)} weights of a {kind}, among them {missing[0]}")
    for tied in find_tied_parameters(model):
        if len({_device_in(places, name) for name in tied}) > 1:
            raise InvalidInput(f"device_map puts {' and '.join(tied)} on different devices, and these are one tensor")
    first = next(iter(places.values()))
    without_weights = {name.rpartition(".")[0] for name, _ in model.named_buffers() if _device_in(places, name) is None}
    return places | dict.fromkeys(without_weights, first)


def _check_can_spread(model: Any) -> None:
    """Raise UnsupportedModel for a model whose modules the engine has to run with other functions, which Accelerate's
    hooks do not allow."""
    if any(LeastTimeStep.of(module) is not None for module in model.modules()):
        raise UnsupportedModel(
            f"a {type(model).__name__} has a least time step (time_step_limit), which the engine applies in its layers "
            "itself, and over several devices Accelerate's hooks keep it from that; give a device_map of one device. "
            f"{WAYS_OUT}"
        )


def _device_in(places: Mapping[str, torch.device], name: str) -> torch.device | None:
    """Where a map puts a weight, by the longest name in it that the weight's name begins with."""
    parts = name.split(".")
    modules = (".".join(parts[:count]) for count in range(len(parts), -1, -1))
    return next((places[module] for module in modules if module in places), None)


def _by_strategy(model: Any, strategy: str) -> dict[str, torch.device]:
    """What Accelerate decides for the GPUs of this machine."""
    whole = sorted(model._no_split_modules or ())
    if strategy == "sequential":
        room = get_max_memory()
    else:
        low_zero = strategy == "balanced_low_0"
        room = get_balanced_memory(model, no_split_module_classes=whole, low_zero=low_zero)
    places = infer_auto_device_map(model, max_memory=room, no_split_module_classes=whole)
    if left := [name for name, place in places.items() if not isinstance(place, int)]:
        raise OutOfMemory(
            f"the GPUs have no room for {len(left)} modules of a {type(model).__name__} in {model.dtype}, the first of "
            f"which is {left[0]}. {WAYS_OUT}"
        )
    return {name: torch.device("cuda", place) for name, place in places.items()}


def is_spread(model: Any) -> bool:
    """Whether Accelerate has put a model's layers on several devices."""
    return len(set(map(_place, (getattr(model, "hf_device_map", None) or {}).values()))) > 1


def check_places(model: Any) -> None:
    """Raise UnsupportedModel for a model that Accelerate keeps on the host or a disk, or there in part."""
    places = sorted({str(place) for place in (getattr(model, "hf_device_map", None) or {}).values()})
    if any(weight.is_meta for weight in model.parameters()):
        places = places or ["the host"]
    elif not is_spread(model) or not {"cpu", "disk"}.intersection(places):
        return
    raise UnsupportedModel(
        f"Accelerate keeps weights of this {type(model).__name__} in places where it does not compute: "
        f"{', '.join(places)}. {WAYS_OUT}"
    )
