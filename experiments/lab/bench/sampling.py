"""Choosing tokens: the compiled function of `ttc.sampling` against the sequence of array operations
before it."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.runs.provenance import provenance
from experiments.standins.array_sampling import draw_by_arrays
from ttc.model.loading.load import load
from ttc.sampling import Sampling, draw, draw_with_torch, random_key, random_states

ROWS = (1, 16, 256)
SAMPLINGS = {
    "greedy": Sampling(0),
    "plain": Sampling(),
    "top-p 0.95": Sampling(top_p=0.95),
    "top-k 50": Sampling(top_k=50),
}
SECONDS = 1.0
"""Spent on each case."""


def model_logits(model_name: str, rows: int) -> Tensor:
    """Logits (rows, vocab) in bfloat16 along a text that the model samples."""
    model, tokenizer = load(model_name, dtype=torch.bfloat16)
    ids = torch.tensor(
        [
            tokenizer.encode(
                "Question: A train has 12 cars of 48 seats. How many seats is that?\nAnswer:"
            )
        ]
    )
    torch.manual_seed(0)
    with torch.inference_mode():
        text = model.generate(
            ids, do_sample=True, top_k=0, max_new_tokens=rows, min_new_tokens=rows
        )
        logits: Tensor = model(text).logits[0, -rows:]
    return logits.clone()


def _medians(ways: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median milliseconds of each way, run in turn for some seconds."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or min(map(len, times.values())) < 3:
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(spent) for name, spent in times.items()}


def run(model_name: str, out: Path) -> None:
    """Measure each way to sample at each number of rows, print a table and write the figures."""
    half = model_logits(model_name, max(ROWS))
    rows = []
    for count in ROWS:
        logits = half[:count].float()
        states = random_states([random_key(row) for row in range(count)], [0] * count)
        for name, sampling in SAMPLINGS.items():
            ways: dict[str, Callable[[], Any]] = {
                "arrays": lambda: draw_by_arrays(logits, sampling, states),
                "compiled": lambda: draw(logits, sampling, states),
                "compiled, bfloat16 logits": lambda: draw(half[:count], sampling, states),
                "compiled, with statistics": lambda: draw(
                    logits, sampling, states, statistics=True
                ),
                "PyTorch": lambda: draw_with_torch(logits, sampling, states),
            }
            for way in ways.values():
                way()
            differing = int(np.not_equal(ways["arrays"]()[0], ways["compiled"]().tokens).sum())
            rows.append(
                {
                    "rows": count,
                    "sampling": name,
                    "ms": _medians(ways),
                    "differing_tokens": differing,
                }
            )
    model = f"{model_name}, bfloat16, its real weights; logits along a text that it sampled"
    result = provenance("python -m experiments.bench sampling", model=model)
    result |= {"vocabulary": half.shape[-1], "rows": rows}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))


def table(result: dict[str, Any]) -> str:
    """Milliseconds of each way as a Markdown table."""
    names = list(result["rows"][0]["ms"])
    lines = [
        f"| rows | sampling | {' | '.join(names)} | arrays / compiled |",
        "|---" * (3 + len(names)) + "|",
    ]
    for row in result["rows"]:
        parts = " | ".join(f"{row['ms'][name]:.2f} ms" for name in names)
        ratio = row["ms"]["arrays"] / row["ms"]["compiled"]
        lines.append(f"| {row['rows']} | {row['sampling']} | {parts} | {ratio:.1f} |")
    return "\n".join(lines)
