"""Processors that a test compiles kernels for, and whether this machine runs what comes of it."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import pytest

from tests.helpers.processes import finished
from ttc.compiling import CPU, cxx

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


QUICK_COMPILER = Path(__file__).with_name("quick_compiler.sh")


def skip_unless_runs(processor: str) -> None:
    """Skip the test where this machine cannot run what is built for one of `PROCESSORS`."""
    is_known = IS_ARM or platform.machine() == "x86_64"
    if not is_known or not PROCESSORS[processor] <= _features():
        pytest.skip(f"this machine cannot run what is built for {processor}")


def passes_on(processor: str, program: str, *arguments: str) -> None:
    """Run a Python program for which kernels are built for a processor, with few of the compiler's
    optimisations: all of them take a minute and more."""
    environment = {CPU: processor, "CXX": str(QUICK_COMPILER), "COMPILER": str(cxx())}
    words = [sys.executable, "-c", program, *arguments]
    done = finished(words, env=os.environ | environment)
    assert done.returncode == 0, done.stderr


def _features() -> set[str]:
    """What this machine's processor has, where Linux says so."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return set(next((line for line in lines if line.startswith(("flags", "Features"))), "").split())
