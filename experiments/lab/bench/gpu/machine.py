"""The machine that the parts try: a CUDA device, or what stands in for one in a rehearsal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch

from ttc.errors import InvalidInput

Row = dict[str, Any]
"""What one case gave: {"case", "verdict", ...}. The verdicts are those below."""
RIGHT, WRONG, FAILED, MEASURED, LEFT_OUT = "right", "wrong", "failed", "measured", "left out"

NO_GPU = (
    "PyTorch sees no CUDA device on this machine; run this on a machine with an NVIDIA GPU, or add "
    "--rehearse to run the same code without one"
)


@dataclass(frozen=True)
class Machine:
    """rehearsed: without a GPU. kernels: where attention's kernels run: in a rehearsal the CPU, by
    Triton's interpreter. memory: whose KV and weights come over the link: in a rehearsal a
    pretended device (see `experiments.standins.pretended`)."""

    rehearsed: bool
    kernels: str
    memory: str

    @classmethod
    def of(cls, rehearse: bool) -> Machine:
        """Raises InvalidInput where there is no CUDA device, unless it is a rehearsal."""
        if rehearse:
            return cls(True, "cpu", "pretend:0")
        if not torch.cuda.is_available():
            raise InvalidInput(NO_GPU)
        return cls(False, "cuda", "cuda")

    def synchronize(self) -> None:
        """Wait until the device has done what it was given."""
        if not self.rehearsed:
            torch.cuda.synchronize()

    @contextmanager
    def gpu_kernels(self) -> Iterator[Any]:
        """Within, plans attend by the kernels of a GPU. Gives a stand-in for CUDA graphs in a
        rehearsal, else None."""
        if not self.rehearsed:
            yield None
            return
        from experiments.standins.taped_graphs import Kernels, StandIn
        from ttc.attention import plan
        from ttc.cuda import fused_gpu

        recorder = StandIn()

        def fused_attention(*args: Any, **named: Any) -> Any:
            fused = fused_gpu.fused_attention(*args, **named)
            if fused is not None:
                fused.kernels = Kernels(fused.kernels, recorder)
            return fused

        with patch.object(plan, "fused_attention", fused_attention):
            yield recorder


def prepare(rehearse: bool) -> Machine:
    """The machine, for a process that has not used Triton yet."""
    if rehearse:
        os.environ["TRITON_INTERPRET"] = "1"
        from experiments.standins.pretended import pretended_devices

        pretended_devices()
    torch.backends.cudnn.allow_tf32 = False  # results are compared with a CPU's
    return Machine.of(rehearse)


def verdict(right: bool) -> str:
    return RIGHT if right else WRONG
