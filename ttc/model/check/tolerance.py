"""How far two results may lie apart that are the same but for rounding."""

from __future__ import annotations

import torch
from torch import Tensor

from ttc.errors import UnsupportedModel


def is_precise(dtype: torch.dtype) -> bool:
    return dtype in (torch.float32, torch.float64)


def deviation(
    expected: Tensor, result: Tensor, precise: bool, exact: float, rounded: float
) -> tuple[float, float]:
    """(error, limit) of a result.

    The error is the largest difference; of 16-bit models it is the mean, as expert routing may flip
    a few rows. exact, rounded: what is allowed of it, as a part of the largest or the mean number.
    """
    gap = (result - expected).float().abs()
    size = expected.float().abs()
    if precise:
        return float(gap.max()), exact * float(size.max()) + 1e-6
    return float(gap.mean()), rounded * float(size.mean()) + 1e-6


def check_same(
    what: str, expected: Tensor, result: Tensor, precise: bool, exact: float, rounded: float
) -> None:
    """Raise UnsupportedModel for a result that differs; see `deviation`."""
    error, limit = deviation(expected, result, precise, exact, rounded)
    if not error <= limit:
        raise UnsupportedModel(f"{what}, by {error:.3g} (limit {limit:.3g})")
