"""Compiling the CPU kernels at their first use on a machine, with a word to whoever waits."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import re
import shutil
import subprocess
import tempfile
import warnings
from functools import cache
from hashlib import sha256
from pathlib import Path

from ttc.errors import InvalidInput, refusing

LINE = "compiling the CPU kernels, once on this machine; it takes up to a minute"


@cache
def announce() -> None:
    logging.getLogger("ttc").warning(LINE)


CPU = "TTC_CPU"
"""The environment variable that names another processor than this one, in the compiler's words, as
haswell for one without AVX-512."""
LIMITED = {"avx2": "haswell", "default": "x86-64"}
"""The processors that PyTorch's own variable, ATEN_CPU_CAPABILITY, limits it to."""
WITHOUT_COMPILER = "there is no C++ compiler; install g++ or clang++, or name one by CXX"
INCLUDE = re.compile(rb'^#include "(.+)"', re.MULTILINE)


@cache
def library(source: Path, *options: str) -> ctypes.CDLL | None:
    """A C++ file as a library for this processor; None without a compiler (GCC, Clang, or what CXX
    names).

    It is kept in TTC_CACHE, under a name with a hash of all that it was made of, the headers of
    ours that it includes among them. options: for the compiler, besides the usual ones. Raises
    InvalidInput where the compiler refuses the file.
    """
    compiler = cxx()
    if compiler is None:
        return None
    limited = LIMITED.get(os.environ.get("ATEN_CPU_CAPABILITY", ""), "native")
    processor = os.environ.get(CPU, limited)
    option = "-mcpu" if platform.machine() in ("arm64", "aarch64") else "-march"
    words = [compiler, "-std=c++17", "-O3", "-shared", "-fPIC", f"{option}={processor}"]
    words += ["-Wno-psabi", *options]
    version = subprocess.run([compiler, "--version"], capture_output=True).stdout
    made_of = [*map(str.encode, words), version, *_texts(source), _processor().encode()]
    place = Path(os.environ.get("TTC_CACHE") or Path.home() / ".cache" / "ttc").expanduser()
    file = place / "cpp" / f"{source.stem}-{sha256(b'|'.join(made_of)).hexdigest()[:16]}.so"
    if file.is_file():
        return ctypes.CDLL(str(file))
    announce()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(dir=file.parent)
    except OSError:  # there is no folder to write to
        with refusing(
            OSError,
            f"neither {file.parent} nor the folder for temporary files can be written to "
            f"({{error}}); make room, or name another folder by TTC_CACHE or TMPDIR",
        ):
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


def library_or_warning(slow: str, source: Path, *options: str) -> ctypes.CDLL | None:
    """`library`; where there is none, a warning says what is slow, and why."""
    try:
        built, reason = library(source, *options), WITHOUT_COMPILER
    except InvalidInput as error:
        built, reason = None, str(error)
    if built is None:
        warnings.warn(f"{slow}: {reason}", stacklevel=4)
    return built


def cxx() -> str | None:
    """The C++ compiler of this machine: what CXX names, else g++, clang++ or c++; None for none."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]
    return next((path for name in names if (path := shutil.which(name))), None)


def _texts(source: Path) -> list[bytes]:
    text = source.read_bytes()
    headers = [source.parent / os.fsdecode(name) for name in INCLUDE.findall(text)]
    return [text, *(part for header in headers for part in _texts(header))]


def _processor() -> str:
    """What tells apart processors that share a cache folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
