"""RSBCM's stress test (RKSC, appendix H): eight branches, room for four, on real problems."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from experiments.lab.paper.rksc.setting import Setting, loaded
from experiments.runs.screen import with_progress
from ttc import BlockCache, Engine
from ttc.branch import Branch

BRANCHES, ROOM, TOKENS = 8, 4, 8


def run(overrides: Sequence[str], problems: int) -> dict[str, Any]:
    """Per problem: evictions, KV before and after, the seconds of both steps (the second one brings
    back what was evicted), and whether any token changes."""
    sizes = ["dataset.pad_chars=0", f"dataset.size={problems}", f"dataset.limit={problems}"]
    setting = Setting.of("rksc_verify", ["model.dtype=float32", *overrides, *sizes])
    model, tokenizer = loaded(setting.config)
    free = Engine(model, tokenizer)
    rows: list[dict[str, Any]] = []
    for problem in with_progress(setting.task.problems, "stress"):
        prompt = setting.template.tokens(problem.question, tokenizer)
        above = -(-(len(prompt) - 1) // TOKENS)
        cache = BlockCache(capacity_blocks=above + ROOM, block_tokens=TOKENS)
        tight = Engine(model, tokenizer, cache=cache)
        engines = {"unlimited": free, "limited": tight}
        order = list(engines)[:: -1 if len(rows) % 2 else 1]  # who runs second finds warm caches
        found = {name: _solve(engines[name], prompt) for name in order}
        unlimited, limited = found["unlimited"], found["limited"]
        rows.append(
            {
                "problem": problem.id,
                "evictions": limited["evictions"],
                "expected": BRANCHES - ROOM,
                "kv_bytes": limited["kv_bytes"],
                "kv_bytes_unlimited": unlimited["kv_bytes"],
                "recomputed_tokens": limited["recomputed_tokens"],
                "seconds": limited["seconds"],
                "seconds_unlimited": unlimited["seconds"],
                "same_tokens": limited["tokens"] == unlimited["tokens"],
            }
        )
    return {
        "rows": rows,
        "problems": len(rows),
        "evictions": sum(r["evictions"] for r in rows),
        "expected": sum(r["expected"] for r in rows),
        "kv_of_unlimited": sum(r["kv_bytes"] for r in rows)
        / sum(r["kv_bytes_unlimited"] for r in rows),
        "overhead_ms": [
            1e3 * median(r["seconds"][step] - r["seconds_unlimited"][step] for r in rows)
            for step in (0, 1)
        ],
        "changed": sum(not r["same_tokens"] for r in rows),
    }


def _solve(engine: Engine, prompt: list[int]) -> dict[str, Any]:
    """One step of all branches, what KV is left of it, then a second step of all, which needs what
    was evicted."""
    root = engine.root(prompt, seed=0)
    branches: list[Branch] = engine.fork(root, BRANCHES)
    engine.release([root])
    seconds = [_seconds(engine, branches)]
    kv_bytes, evictions = engine.kv_bytes(), 0 if engine.cache is None else engine.cache.evictions
    seconds.append(_seconds(engine, [b for b in branches if not b.finished]))
    found = {
        "seconds": seconds,
        "kv_bytes": kv_bytes,
        "evictions": evictions,
        "recomputed_tokens": root.usage.recomputed_tokens,
        "tokens": [b.tokens for b in branches],
    }
    engine.release(branches)
    return found


def _seconds(engine: Engine, branches: list[Branch]) -> float:
    """What one step of these branches takes."""
    start = time.perf_counter()
    engine.generate(branches, TOKENS)
    return time.perf_counter() - start
