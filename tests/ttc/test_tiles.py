"""Products by Intel's tiles (AMX), which this processor may lack: `tests/helpers/emulated_tiles.h`
stands for them. A processor that has tiles runs them in all other tests of bfloat16."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.parts import installed
from ttc.compiling import CPU, cxx

ROOT = Path(__file__).parents[2]
HEADER = ROOT / "tests" / "helpers" / "emulated_tiles.h"
FLAGS = Path("/proc/cpuinfo")
WITHOUT_TILES = "cooperlake"
"""A processor that multiplies bfloat16 and has no tiles."""

PROGRAM = """
import pytest, sys
from ttc.model.compiled import layers_kernel
assert layers_kernel.names().TILE_ROWS
sys.exit(pytest.main(sys.argv[1:]))
"""
TESTS = [
    "tests/ttc/model/compiled/test_fused_runner.py",
    *(["tests/ttc/stored/test_stored.py"] if installed("quantized", "True") else []),
    "tests/ttc/attention/test_fused_attention.py",
    "tests/ttc/attention/test_fused_extends.py",
]


@pytest.mark.slow
@pytest.mark.skipif(
    cxx() is None or not FLAGS.exists() or "avx512_bf16" not in FLAGS.read_text().split(),
    reason="needs a C++ compiler, and a processor that multiplies bfloat16 with AVX-512",
)
def test_products_by_tiles_pass_the_tests_of_bfloat16(tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\nexec {cxx()} -include {HEADER} "$@" -O1\n')
    compiler.chmod(0o755)
    settings = {"CXX": str(compiler), "TTC_CACHE": str(tmp_path), CPU: WITHOUT_TILES}
    chosen = ["-k", "bfloat16 or rows or stored", "-m", "not slow"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "-n", "0", *chosen, *TESTS],
        cwd=ROOT,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
