"""What the attention kernel takes of a GPU's multiprocessor: registers, shared memory and spills of
each variant, as NVIDIA's assembler says. It needs no GPU: Triton ships the assembler."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from experiments.lab.bench.options import RESULTS
from experiments.lab.records import save
from experiments.runs.provenance import provenance
from ttc.cuda.fused_gpu import MAX_REGISTERS, WARPS, tiles
from ttc.cuda.gpu_arrays import SMALL_TILE

SHARED_KIB = {80: 164, 89: 100, 90: 228, 100: 228}
"""Shared memory of a multiprocessor, by compute capability times ten (CUDA's programming guide,
table of technical specifications). Each program takes 1 KiB more than it asks for."""
REGISTERS = 65_536
"""Registers of a multiprocessor, for each of these."""
DTYPES = {torch.bfloat16: "bf16", torch.float32: "fp32"}
DIMS = (64, 128, 256)
CASE: dict[str, Any] = {
    "GROUPS": 4,
    "OWNERS": True,
    "CAPPED": True,
    "WIDEN": False,
    "PACKED": "",
}
"""A decoding step of a model with a cap on scores: of all variants it takes the most."""


@dataclass(frozen=True)
class Variant:
    """capability: 90 is 9.0. queries: of a tile."""

    capability: int
    dtype: torch.dtype
    dim: int
    queries: int


@dataclass(frozen=True)
class Resources:
    """registers: of a thread. spilled, shared: bytes, of a thread and of a program. programs: that
    share a multiprocessor."""

    registers: int
    spilled: int
    shared: int
    programs: int


def variants() -> list[Variant]:
    """All tiles of each capability, type and size of heads."""
    return [
        Variant(capability, dtype, dim, queries)
        for capability in SHARED_KIB
        for dtype in DTYPES
        for dim in DIMS
        for queries in sorted({SMALL_TILE, tiles(dim, dim, dtype).queries})
    ]


def compiled(variant: Variant) -> Any:
    """A variant, compiled by Triton; not where TRITON_INTERPRET is set."""
    import triton
    from triton.backends.compiler import GPUTarget

    return triton.compile(
        _source(variant),
        target=GPUTarget("cuda", variant.capability, 32),
        options={
            "num_stages": tiles(variant.dim, variant.dim, variant.dtype).stages,
            "num_warps": WARPS,
            "maxnreg": MAX_REGISTERS,
        },
    )


def read(made: Any, variant: Variant) -> Resources:
    """What compiled code takes. Raises RuntimeError where `cuobjdump`, which Triton ships, does not
    say it."""
    import triton

    dump = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder) / "kernel.cubin"
        code.write_bytes(made.asm["cubin"])
        call = [str(dump), "--dump-resource-usage", str(code)]
        said = subprocess.run(call, capture_output=True, text=True, check=True).stdout
    match = re.search(r"REG:(\d+) STACK:(\d+)", said)
    if match is None:
        raise RuntimeError(f"cuobjdump does not name the registers: {said!r}")
    registers, spilled = map(int, match.groups())
    shared = int(made.metadata.shared)
    return Resources(registers, spilled, shared, _programs(variant, registers, shared))


def _source(variant: Variant) -> Any:
    from triton.compiler import ASTSource

    from ttc.cuda import gpu_kernel

    size = tiles(variant.dim, variant.dim, variant.dtype)
    constants: dict[str, Any] = CASE | {
        "TILE": variant.queries,
        "ALIGN": 16 // variant.dtype.itemsize,
        "BYTES": 16,
        "OWN_ALIGN": 16 // variant.dtype.itemsize,
        "BLOCK": size.keys,
        "WIDTH": variant.dim,
        "VALUE_WIDTH": variant.dim,
    }
    kv = "*" + DTYPES[variant.dtype]
    types = dict.fromkeys(("q_at", "new_key", "new_value"), kv)
    types |= dict.fromkeys(("out_at", "lse_at", "part_out", "part_sum"), "*fp32")
    numbers = (
        "tasks",
        "pieces",
        "starts",
        "addresses",
        "positions",
        "own_starts",
        "owners",
        "own_firsts",
    )
    types |= dict.fromkeys(numbers, "*i64")
    types |= {"scale": "fp32", "softcap": "fp32"} | dict.fromkeys(constants, "constexpr")
    names = gpu_kernel.attend_tasks.arg_names
    any_number = ("scale", "softcap", "window", "chunk", *constants)
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(names)
        if name not in any_number
    }
    signature = {name: types.get(name, "i32") for name in names}
    return ASTSource(gpu_kernel.attend_tasks, signature, constants, aligned)


def _programs(variant: Variant, registers: int, shared: int) -> int:
    """A warp takes registers in units of 256."""
    of_a_warp = -(-registers * 32 // 256) * 256
    by_registers = REGISTERS // (of_a_warp * WARPS)
    by_shared = SHARED_KIB[variant.capability] * 1024 // (shared + 1024)
    return min(by_registers, by_shared)


def run(*, out: Path = RESULTS / "gpu_resources.json") -> None:
    """Compile all variants, print the table and write the figures."""
    rows = []
    for variant in variants():
        row = asdict(variant) | asdict(read(compiled(variant), variant))
        rows.append(row | {"dtype": DTYPES[variant.dtype]})
        print(json.dumps(rows[-1]), flush=True)
    result = provenance("python -m experiments.bench gpu_resources", model="none")
    result |= {"rows": rows}
    save(result, out)
    print(table(result))


def table(result: dict[str, Any]) -> str:
    """A row for each variant."""
    lines = [
        "| capability | KV | head | queries | registers | spilled bytes | shared memory | "
        "programs |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in result["rows"]:
        lines.append(
            f"| {row['capability'] / 10:.1f} | {row['dtype']} | {row['dim']} | {row['queries']} "
            f"| {row['registers']} | {row['spilled']} | {row['shared'] / 1024:.1f} KiB "
            f"| {row['programs']} |"
        )
    return "\n".join(lines)
