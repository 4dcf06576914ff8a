"""What it costs that room grows: steps of branches that begin one storage after another, and of
branches that write in one storage each, which has room for all of their text from the start.

Both engines are in one process and take turns every few tokens, at the same lengths.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch

from experiments.lab.bench.long import sizes
from experiments.lab.bench.options import RESULTS, Model
from experiments.lab.records import save
from experiments.runs.provenance import provenance
from ttc.engine import Engine
from ttc.memory import storage
from ttc.residency.resident import Resident
from ttc.sampling import Sampling
from ttc.step import Step

CASES = ("16x768", "64x256")
"""Branches, and the tokens that each writes."""
BLOCK = 32
"""Tokens of one engine before it is the other's turn."""
PROMPT = list(range(1000, 1064))


@contextmanager
def whole_storages() -> Iterator[None]:
    """Storages of steps that begin within have room for all of the step."""
    before, storage.SHORT_STEP_TOKENS = storage.SHORT_STEP_TOKENS, 2**40
    try:
        yield
    finally:
        storage.SHORT_STEP_TOKENS = before


def run(
    *,
    cases: Annotated[Sequence[str], "branches x tokens, with commas"] = CASES,
    model: Model = "smollm2-135m",
    out: Path = RESULTS / "growth.json",
) -> None:
    """Measure, print the figures as they come, and write them."""
    torch.set_num_threads(2)
    engines = {
        name: Engine.from_pretrained(model, dtype=torch.bfloat16, memory=Resident())
        for name in ("growing", "reserved")
    }
    rows = []
    for case in cases:
        rows.append({"case": case} | measure(engines, *sizes(case)))
        print(json.dumps(rows[-1]), flush=True)
    words = f"python -m experiments.bench growth --cases {','.join(cases)}"
    about = f"{model}, bfloat16, its real weights; sampled tokens, no end tokens"
    record = provenance(words, model=about) | {"rows": rows}
    save(record, out)
    print(table(record))


def measure(engines: dict[str, Engine], branches: int, tokens: int) -> dict[str, Any]:
    """Milliseconds of a token of all branches, and the ratio of both in each block."""
    batches = {}
    for name, engine in engines.items():
        engine.limits.eos_ids = frozenset()
        root = engine.root(PROMPT)
        rows = engine.fork(root, branches)
        batches[name] = engine.running_batch()
        batches[name].add(rows, Step(tokens), Sampling())
        engine.release([root])
    times: dict[str, list[float]] = {name: [] for name in engines}
    names = list(engines)
    with whole_storages():
        batches["reserved"].step()
    batches["growing"].step()
    for block in range((tokens - 2) // BLOCK):
        for name in names if block % 2 else names[::-1]:
            start = time.perf_counter()
            for _ in range(BLOCK):
                batches[name].step()
            times[name].append((time.perf_counter() - start) / BLOCK * 1e3)
    for name, batch in batches.items():
        rows = list(batch.branches)
        batch.close()
        engines[name].release(rows)
    ratios = [a / b for a, b in zip(times["growing"], times["reserved"], strict=True)]
    sums = {name: sum(of) for name, of in times.items()}
    return {
        **{f"{name}_ms": total / len(ratios) for name, total in sums.items()},
        "ratio": sums["growing"] / sums["reserved"],
        "median_ratio": median(ratios),
    }


def table(record: dict[str, Any]) -> str:
    lines = [
        "| branches x tokens | growing | reserved | ratio | of the median block |",
        "|---" * 5 + "|",
    ]
    for row in record["rows"]:
        lines.append(
            f"| {row['case'].replace('x', ' x ')} | {row['growing_ms']:.1f} ms "
            f"| {row['reserved_ms']:.1f} ms | {row['ratio']:.2f} | {row['median_ratio']:.2f} |"
        )
    return "\n".join(lines)
