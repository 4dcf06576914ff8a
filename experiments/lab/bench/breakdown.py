"""Where the time of a decoding step goes, between the floor and what is measured."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from experiments.lab.bench.prefix import prompt
from experiments.runs.provenance import provenance
from ttc.attention.plan import Plan
from ttc.cost_model.bandwidth import read_bandwidth
from ttc.engine import Engine
from ttc.model.compiled.cpu_program import Program
from ttc.model.loading.load import load
from ttc.model.packed_linear import PackedProduct
from ttc.scheduler import batch

CASES = ((64, 1), (4096, 8))
STEPS = 64


@contextmanager
def timers() -> Iterator[dict[str, float]]:
    """Seconds spent in the linear layers, in attention and in sampling while it is open (on a CPU
    calls block)."""
    seconds: dict[str, float] = {}

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        seconds[name] = 0.0

        @wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments, **keywords)
            finally:
                seconds[name] += time.perf_counter() - start

        return call

    scheduler: Any = batch
    product, draw, attend, run = (
        PackedProduct.product,
        scheduler.draw_tokens,
        Plan.attend,
        Program.run,
    )
    PackedProduct.product = timed("linear layers", product)  # type: ignore[method-assign]
    Plan.attend = timed("attention", attend)  # type: ignore[method-assign]
    scheduler.draw_tokens = timed("sampling", draw)

    def run_timed(program: Program, part: int | None = None) -> None:
        start = time.perf_counter()
        run(program, part)
        spent = time.perf_counter() - start
        seconds["linear layers"] += spent * program.share(program.at.LINEAR, part)
        seconds["attention"] += spent * program.share([program.at.ATTEND], part)

    Program.run = run_timed  # type: ignore[method-assign, assignment]
    try:
        yield seconds
    finally:
        PackedProduct.product = product  # type: ignore[method-assign]
        scheduler.draw_tokens = draw
        Plan.attend, Program.run = attend, run  # type: ignore[method-assign]


def run(model_name: str, out: Path) -> None:
    """Measure the parts of a step, print a table and write the figures."""
    plain, _ = load(model_name, dtype=torch.bfloat16)
    weights = sum(p.numel() * p.element_size() for p in plain.parameters())
    del plain
    engine = Engine.from_pretrained(model_name, dtype=torch.bfloat16)
    engine.limits.eos_ids = frozenset()
    bandwidth = read_bandwidth()
    rows = [_measure(engine, tokens, branches, weights, bandwidth) for tokens, branches in CASES]
    model = f"{model_name}, bfloat16, its real weights; random prompts; sampled tokens"
    result = provenance("python -m experiments.bench breakdown", model=model) | {"rows": rows}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))


def _measure(
    engine: Engine, tokens: int, branches: int, weights: int, bandwidth: float
) -> dict[str, Any]:
    root = engine.root(prompt(tokens))
    kv_bytes = engine.kv_bytes()
    children = engine.fork(root, branches)
    engine.generate(children, 4)
    start = time.perf_counter()
    engine.generate(children, STEPS)
    step_ms = (time.perf_counter() - start) / STEPS * 1e3
    with timers() as seconds:
        engine.generate(children, STEPS)
    engine.release([root, *children])
    parts = {name: spent / STEPS * 1e3 for name, spent in seconds.items()}
    parts["all else (norms, rotary, module calls)"] = step_ms - sum(parts.values())
    floor_ms = (weights + kv_bytes) / bandwidth * 1e3
    return {
        "tokens": tokens,
        "branches": branches,
        "step_ms": step_ms,
        "floor_ms": floor_ms,
        "parts_ms": parts,
    }


def table(result: dict[str, Any]) -> str:
    """The parts of a step as a Markdown table."""
    names = list(result["rows"][0]["parts_ms"])
    lines = [
        f"| prefix | branches | step | floor | {' | '.join(names)} |",
        "|---" * (4 + len(names)) + "|",
    ]
    for row in result["rows"]:
        parts = " | ".join(f"{row['parts_ms'][name]:.1f} ms" for name in names)
        lines.append(
            f"| {row['tokens']} | {row['branches']} | {row['step_ms']:.1f} ms | "
            f"{row['floor_ms']:.1f} ms | {parts} |"
        )
    return "\n".join(lines)
