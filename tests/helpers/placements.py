"""Models with layers enough to be placed, engines over them, and what placements are chosen by."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import transformers as hf

from tests.helpers.models import COMMON, FAMILIES
from tests.helpers.tokenizers import Letters
from ttc import Engine
from ttc.cost_model.device_profile import DeviceProfile, LinkProfile
from ttc.cost_model.profile_file import BY_MODULES, hardware
from ttc.placement.base import Placement

LAYERS = 4


def deeper(family: str, **settings: Any) -> Any:
    """A small random model of a supported family with four layers; of sliding and full ones, two of
    each."""
    config_class, extra = FAMILIES[family]
    options: dict[str, Any] = COMMON | extra | {"num_hidden_layers": LAYERS}
    if "layer_types" in options:
        options["layer_types"] = 2 * options["layer_types"]
    if "n_layer" in options:
        options["n_layer"] = LAYERS
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(
        config_class(**(options | settings)), dtype=torch.float32
    ).eval()
    model.generation_config.eos_token_id = None
    return copy.deepcopy(model).requires_grad_(False)


def placed(plain: Any, placement: Placement, **options: Any) -> Engine:
    """An engine over a copy of a model, whose weights lie where `placement` puts them."""
    model = copy.deepcopy(plain)
    return Engine(
        model, Letters(), prefill_tokens=5, runner=placement.place(model, "cpu"), **options
    )


def save_without_weights(folder: Path) -> None:
    """A small Llama of which nothing but the file of the weights can be read."""
    deeper("llama").save_pretrained(folder)
    (folder / "model.safetensors").write_bytes(b"no weights")


def write_profile(file: Path, devices: Sequence[DeviceProfile], link: LinkProfile) -> str:
    """Write a profile of this machine with made-up figures; the name of the file. Devices that are
    not given by modules are the same by modules."""
    names = {device.name for device in devices}
    by_modules = [replace(d, name=d.name + BY_MODULES) for d in devices if BY_MODULES not in d.name]
    devices = [*devices, *(d for d in by_modules if d.name not in names)]
    record = {
        "machine": hardware(),
        "devices": [asdict(device) for device in devices],
        "link": asdict(link),
    }
    file.write_text(json.dumps(record))
    return str(file)
