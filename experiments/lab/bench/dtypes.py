"""The types that the default model is run in where nobody names one, on this machine's CPU."""

from __future__ import annotations

from ttc.model.loading.load import configuration
from ttc.model.packed_linear import has_bfloat16


def default_dtype(model: str = "smollm2-135m") -> str:
    """What `dtype=auto` is for the engine."""
    return str(configuration(model, device="cpu")[1]).removeprefix("torch.")


def generate_dtype() -> str:
    """What `generate` of transformers is faster in: PyTorch emulates bfloat16 on a processor that
    doesn't multiply it."""
    return "bfloat16" if has_bfloat16() else "float32"
