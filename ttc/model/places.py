"""Which devices the weights of a loaded model are on, where Accelerate has put them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ttc.errors import UnsupportedModel

WAYS_OUT = (
    "For a model larger than its devices: placement=split keeps the first layers and their KV on "
    "the host, placement=streamed keeps all weights there, both beside one device; or a server "
    "with tensor parallelism, and backend=openai"
)


def place_of(place: Any) -> Any:
    """A device of a map; a name that is none stays as it is."""
    try:
        device = torch.device("cuda", place) if isinstance(place, int) else torch.device(place)
    except RuntimeError:
        return place
    return torch.device("cuda", 0) if device == torch.device("cuda") else device


def is_spread(model: Any) -> bool:
    return len(set(map(place_of, _map_of(model).values()))) > 1


def check_places(model: Any) -> None:
    """Raise UnsupportedModel for weights that Accelerate keeps on the host or a disk."""
    places = sorted({str(place) for place in _map_of(model).values()})
    if any(weight.is_meta for weight in model.parameters()):
        places = places or ["the host"]
    elif not is_spread(model) or not {"cpu", "disk"}.intersection(places):
        return
    raise UnsupportedModel(
        f"Accelerate keeps weights of this {type(model).__name__} in places where it does not "
        f"compute: {', '.join(places)}. {WAYS_OUT}"
    )


def _map_of(model: Any) -> Mapping[str, Any]:
    return getattr(model, "hf_device_map", None) or {}
