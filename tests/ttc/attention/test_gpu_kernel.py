"""The Triton kernels compile for the GPUs that they are for, on a machine without one."""

from __future__ import annotations

import os
import sys

import pytest

from tests.helpers.processes import finished
from tests.helpers.tiers import slow

pytest.importorskip("triton")

CODE = """
import sys
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from ttc.attention import gpu_kernel
from ttc.attention.fused_gpu import STAGES

capability, kv, dim, block = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
constants = dict(GROUPS=4, MOST=64, NEW=True, CAPPED=False, WIDEN=False, ALIGN=8)
constants |= dict(BLOCK=block, WIDTH=dim, VALUE_WIDTH=dim)
numbers = ("tasks", "pieces", "starts", "addresses", "positions", "own_places", "own_starts")
types = dict.fromkeys(numbers, "*i64") | dict.fromkeys(("out_at", "lse_at", "part_out", "part_sum"), "*fp32")
types |= dict.fromkeys(("q_at", "own_key", "own_value", "new_key", "new_value"), "*" + kv)
types |= dict(scale="fp32", softcap="fp32") | dict.fromkeys(constants, "constexpr")
names = gpu_kernel.attend_tasks.arg_names
signature = {name: types.get(name, "i32") for name in names}
whole = ("scale", "softcap", "window", "chunk", *constants)
aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name not in whole}
source = ASTSource(gpu_kernel.attend_tasks, signature, constants, aligned)
made = compile(source, target=GPUTarget("cuda", capability, 32), options={"num_stages": STAGES})
ptx = made.asm["ptx"]
print(made.metadata.shared, ptx.count("mma"), ptx.count("cp.async.cg.shared.global"), ".local" in ptx)
"""


@pytest.mark.parametrize(
    ("capability", "kv", "dim", "block"), [slow((80, "bf16", 128, 64)), (90, "fp16", 64, 64)]
)
def test_attention_compiles_to_matrix_products_fed_16_bytes_at_a_time(
    capability: int, kv: str, dim: int, block: int
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    call = [sys.executable, "-c", CODE, str(capability), kv, str(dim), str(block)]
    shared_bytes, products, copies, spilled = finished(
        call, env=environment, check=True
    ).stdout.split()
    assert int(shared_bytes) <= 99 * 1024  # what the smallest of these GPUs have
    assert int(products) > 0 and int(copies) > 0 and spilled == "False"
