"""The candidates in turn in one process for each processor, checked against float64: times as
ratios to the C++ one."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from experiments.lab.trials.kernel_form import cpp
from experiments.runs.provenance import provenance
from ttc.errors import InvalidInput

SHAPES = {"SmolLM2-135M, 576 to 1536": (1536, 576), "Llama-3.2-1B, 2048 to 8192": (8192, 2048)}
"""Columns and widths of a projection in the MLP."""
ROWS = (1, 8, 16, 64)
THREADS = {"SmolLM2-135M, 576 to 1536": (1,), "Llama-3.2-1B, 2048 to 8192": (1, 2)}
ROUNDS = 7
COLD_BYTES = 64 << 20
"""Weights that are multiplied in turn, so that they come from memory as in a decoding step."""
TOLERANCE = 1e-5
"""The largest difference to float64, as a share of the largest result; sums of float32 numbers
differ by as much."""
ENVIRONMENTS: dict[str, dict[str, str]] = {
    "AVX512 BF16": {},
    "AVX2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+bmi,+bmi2,+sse4.2,+popcnt,+f16c",
    },
}
"""What makes a process on this machine use the instructions of a processor."""
BASE = "C++, at::vec"
"""What the others are compared with."""
PLAIN = "PyTorch"
Product = Callable[[Tensor, Tensor], Tensor]


def run(out: Path) -> None:
    """Measure on each processor, print a table and write the figures."""
    why = why_not("AVX512 BF16")
    if why:
        raise InvalidInput(f"the trial cannot run here: {why}")
    processors = {name: _in_process(name) for name in ENVIRONMENTS}
    from experiments.lab.trials.kernel_form import portable, present  # noqa: F401  (their code is in the record)

    result = provenance("python -m experiments.bench kernel_form", model="none; random numbers")
    result |= {"lines": lines(), "processors": processors}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))


def why_not(processor: str) -> str:
    """Why the candidates for a processor cannot be compared here; empty if they can."""
    if cpp.compiler(processor) is None:
        return "there is no C++ compiler (g++, or what CXX names)"
    flags = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else []
    needed = "avx512_bf16" if processor == "AVX512 BF16" else "avx2"
    return "" if needed in flags else f"the processor lacks {needed}"


def _in_process(processor: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | ENVIRONMENTS[processor] | {"NUMBA_CACHE_DIR": folder}
        words = [sys.executable, "-m", "experiments.bench", "kernel_form-case", processor]
        done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def run_case(processor: str) -> None:
    """Measure on one processor, in whose environment this process runs, and print the figures as
    JSON."""
    torch.set_num_threads(2)
    compile_s: dict[str, float] = {}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for dtype in (torch.float32, torch.bfloat16):
            forms = candidates(processor, dtype, Path(folder))
            for name, form in forms.items():
                compile_s[f"{name}, {dtype}".replace("torch.", "")] = form.compile_s
            for shape in SHAPES:
                for count in ROWS:
                    rows += _case(forms, dtype, shape, count)
    print(json.dumps({"compile_s": compile_s, "rows": rows}))


def candidates(processor: str, dtype: torch.dtype, folder: Path) -> dict[str, Any]:
    """The compiled candidates that a processor can run, by name."""
    from experiments.lab.trials.kernel_form import portable, present

    forms = [portable.candidate(processor, dtype), *cpp.candidates(processor, folder)[dtype]]
    if dtype == torch.float32 or portable.PROCESSORS[processor].pairs:
        forms.insert(0, present.candidate(dtype))
    return {form.name: form for form in forms}


def difference(form: Product, x: Tensor, weight: Tensor) -> float:
    """The largest difference to the product in float64, as a share of the largest result."""
    exact = x.double() @ weight.double().T
    return float((form(x, weight).double() - exact).abs().max() / exact.abs().max())


def _case(forms: dict[str, Any], dtype: torch.dtype, shape: str, rows: int) -> list[dict[str, Any]]:
    columns, width = SHAPES[shape]
    torch.manual_seed(0)
    x = torch.randn(rows, width).to(dtype)
    weight = torch.randn(columns, width).to(dtype)
    errors = {name: difference(form, x, weight) for name, form in forms.items()}
    if worst := {name: error for name, error in errors.items() if error > TOLERANCE}:
        raise RuntimeError(f"products differ from float64 by more than {TOLERANCE}: {worst}")
    copies = max(2, COLD_BYTES // (weight.numel() * weight.element_size()))
    weights = [weight.clone() for _ in range(copies)]
    case = {
        "dtype": str(dtype).removeprefix("torch."),
        "shape": shape,
        "rows": rows,
        "errors": errors,
    }
    return [
        case | {"threads": threads} | _times(forms, x, weights, threads)
        for threads in THREADS[shape]
    ]


def _times(forms: dict[str, Any], x: Tensor, weights: list[Tensor], threads: int) -> dict[str, Any]:
    """Milliseconds of processor time of a product by each candidate, in turn, all threads together,
    and the median of the rounds' ratios. Others on the machine disturb it less than what a clock
    says.

    PyTorch's threads spin while they wait, so it is measured with one thread alone.
    """
    torch.set_num_threads(threads)

    def by(form: Any) -> Product:
        return lambda x, weight: form(x, weight, threads)

    ways: dict[str, Product] = {name: by(form) for name, form in forms.items()}
    if threads == 1:
        ways[PLAIN] = linear
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            start = time.process_time()
            for weight in weights:
                way(x, weight)
            spent[name].append((time.process_time() - start) * 1e3 / len(weights))
    ratios = {
        name: statistics.median(a / b for a, b in zip(times, spent[BASE], strict=True))
        for name, times in spent.items()
    }
    return {
        "ms": {name: statistics.median(times) for name, times in spent.items()},
        "to_base": ratios,
    }


def lines() -> dict[str, int]:
    """Lines of code of each candidate, without blank ones and comments."""
    from ttc.model import cpu_tiles

    folder = Path(__file__).parent
    before, _, rest = cpp.SOURCE.read_text().partition("#ifndef COMPILERS_VECTORS\n")
    theirs, _, rest = rest.partition("\n#else\n")
    compilers, _, shared = rest.partition("\n#endif\n\n")
    tiles = Path(cpu_tiles.__file__).read_text()
    # what else lies there is not of this product
    tiles = tiles[: tiles.index("dots_8x2, dots_4x4")]
    texts = {
        "numba as it is": tiles + (folder / "present.py").read_text(),
        "numba, portable": (folder / "portable.py").read_text(),
        BASE: before + theirs + shared,
        "C++, compiler's vectors": before + compilers + shared,
        "C++, its building": (folder / "cpp.py").read_text(),
    }
    return {name: code_lines(text) for name, text in texts.items()}


def code_lines(text: str) -> int:
    """Lines without blank ones, comments and docstrings, of Python or C++."""
    inside, count = False, 0
    for line in map(str.strip, text.splitlines()):
        quotes = line.count('"""')
        comment = line.startswith(("//", "# "))
        if line and not (inside or quotes or comment):
            count += 1
        inside ^= quotes == 1
    return count


def table(result: dict[str, Any]) -> str:
    """The ratios as a Markdown table."""
    names = ["C++, compiler's vectors", "numba as it is", "numba, portable", PLAIN]
    head = f"| processor | numbers | shape | rows | threads | {BASE} | {' | '.join(names)} |"
    made = [head, "|---" * (6 + len(names)) + "|"]
    for processor, measured in result["processors"].items():
        for row in measured["rows"]:
            ratios = [
                f"{row['to_base'][name]:.2f}" if name in row["to_base"] else "-" for name in names
            ]
            cells = [processor, *(row[key] for key in ("dtype", "shape", "rows", "threads"))]
            cells.append(f"{row['ms'][BASE]:.2f} ms")
            made.append(f"| {' | '.join(map(str, [*cells, *ratios]))} |")
    return "\n".join(made)
