"""Accelerate's device maps: those that name one device are taken, the others refused with the ways out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ttc.errors import InvalidInput, UnsupportedModel

DeviceMap = str | int | torch.device | Mapping[str, Any]
"""What transformers takes as `device_map`: a device, the name of a strategy, or each module's device by its name."""
STRATEGIES = ("auto", "balanced", "balanced_low_0", "sequential")
WAYS_OUT = (
    "The engine keeps KV on one device. For a model larger than it: placement=split keeps the first layers and their "
    "KV on the host, placement=streamed keeps all weights there; for several GPUs: a server with tensor parallelism, "
    "and backend=openai"
)


def one_device(device_map: DeviceMap, device: str | int | torch.device | None = None) -> Any:
    """The device that a map puts all weights on. A strategy means the one GPU of a machine, or its CPU without one.

    device: what else was asked for. Raises InvalidInput for both, and for a map of several devices.
    """
    if device is not None and device != "auto":
        raise InvalidInput(f"device={str(device)!r} and device_map={device_map!r} were both given; give one of them")
    if isinstance(device_map, str) and device_map in STRATEGIES:
        if (count := torch.cuda.device_count()) > 1:
            raise InvalidInput(
                f"device_map={device_map!r} would spread the weights over {count} GPUs; name one of them, as "
                f"device_map='cuda:0'. {WAYS_OUT}"
            )
        return "auto"
    if isinstance(device_map, Mapping):
        places: dict[str, Any] = {str(place): place for place in device_map.values()}
        if not places:
            raise InvalidInput("device_map={} names no device; leave it out, or give {'': 'cuda:0'}")
        if len(places) > 1:
            raise InvalidInput(f"device_map puts weights in {len(places)} places: {', '.join(places)}. {WAYS_OUT}")
        (place,) = places.values()
        return place
    return device_map


def check_one_device(model: Any) -> None:
    """Raise UnsupportedModel for a model that Accelerate has spread over devices, or put on the host or a disk."""
    places = sorted({str(place) for place in (getattr(model, "hf_device_map", None) or {}).values()})
    if any(weight.is_meta for weight in model.parameters()):
        places = places or ["the host"]
    elif len(places) < 2:
        return
    raise UnsupportedModel(
        f"Accelerate keeps the weights of this {type(model).__name__} in other places than one device: "
        f"{', '.join(places)}. {WAYS_OUT}"
    )
