"""Small arrays on their way to the device, which nothing waits for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def upload(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Arrays of int64 as flat tensors on a device, all in one copy; each begins at a multiple of 16
    bytes."""
    ends = np.cumsum([array.size + array.size % 2 for array in arrays])
    together = staged(arrays, ends, device).to(device, non_blocking=True)
    parts = together.tensor_split(ends[:-1].tolist())
    return [part[: array.size] for array, part in zip(arrays, parts, strict=True)]


def staged(arrays: Sequence[np.ndarray], ends: np.ndarray, device: torch.device) -> Tensor:
    """Arrays of int64 side by side on the host, from where a copy to the device needs no wait. Each
    has its place up to one of `ends`, and zeros fill what it leaves of it."""
    pinned = device.type == "cuda"
    together = torch.zeros(int(ends[-1]), dtype=torch.int64, pin_memory=pinned)
    for array, part in zip(arrays, np.split(together.numpy(), ends[:-1]), strict=True):
        part[: array.size] = array.reshape(-1)
    return together
