"""RSBCM against LRU: tokens computed again, at equal capacity, in a search that keeps many branches
idle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_module

from experiments.lab.bench.options import RESULTS, Model
from experiments.lab.records import save
from experiments.runs.bootstrap import difference
from experiments.runs.build import make_template
from experiments.runs.data import load_task
from experiments.runs.provenance import provenance
from experiments.runs.schema import register
from search import BestFirst, solve
from ttc import BlockCache, Engine
from ttc.model.loading.load import load
from ttc.results import Result
from verifiers import ArithmeticVerifier

SEARCH = BestFirst(
    beam_size=1, beam_width=4, step_tokens=32, max_steps=12, finish=8, delimiter="\n"
)
SHARES = (0.5, 0.25)
"""Capacities, as shares of the blocks that the search holds at most without a limit."""


def run(
    *, problems: int = 16, model: Model = "smollm2-135m", out: Path = RESULTS / "cache.json"
) -> None:
    """Solve the same problems under each order and capacity, print a table and write the
    figures."""
    loaded, tokenizer = load(model, dtype=torch.float32)
    register()
    with initialize_config_module("conf", version_base="1.3"):
        config = compose("config", overrides=[f"dataset.size={problems}"])
    options = {
        "problem": load_task(config.dataset).problems,
        "template": make_template(config),
        "end": ("\n\n",),
    }
    rows = [_measure(loaded, tokenizer, options, BlockCache(capacity_blocks=10**9, block_tokens=4))]
    for share in SHARES:
        capacity = int(share * rows[0]["peak_blocks"])
        for order in ("rsbcm", "lru"):
            cache = BlockCache(capacity_blocks=capacity, block_tokens=4, order=order)
            rows.append(
                _measure(loaded, tokenizer, options, cache) | {"share": share, "order": order}
            )
    for row in rows:
        row["answers_changed"] = sum(
            a != b for a, b in zip(row["answers"], rows[0]["answers"], strict=True)
        )
    result = provenance(
        f"python -m experiments.bench cache --problems {problems}",
        model=f"{model}, float32, its real weights; sums, best-first search, arithmetic verifier",
    )
    result |= {"rows": rows}
    save(result, out)
    print(table(result))


def _measure(
    model: Any, tokenizer: Any, options: dict[str, Any], cache: BlockCache
) -> dict[str, Any]:
    engine = Engine(model, tokenizer, cache=cache)
    results: list[Result] = solve(
        SEARCH, engine=engine, verifier=ArithmeticVerifier(), seed=0, concurrency=4, **options
    )
    assert engine.cache is not None
    return {
        "capacity_blocks": cache.capacity_blocks,
        "peak_blocks": engine.cache.peak_blocks,
        "evictions": engine.cache.evictions,
        "evicted_tokens": engine.cache.evicted_tokens,
        "recomputed_tokens": sum(r.usage.recomputed_tokens for r in results),
        "recomputed": [r.usage.recomputed_tokens for r in results],
        "generated_tokens": sum(r.usage.generated_tokens for r in results),
        "kv_peak_bytes": engine.memory.device.peak_bytes,
        "answers": [r.answer for r in results],
    }


def table(result: dict[str, Any]) -> str:
    """The figures as a Markdown table. "Against LRU": tokens computed again per problem, with a 95%
    interval by bootstrap over problems."""
    lines = [
        "| order | capacity | evictions | tokens computed again | of those generated | against "
        "LRU, per problem | KV at most | answers changed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    by_lru = {row["capacity_blocks"]: row for row in result["rows"] if row.get("order") == "lru"}
    for row in result["rows"]:
        against = ""
        if row.get("order") == "rsbcm" and "recomputed" in row:
            gap = difference(by_lru[row["capacity_blocks"]]["recomputed"], row["recomputed"])
            against = "{:+.0f} [{:+.0f}, {:+.0f}]".format(*gap)
        order = row.get("order", "no limit")
        capacity = (
            f"{row['capacity_blocks']} blocks"
            if "order" in row
            else f"{row['peak_blocks']} blocks at most"
        )
        lines.append(
            f"| {order} | {capacity} | {row['evictions']} | {row['recomputed_tokens']:,} | "
            f"{row['recomputed_tokens'] / row['generated_tokens']:.1%} | {against} | "
            f"{row['kv_peak_bytes'] / 2**20:.1f} MiB | {row['answers_changed']} |"
        )
    return "\n".join(lines)
