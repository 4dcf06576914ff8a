"""Quantized models: refused by name where transformers cannot run them, or by what their layers
do."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from torch import Tensor

from ttc.errors import UnsupportedModel
from ttc.parts import handled

WAY_OUT = (
    "load its unquantized weights, a .gguf file of it, or weights of another method "
    "(docs/models.md says which run where); or let a server run it (backend=openai)"
)
STAYS = "Keep them as they are stored (quantized=True, model.quantized=true)"
ROWS = 4
OTHERS = 100.0
"""What all rows but the first are multiplied by, to see whether the first one changes."""
NUMBERS = 8192
NUDGE = 1e-5
"""How many numbers a layer gets in the check for steps, and by which part of them they change.
Outputs change by 1e-5 in plain layers, and by 1e-3 to 3e-3 where torchao quantizes activations as
they come: some come to lie on another of its steps."""


def check_quantization(config: Any, device: torch.device) -> str | None:
    """The method that a checkpoint is quantized by, None for plain weights.

    Raises UnsupportedModel that names the method, and what transformers misses for it.
    """
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING, AutoHfQuantizer

    settings = getattr(config, "quantization_config", None)
    if not settings:
        settings = getattr(config.get_text_config(decoder=True), "quantization_config", None)
    if not settings:
        return None
    by_bitsandbytes = settings.get("load_in_8bit") or settings.get("load_in_4bit")
    default = "bitsandbytes" if by_bitsandbytes else "an unknown method"
    method = str(settings.get("quant_method", default))
    if not by_bitsandbytes and method not in AUTO_QUANTIZER_MAPPING:
        raise UnsupportedModel(
            f"its weights are quantized by {method!r}, which the installed transformers does not "
            f"know; {WAY_OUT}"
        )
    try:
        quantizer = AutoHfQuantizer.from_config(settings, pre_quantized=True)
        quantizer.validate_environment(device_map={"": str(device)}, weights_only=True)
    except (AttributeError, ImportError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        kept = device.type == "cpu" and method in handled().get("stays", {})
        stays = f"{STAYS}, " if kept else ""
        raise UnsupportedModel(
            f"its weights are quantized by {method!r}, which does not run here: {reason}. "
            f"{stays or 'Install what is missing, '}or {WAY_OUT}"
        ) from error
    return method


@torch.inference_mode()
def check_rows_apart(model: Any) -> None:
    """Raise UnsupportedModel where what a quantized linear layer gives for a row depends on other
    rows of the pass: by looking at them, or in float32 by rounding its inputs to 8 bits, where
    attention over other rows has a number come to lie on another step."""
    if not getattr(model, "is_quantized", False):
        return
    token = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    model(input_ids=token, use_cache=False)  # some layers unpack only now
    random = torch.Generator().manual_seed(0)
    for name, module in model.named_modules():
        width = getattr(module, "in_features", None)
        weight = next(chain(module.parameters(), module.buffers()), None)
        if not isinstance(width, int) or weight is None:  # one that is packed is not quantized
            continue
        rows = torch.randn(1, ROWS, width, generator=random).to(weight.device, model.dtype)
        larger = rows.clone()
        larger[:, 1:] *= OTHERS
        alone = module(rows)[0, 0].float()
        error = float((alone - module(larger)[0, 0].float()).abs().max())
        if not error <= 1e-5 * float(alone.abs().max()):
            raise UnsupportedModel(
                f"{name}, a {type(module).__name__}, gives something else for a row beside other "
                f"rows, by {error:.3g}: its quantization looks at all rows of a pass, so tokens "
                "would depend on what else is computed with them. For bitsandbytes in 8 bits set "
                "llm_int8_threshold to 0 in config.json's quantization_config; else "
                f"{WAY_OUT}"
            )
        by_torchao = type(getattr(module, "weight", None)).__module__.startswith("torchao.")
        if by_torchao and model.dtype in (torch.float32, torch.float64):
            _check_no_steps(name, module, width, rows)


def _check_no_steps(name: str, module: Any, width: int, like: Tensor) -> None:
    random = torch.Generator().manual_seed(1)
    rows = torch.randn(1, -(-NUMBERS // width), width, generator=random)
    nudged = rows * (1 + NUDGE * torch.randn(rows.shape, generator=random))
    before = module(rows.to(like)).float()
    error = float((module(nudged.to(like)).float() - before).abs().max())
    limit = 10 * NUDGE * float(before.abs().max())
    if not error <= limit:
        raise UnsupportedModel(
            f"{name}, a {type(module).__name__}, rounds its inputs to a few bits: a change of "
            f"{NUDGE:g} of them changes its outputs by {error:.3g} (limit {limit:.3g}), so in "
            "float32 tokens would depend on what else is computed with them. Load it in bfloat16, "
            f"where results hold within rounding of 16 bits; or {WAY_OUT}"
        )
