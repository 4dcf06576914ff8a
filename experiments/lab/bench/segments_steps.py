"""Steps of the memory of segments beside those of the engine, in turn, in one process: seconds of
processor time for a token of every branch.

`python -m experiments.lab.bench.segments_steps PROBLEMS BRANCHES TOKENS ROUNDS`
"""

from __future__ import annotations

import json
import random
import sys
import time
from statistics import median
from typing import Any

import torch
from ttc.segments.engine import TreeEngine

from ttc.engine import Engine
from ttc.model.loading import load
from ttc.model.runner_choice import runner_for
from ttc.sampling import Sampling


def round_of(engine: Any, prompts: list[list[int]], branches: int, tokens: int) -> list[float]:
    """A first step, a second one, and a third after each was forked in two where half are left."""
    times = []

    def timed(call: Any) -> Any:
        start = time.process_time()
        result = call()
        times.append((time.process_time() - start) / tokens * 1e3)
        return result

    engine.memory.device.peak_bytes = 0
    roots = timed(lambda: engine.roots(prompts))
    children = [child for root in roots for child in engine.fork(root, branches)]
    timed(lambda: engine.generate(children, tokens, sampling=Sampling()))
    timed(lambda: engine.generate(children, tokens, sampling=Sampling()))
    kept = children[::2]
    again = [child for branch in kept for child in engine.fork(branch, 2)]
    engine.release(children)
    timed(lambda: engine.generate(again, tokens, sampling=Sampling()))
    times.append(engine.memory.device.peak_bytes / 2**20)
    engine.release([*roots, *again])
    return times


def main() -> None:
    problems, branches, tokens, rounds = map(int, sys.argv[1:])
    torch.set_num_threads(int(sys.argv[5]) if len(sys.argv) > 5 else 1)
    model, tokenizer = load("smollm2-135m", dtype=torch.bfloat16)
    model.generation_config.eos_token_id = None
    runner = runner_for(model, "auto")
    engines = {"old": Engine(model, tokenizer, runner=runner), "new": None}
    engines["new"] = TreeEngine(model, tokenizer, runner=runner)  # type: ignore[assignment]
    source = random.Random(0)
    prompts = [
        [source.randrange(1000, 40000) for _ in range(source.randint(100, 200))]
        for _ in range(problems)
    ]
    found: dict[str, list[list[float]]] = {name: [] for name in engines}
    for number in range(rounds + 1):
        for name, engine in engines.items():
            times = round_of(engine, prompts, branches, tokens)
            if number:
                found[name].append(times)
    columns = ("prefill", "first", "second", "forked", "peak MiB")
    for n, column in enumerate(columns):
        old, new = (median(row[n] for row in found[name]) for name in ("old", "new"))
        ratio = median(b[n] / a[n] for a, b in zip(found["old"], found["new"], strict=True))
        print(json.dumps({"part": column, "old": old, "new": new, "ratio": ratio}))


if __name__ == "__main__":
    main()
