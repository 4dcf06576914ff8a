"""Loading a model straight to where a placement wants its weights."""

from __future__ import annotations

import os
from typing import Any

import torch

from ttc.model.loading import chosen_device, load
from ttc.placement.base import PlacedRunner, Placement


def load_placed(
    name: str | os.PathLike[str],
    placement: Placement,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
) -> tuple[Any, Any, PlacedRunner]:
    """(model, tokenizer, runner). Weights are read one by one to where they stay; none is read where the placement
    refuses the model. name, device, dtype: see `ttc.model.loading.load`."""
    decided: list[int] = []

    def device_map(empty: Any, place: torch.device) -> dict[str, str]:
        decided.append(placement.decide(empty, place))
        return placement.device_map(empty, place, decided[0])

    model, tokenizer = load(name, device=device, dtype=dtype, device_map=device_map)
    return model, tokenizer, placement.place(model, chosen_device(device), *decided)
