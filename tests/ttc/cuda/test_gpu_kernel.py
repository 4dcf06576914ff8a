"""The attention kernel compiles for the GPUs that it is for, on a machine without one, and fits
their multiprocessors."""

from __future__ import annotations

import os
import sys

import pytest

from tests.helpers.processes import finished

pytest.importorskip("triton")


OTHERS = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from ttc.cuda import gpu_kernel

def compile(kernel, constants, **types):
    signature = dict.fromkeys(kernel.arg_names, "i32") | dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, signature | types, constants)
    print(len(triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]))

compile(
    gpu_kernel.merge_rows, {"PARTS": 8, "VALUE_WIDTH": 128}, part_out="*fp32", part_sum="*fp32",
    part_first="*i64", parts="*i64", out_at="*bf16", lse_at="*fp32",
)
compile(
    gpu_kernel.store_new, {"ROWS": 16, "WIDTH": 128, "VALUE_WIDTH": 128}, key="*bf16",
    value="*bf16", stores="*i64", addresses="*i64",
)
"""


def test_the_other_kernels_compile() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = finished([sys.executable, "-c", OTHERS], env=environment, check=True)
    assert len(done.stdout.split()) == 2
