"""What device this is, and whether its kernels can be compiled."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import torch

from experiments.lab.bench.gpu.machine import FAILED, MEASURED, RIGHT, Machine, Row
from ttc.cuda import fused_gpu


def rows(machine: Machine) -> Iterator[Row]:
    """The device, its driver, and a first kernel."""
    yield {"case": "device", "verdict": MEASURED} | about(machine)
    kernels = fused_gpu.kernels(torch.device(machine.kernels))
    if kernels is None:
        yield {"case": "a first kernel", "verdict": FAILED, "error": "see the warning above"}
    else:
        yield {"case": "a first kernel", "verdict": RIGHT}


def about(machine: Machine) -> dict[str, Any]:
    """Names, sizes and versions."""
    found: dict[str, Any] = {"triton": version("triton")}
    if machine.rehearsed:
        return found | {"name": "none: a rehearsal"}
    properties = torch.cuda.get_device_properties(0)
    return found | {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_gib": properties.total_memory / 2**30,
        "multiprocessors": properties.multi_processor_count,
        "cuda": torch.version.cuda,
        "driver": _driver(),
        "link": _asked("pcie.link.gen.max,pcie.link.width.max"),
    }


def _driver() -> str:
    return _asked("driver_version")


def _asked(what: str) -> str:
    """What nvidia-smi says of the first GPU, empty where it says nothing."""
    call = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(call, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
