"""Reading on the host what a device has computed so far, while it goes on with other work."""

from __future__ import annotations

from functools import cache
from typing import Self

import torch


class SoFar:
    """What is read within waits for what was queued on the device when this was made, and not for
    what was queued since: on CUDA, copies to the host are then made on a stream of their own.

    The device must not write to what is read until the end.
    """

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
