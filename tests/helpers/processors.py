"""Processors that a test compiles kernels for, and whether this machine runs what comes of it."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

X86 = {
    "x86-64": set[str](),
    "haswell": {"avx2", "fma", "bmi2"},
    "skylake-avx512": {"avx512f", "avx512vl", "avx512dq", "avx512bw"},
}
ARM = {
    "cortex-a72": set[str](),
    "neoverse-n1": {"asimddp"},
    "neoverse-v1": {"asimddp", "bf16", "i8mm", "sve"},
}
IS_ARM = platform.machine() in ("arm64", "aarch64")
PROCESSORS = ARM if IS_ARM else X86
"""Processors by the compiler's names, and what a machine must have to run what is built for one."""
MULTIPLY_AND_ADD = [processor for processor in PROCESSORS if processor != "x86-64"]
"""Those that multiply and add at once, with one rounding."""


def skip_unless_runs(processor: str) -> None:
    """Skip the test where this machine cannot run what is built for one of `PROCESSORS`."""
    is_known = IS_ARM or platform.machine() == "x86_64"
    if not is_known or not PROCESSORS[processor] <= _features():
        pytest.skip(f"this machine cannot run what is built for {processor}")


def _features() -> set[str]:
    """What this machine's processor has, where Linux says so."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return set(next((line for line in lines if line.startswith(("flags", "Features"))), "").split())
