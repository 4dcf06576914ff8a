"""Quantized models: refused by name where transformers cannot run them, and by what their layers do where rows of a
pass are not apart, or rounding decides on steps of few bits."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch

from ttc.errors import UnsupportedModel

WAY_OUT = (
    "load its unquantized weights, a .gguf file of it, or weights of another method (docs/models.md says which run "
    "where); or let a server run it (backend=openai)"
)
ROWS, OTHERS = 4, 100.0
"""Rows of the check whether they are apart, and what all of them but the first are multiplied by."""
NUMBERS, NUDGE = 8192, 1e-5
"""How many numbers a layer gets in the check for steps, and by which part of themselves they change.
A layer whose outputs then change by ten times that part rounds its inputs: in one of 8 bits some
numbers of 8,192 come to lie on another step. Measured: 1e-5 for plain layers and for torchao's
weights alone; 1e-3 to 3e-3 where torchao quantizes activations as they come."""


def check_quantization(config: Any, device: torch.device) -> str | None:
    """The method that a checkpoint is quantized by, None for plain weights; asked before any weight is read.

    Raises UnsupportedModel that names the method, and what transformers misses for it.
    """
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING, AutoHfQuantizer

    parts = config, config.get_text_config(decoder=True)
    settings = next((found for part in parts if (found := getattr(part, "quantization_config", None))), None)
    if settings is None:
        return None
    method = str(settings.get("quant_method", "bitsandbytes" if _is_bitsandbytes(settings) else "an unknown method"))
    if not (_is_bitsandbytes(settings) or method in AUTO_QUANTIZER_MAPPING):
        raise UnsupportedModel(
            f"its weights are quantized by {method!r}, which the installed transformers does not know; {WAY_OUT}"
        )
    try:
        quantizer = AutoHfQuantizer.from_config(settings, pre_quantized=True)
        quantizer.validate_environment(device_map={"": str(device)}, weights_only=True)
    except (AttributeError, ImportError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UnsupportedModel(
            f"its weights are quantized by {method!r}, which does not run here: {reason}. Install what is missing, or "
            f"{WAY_OUT}"
        ) from error
    return method


def _is_bitsandbytes(settings: dict[str, Any]) -> bool:
    return bool(settings.get("load_in_8bit") or settings.get("load_in_4bit"))


@torch.inference_mode()
def check_rows_apart(model: Any) -> None:
    """Run each quantized linear layer twice: what it gives for a row must not depend on the other rows of the pass.

    Raises UnsupportedModel for quantization that looks at all rows of a pass: there results would depend on what else
    is computed with them. So they would in float32 where torchao quantizes activations as they come:
    attention over other rows rounds in another way, and a number that comes to lie on the next step
    of 8 bits is off by 1e-2.
    """
    if not getattr(model, "is_quantized", False):
        return
    model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device), use_cache=False)  # some unpack only now
    random = torch.Generator().manual_seed(0)
    for name, module in model.named_modules():
        width, held = getattr(module, "in_features", None), next(chain(module.parameters(), module.buffers()), None)
        if not isinstance(width, int) or held is None:  # one that is packed is not quantized
            continue
        rows = torch.randn(1, ROWS, width, generator=random).to(held.device, model.dtype)
        factors = torch.tensor([1.0] + [OTHERS] * (ROWS - 1), device=held.device, dtype=model.dtype)
        alone, beside = (module(x)[0, 0].float() for x in (rows, rows * factors[:, None]))
        error, limit = float((alone - beside).abs().max()), 1e-5 * float(alone.abs().max())
        if not error <= limit:
            raise UnsupportedModel(
                f"{name}, a {type(module).__name__}, gives something else for a row beside other rows, by {error:.3g}: "
                "its quantization looks at all rows of a pass, so tokens would depend on what else is computed with "
                "them. For bitsandbytes in 8 bits set llm_int8_threshold to 0 in config.json's quantization_config; "
                f"else {WAY_OUT}"
            )
        torchaos = type(getattr(module, "weight", None)).__module__.startswith("torchao.")
        if torchaos and model.dtype in (torch.float32, torch.float64):
            _check_no_steps(name, module, width, rows)


def _check_no_steps(name: str, module: Any, width: int, like: torch.Tensor) -> None:
    """Raise UnsupportedModel for a layer that rounds its inputs to few bits. like: one of its inputs."""
    random = torch.Generator().manual_seed(1)
    rows = torch.randn(1, -(-NUMBERS // width), width, generator=random)
    nudged = rows * (1 + NUDGE * torch.randn(rows.shape, generator=random))
    before, after = (module(x.to(like)).float() for x in (rows, nudged))
    error, limit = float((after - before).abs().max()), 10 * NUDGE * float(before.abs().max())
    if not error <= limit:
        raise UnsupportedModel(
            f"{name}, a {type(module).__name__}, rounds its inputs to a few bits: a change of "
            f"{NUDGE:g} of them changes its outputs by {error:.3g} (limit {limit:.3g}), so in float32 "
            "tokens would depend on what else is computed with them. Load it in bfloat16, where "
            f"results hold within rounding of 16 bits; or {WAY_OUT}"
        )
