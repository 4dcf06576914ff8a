"""Activations in 8 bits where they meet weights that stay as they are stored (approximate).

LLM.int8 (Dettmers et al., 2022) and llama.cpp multiply integers likewise: 32 numbers of a row have
one scale, and become integers from -127 to 127. The weights stay what they are.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ttc.compiling import library
from ttc.errors import InvalidInput
from ttc.model.compiled.fused_runner import FusedRunner
from ttc.model.running.runner import ModelRunner
from ttc.placement.split import SplitRunner
from ttc.stored.kernel import KINDS, shared
from ttc.stored.layers import Multiplying, StoredLinear
from ttc.threads import function_address

SOURCE = Path(__file__).with_name("int8_products.cpp")
PART = 32
"""Numbers that have one scale."""
FACTORS_BYTES = 16
"""The bytes of a part's scale and of its sums."""
EXACT = {number for number, name in KINDS.items() if name in ("F32", "F16", "BF16")}
"""Kinds without codes, whose layers multiply as ever."""


@cache
def kernel() -> ctypes.CDLL | None:
    return library(SOURCE)


@dataclass(frozen=True)
class Int8Rows:
    """Another way to multiply by stored weights: rows become integers first."""

    def row_bytes(self, width: int) -> int:
        return width + width // PART * FACTORS_BYTES

    def rounds(self, dtype: torch.dtype) -> int:
        return function_address(kernel(), f"round_{str(dtype).removeprefix('torch.')}")

    def products(self) -> int:
        return function_address(kernel(), "products_int8")

    def linear(self, x: Tensor, packed: Tensor, stored: int) -> Tensor:
        together = function_address(kernel(), "share_int8")
        return shared(together, self.rounded(x), x.shape[1], packed, stored).to(x.dtype)

    def rounded(self, x: Tensor) -> Tensor:
        """Rows x: (rows, width) as bytes: (rows, row_bytes)."""
        x = x.contiguous()
        rows, width = x.shape
        rounded = torch.empty(rows, self.row_bytes(width), dtype=torch.uint8)
        by = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)(
            self.rounds(x.dtype)
        )
        for source, target in zip(x, rounded, strict=True):
            by(source.data_ptr(), width, target.data_ptr())
        return rounded


def round_activations(model: Any, runner: ModelRunner) -> None:
    """Let the stored linear layers and experts of a model take their inputs in 8 bits from now on.

    Raises InvalidInput for a model without such layers.
    """
    layers = [
        module
        for module in model.modules()
        if isinstance(module, Multiplying) and module.stored not in EXACT
    ]
    if not layers:
        raise InvalidInput(
            "int8_activations=True rounds what meets weights that stay as they are stored, and "
            "this model has none; load it with quantized=True, or leave int8_activations out"
        )
    for layer in layers:
        layer.rounding = Int8Rows()
    for module in model.modules():
        _round_both_or_none(getattr(module, "gate_proj", None), getattr(module, "up_proj", None))
    if isinstance(runner, FusedRunner):
        runner.layers.renew()
        runner.reason += ", with activations in 8 bits"
    if isinstance(runner, SplitRunner) and runner.host is not None:
        runner.host.compiled.renew()


def _round_both_or_none(gate: Any, up: Any) -> None:
    pair = [layer for layer in (gate, up) if isinstance(layer, StoredLinear)]
    if any(layer.rounding is None for layer in pair):
        for layer in pair:
            layer.rounding = None
