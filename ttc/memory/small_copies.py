"""Small arrays between the host and a device that goes on with other work meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Self

import numpy as np
import torch
from torch import Tensor


def upload(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Arrays of int64 as flat tensors on a device, in one copy; each begins at a multiple of 16
    bytes."""
    ends = np.cumsum([array.size + array.size % 2 for array in arrays])
    together = staged(arrays, ends, device).to(device, non_blocking=True)
    parts = together.tensor_split(ends[:-1].tolist())
    return [part[: array.size] for array, part in zip(arrays, parts, strict=True)]


def staged(arrays: Sequence[np.ndarray], ends: np.ndarray, device: torch.device) -> Tensor:
    """Arrays of int64 side by side on the host, each up to one of `ends` and filled with zeros,
    from where a copy to the device needs no wait."""
    pinned = device.type == "cuda"
    together = torch.zeros(int(ends[-1]), dtype=torch.int64, pin_memory=pinned)
    for array, part in zip(arrays, np.split(together.numpy(), ends[:-1]), strict=True):
        part[: array.size] = array.reshape(-1)
    return together


class SoFar:
    """What is read within waits for what was queued on the device when this was made, and not for
    what was queued since: on CUDA, copies to the host then have a stream of their own. The device
    must not write to what is read until the end."""

    def __init__(self, device: torch.device):
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = _stream(device)
            self._ready = torch.cuda.Event()
            self._ready.record(torch.cuda.current_stream(device))
            self._here = torch.cuda.stream(self._stream)

    def __enter__(self) -> Self:
        if self._stream is not None:
            self._stream.wait_event(self._ready)
            self._here.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._stream is not None:
            self._here.__exit__(*raised)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
