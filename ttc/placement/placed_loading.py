"""Loading a model, straight to where a placement puts its weights, and what runs it."""

from __future__ import annotations

import os
from typing import Any

import torch

from ttc.model.loading.device_map import Over
from ttc.model.loading.load import chosen_device, load
from ttc.model.runner_choice import RunnerChoice, runner_for
from ttc.model.running.runner import ModelRunner
from ttc.placement.base import PlacedRunner, Placement


def load_runner(
    name: str | os.PathLike[str],
    placement: Placement | None = None,
    runner: RunnerChoice | ModelRunner = "auto",
    over: Over | None = None,
    **how: Any,
) -> tuple[Any, Any, ModelRunner]:
    """(model, tokenizer, runner). placement: None for all weights on the device, or on those of
    `over`. how: see `ttc.model.loading.load`."""
    how["compiled"] = runner in ("auto", "fused")
    if placement is None:
        model, tokenizer = load(name, over=over, **how)
        return model, tokenizer, runner_for(model, runner, pack=True)
    model, tokenizer, placed = load_placed(name, placement, **how)
    return model, tokenizer, placed if runner == "auto" else runner_for(model, runner)


def load_placed(
    name: str | os.PathLike[str],
    placement: Placement,
    *,
    device: str | torch.device | None = None,
    **how: Any,
) -> tuple[Any, Any, PlacedRunner]:
    """(model, tokenizer, runner). Weights are read one by one to where they stay, and none where
    the placement refuses the model. how: see `ttc.model.loading.load`."""
    decided: list[Any] = []

    def place_weights(empty: Any, place: torch.device) -> dict[str, str]:
        decided.append(placement.decide(empty, place))
        return placement.device_map(empty, place, decided[0])

    model, tokenizer = load(name, device=device, place_weights=place_weights, **how)
    return model, tokenizer, placement.place(model, chosen_device(device), *decided)
