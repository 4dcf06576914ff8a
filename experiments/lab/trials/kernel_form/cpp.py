"""The C++ candidates, built by this machine's compiler, one of them with the headers that come with
PyTorch."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import time
from functools import cache
from pathlib import Path

import torch

from experiments.lab.trials.kernel_form.call import Candidate

SOURCE = Path(__file__).with_name("product.cpp")
FLAGS = {
    "AVX512 BF16": ["-march=native", "-DCPU_CAPABILITY=AVX512", "-DCPU_CAPABILITY_AVX512"],
    "AVX2": ["-mavx2", "-mfma", "-mf16c", "-DCPU_CAPABILITY=AVX2", "-DCPU_CAPABILITY_AVX2"],
    "NEON": ["-DCPU_CAPABILITY=DEFAULT", "-DCPU_CAPABILITY_DEFAULT"],
    "NEON BF16": ["-march=armv8.6-a+bf16", "-DCPU_CAPABILITY=DEFAULT", "-DCPU_CAPABILITY_DEFAULT"],
}
"""What a compiler is told for each kind of processor."""


def compiler(processor: str) -> str | None:
    """The C++ compiler for a kind of processor; None where there is none."""
    arm = processor.startswith("NEON") and os.uname().machine != "aarch64"
    return shutil.which("aarch64-linux-gnu-g++" if arm else os.environ.get("CXX", "g++"))


VECTORS = {"C++, at::vec": [], "C++, compiler's vectors": ["-DCOMPILERS_VECTORS"]}
"""The candidates, with what the compiler is told for each."""


def build(processor: str, to: Path, *more: str) -> float:
    """Compile a candidate to a shared library, or as `more` says. Returns seconds.

    Raises CalledProcessError, with the compiler's messages in its stderr.
    """
    headers = Path(torch.__file__).parent / "include"
    words = [
        compiler(processor) or "g++",
        "-std=c++20",
        "-O3",
        "-I",
        str(headers),
        *FLAGS[processor],
        str(SOURCE),
    ]
    start = time.perf_counter()
    subprocess.run(
        [*words, *(more or ("-shared", "-fPIC")), "-o", str(to)],
        check=True,
        capture_output=True,
        text=True,
    )
    return time.perf_counter() - start


@cache
def candidates(processor: str, folder: Path) -> dict[torch.dtype, list[Candidate]]:
    """The candidates for each type of numbers, built in a folder."""
    made: dict[torch.dtype, list[Candidate]] = {torch.float32: [], torch.bfloat16: []}
    for number, (name, words) in enumerate(VECTORS.items()):
        library = folder / f"product{number}.so"
        seconds = build(processor, library, "-shared", "-fPIC", *words)
        loaded = ctypes.CDLL(str(library))
        for dtype, listed in made.items():
            function = getattr(loaded, f"product_{str(dtype).removeprefix('torch.')}")
            listed.append(
                Candidate(name, ctypes.cast(function, ctypes.c_void_p).value or 0, seconds)
            )
    return made
