"""Models with layers enough to be placed."""

from __future__ import annotations

import copy
from typing import Any

import torch
import transformers as hf

from tests.helpers.models import COMMON, FAMILIES

LAYERS = 4


def deeper(family: str, **settings: Any) -> Any:
    """A small random model of a supported family with four layers; of sliding and full ones, two of each."""
    config_class, extra = FAMILIES[family]
    options: dict[str, Any] = COMMON | extra | {"num_hidden_layers": LAYERS}
    if "layer_types" in options:
        options["layer_types"] = 2 * options["layer_types"]
    if "n_layer" in options:
        options["n_layer"] = LAYERS
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(config_class(**(options | settings)), dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    return copy.deepcopy(model).requires_grad_(False)
