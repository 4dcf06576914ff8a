"""A hybrid model (gated delta nets beside attention): 16 branches on one prefix, against `generate`
with as many."""

from __future__ import annotations

import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from experiments.lab.bench.options import RESULTS
from experiments.lab.bench.prefix import timed_generate
from experiments.lab.records import save
from experiments.runs.provenance import provenance
from experiments.standins.small_models import Characters
from ttc.engine import Engine
from ttc.model.runner_choice import runner_for

PREFIX, BRANCHES, NEW_TOKENS, ROUNDS = 1024, 16, 32, 5
SHAPE = {
    "num_hidden_layers": 4,  # three of gated delta nets, one of attention
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 8,
    "vocab_size": 16_384,
}
"""Fewer layers, heads and words than a real Qwen3.5; the dimensions of heads are its own."""

Figures = dict[str, float]


def build(shape: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**shape)).bfloat16().eval().requires_grad_(False)
    model.generation_config.pad_token_id = 0
    return model


def generate(model: Any, ids: list[int], branches: int, new_tokens: int) -> Figures:
    """`generate(num_return_sequences=B)`: every branch prefills and keeps a prefix of its own."""
    stamps = timed_generate(model, ids, branches, new_tokens)
    return {"prefill_s": stamps[0], "step_ms": (stamps[-1] - stamps[0]) / (new_tokens - 1) * 1e3}


def engine(own: Engine, ids: list[int], branches: int, new_tokens: int) -> Figures:
    """One prefill; the branches refer to its state, and a step copies it for each of them and keeps
    what it leaves."""
    start = time.perf_counter()
    root = own.root(ids)
    prefilled = time.perf_counter()
    children = own.fork(root, branches)
    own.generate(children, new_tokens)
    end = time.perf_counter()
    held = own.kv_bytes()
    own.release([root, *children])
    return {
        "prefill_s": prefilled - start,
        "step_ms": (end - prefilled) / new_tokens * 1e3,
        "bytes": held,
    }


def measure(
    shape: dict[str, int], prefix: int, branches: int, new_tokens: int, rounds: int
) -> list[dict[str, Any]]:
    """Medians of both ways, which take turns in this process."""
    model = build(shape)
    packed = copy.deepcopy(model)
    own = Engine(packed, Characters(), runner=runner_for(packed, "auto", pack=True))
    own.limits.eos_ids = frozenset()
    ids = torch.randint(
        10, shape["vocab_size"], (prefix,), generator=torch.Generator().manual_seed(0)
    ).tolist()
    ways: dict[str, Callable[[list[int], int], Figures]] = {
        "generate": lambda tokens, new: generate(model, tokens, branches, new),
        "engine": lambda tokens, new: engine(own, tokens, branches, new),
    }
    for way in ways.values():
        way(ids[:8], 4)  # first-use set-up is not counted
    found: dict[str, list[Figures]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(way(ids, new_tokens))
    return [
        {"way": name} | {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        for name, rows in found.items()
    ]


def run(*, out: Path = RESULTS / "hybrid.json") -> None:
    """Measure, print the table and write the figures."""
    rows = measure(SHAPE, PREFIX, BRANCHES, NEW_TOKENS, ROUNDS)
    result = provenance(
        "python -m experiments.bench hybrid",
        model="Qwen3.5's architecture with random weights, bfloat16, " + json.dumps(SHAPE),
    )
    result |= {
        "prefix": PREFIX,
        "branches": BRANCHES,
        "new_tokens": NEW_TOKENS,
        "rounds": ROUNDS,
        "rows": rows,
    }
    save(result, out)
    print(table(result))


def table(result: dict[str, Any]) -> str:
    """Prefill, a decoding step, and both together, as a Markdown table."""
    plain, own = result["rows"]
    lines = ["| | `generate` | engine | faster |", "|---|---|---|---|"]
    for name, times in (
        ("prefill", [row["prefill_s"] for row in (plain, own)]),
        ("a token of all branches", [row["step_ms"] / 1e3 for row in (plain, own)]),
        (
            f"prefill and {result['new_tokens']} tokens",
            [
                row["prefill_s"] + result["new_tokens"] * row["step_ms"] / 1e3
                for row in (plain, own)
            ],
        ),
    ):
        cells = [f"{t:.1f} s" if t >= 1 else f"{t * 1e3:.0f} ms" for t in times]
        lines.append(f"| {name} | {cells[0]} | {cells[1]} | {times[0] / times[1]:.1f}x |")
    return "\n".join(lines)
