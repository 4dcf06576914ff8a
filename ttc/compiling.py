"""Compiling the CPU kernels at their first use on a machine: C++ here, the others by numba; with a
word to whoever waits."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from ttc.errors import InvalidInput

LINE = "compiling the CPU kernels, once on this machine; it takes up to a minute"


@cache
def announce_compiling() -> None:
    """Log `LINE`, once in this process, when numba begins to compile a function of this package.

    What it has kept on disk from an earlier process is loaded, not compiled. Raises ImportError
    without numba.
    """
    from numba.core import event

    class Announcer(event.Listener):
        told = False

        def on_start(self, started: Any) -> None:
            ours = started.data["dispatcher"].py_func.__module__.startswith("ttc.")
            if ours and not self.told:
                self.told = True
                logging.getLogger("ttc").warning(LINE)

        def on_end(self, ended: Any) -> None:
            pass

    event.register("numba:compile", Announcer())


CPU = "TTC_CPU"
"""The environment variable that names another processor than this one, in the compiler's words, as
haswell for one without AVX-512."""


@cache
def library(source: Path) -> ctypes.CDLL | None:
    """A C++ file as a library for this processor; None without a compiler (GCC, Clang, or what CXX
    names).

    It is kept beside what numba compiles, under a name with a hash of all that it was made of.
    Raises InvalidInput where the compiler refuses the file.
    """
    compiler = cxx()
    if compiler is None:
        return None
    processor = os.environ.get(CPU, "native")
    option = "-mcpu" if platform.machine() in ("arm64", "aarch64") else "-march"
    words = [compiler, "-std=c++17", "-O3", "-shared", "-fPIC", f"{option}={processor}"]
    words.append("-Wno-psabi")
    version = subprocess.run([compiler, "--version"], capture_output=True).stdout
    made_of = [*map(str.encode, words), version, source.read_bytes(), _processor().encode()]
    place = Path(os.environ.get("TTC_CACHE") or Path.home() / ".cache" / "ttc").expanduser()
    file = place / "cpp" / f"{source.stem}-{sha256(b'|'.join(made_of)).hexdigest()[:16]}.so"
    if file.is_file():
        return ctypes.CDLL(str(file))
    logging.getLogger("ttc").warning(LINE)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(dir=file.parent)
    except OSError:  # there is no folder to write to
        folder = tempfile.mkdtemp()
        file = Path(folder) / file.name
    unfinished = Path(folder) / "unfinished.so"
    done = subprocess.run(
        [*words, str(source), "-o", str(unfinished)], capture_output=True, text=True
    )
    if done.returncode:
        shutil.rmtree(folder)
        raise InvalidInput(
            f"{compiler} cannot compile {source.name} for {processor!r}: "
            f"{done.stderr.strip()[-500:]}. Name another compiler by CXX, or a processor by {CPU}"
        )
    os.replace(unfinished, file)
    if file.parent != Path(folder):
        shutil.rmtree(folder)
    return ctypes.CDLL(str(file))


def cxx() -> str | None:
    """The C++ compiler of this machine: what CXX names, else g++ or clang++; None without one."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    return next((path for name in names if (path := shutil.which(name))), None)


def _processor() -> str:
    """What tells this machine's processor from another that shares its cache folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
