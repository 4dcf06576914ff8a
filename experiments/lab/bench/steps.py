"""Two steps of every branch of many problems, in one way of several: what
`experiments.lab.bench.search` runs.

`python -m experiments.lab.bench.steps engine|generate|floor MODEL` reads {"tokens": of a step, "cases":
[{"prompts": token ids, "branches": of each prompt}]} as JSON from standard input, and prints the
figures of each case as JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from ttc.attention.plan import Plan
from ttc.branch import Branch
from ttc.engine import Engine
from ttc.model.loading.load import load
from ttc.model.packed_linear import PackedLinear, pack_linears
from ttc.sampling import Sampling

Figures = dict[str, float]
Case = dict[str, Any]


def engine_steps(model_name: str, cases: list[Case], tokens: int) -> Iterator[Figures]:
    """The engine: forks of each prompt, then each goes on from its own text.

    first_equal_ms: a first step of prompts that are one step longer, as the texts of the second
    step are.
    """
    engine = Engine.from_pretrained(model_name, dtype=torch.bfloat16)
    engine.limits.eos_ids = frozenset()
    entries: list[int] = []
    forward = engine.runner.forward

    def counted(rows: Any, plan: Plan, *keep: Any) -> Tensor:
        if plan.in_storages:
            entries.append(len(plan.pieces))
        return forward(rows, plan, *keep)

    engine.runner.forward = counted  # type: ignore[method-assign, assignment]

    def step(branches: list[Branch]) -> tuple[float, float]:
        entries.clear()
        seconds = _seconds(lambda: engine.generate(branches, tokens, sampling=Sampling()))
        return seconds / tokens * 1e3, mean(entries)

    root = engine.root(cases[0]["prompts"][0])
    warm = engine.fork(root, 2)
    step(warm), step(warm)  # first-use set-up is not counted
    engine.release([root, *warm])
    for case in cases:
        start = time.perf_counter()
        roots = engine.roots(case["prompts"]).result()
        prefill = time.perf_counter() - start
        branches = [child for root in roots for child in engine.fork(root, case["branches"])]
        first, first_entries = step(branches)
        longer = [engine.root(branch.tokens) for branch in branches[:: case["branches"]]]
        others = [child for root in longer for child in engine.fork(root, case["branches"])]
        equal, _ = step(others)
        engine.release([*longer, *others])
        second, second_entries = step(branches)
        engine.release([*roots, *branches])
        yield {
            "prefill_s": prefill,
            "first_ms": first,
            "first_equal_ms": equal,
            "second_ms": second,
            "first_entries": first_entries,
            "second_entries": second_entries,
            "kv_peak_bytes": engine.memory.device.peak_bytes,
        }


def generate_steps(model_name: str, cases: list[Case], tokens: int) -> Iterator[Figures]:
    """`generate` of transformers: a padded row for each branch, all texts computed again for the
    second step."""
    from transformers import StoppingCriteria

    model, _ = load(model_name, dtype=torch.bfloat16)

    def step(texts: list[list[int]]) -> tuple[float, float, list[list[int]]]:
        longest, stamps = max(map(len, texts)), list[float]()

        class Clock(StoppingCriteria):
            def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
                stamps.append(time.perf_counter())
                return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)

        ids = torch.tensor(
            [[0] * (longest - len(text)) + text for text in texts], device=model.device
        )
        mask = torch.tensor(
            [[0] * (longest - len(text)) + [1] * len(text) for text in texts], device=model.device
        )
        start = time.perf_counter()
        output = model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            top_k=0,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            pad_token_id=0,
            stopping_criteria=[Clock()],
        )
        new = output[:, longest:].tolist()
        steps = [b - a for a, b in pairwise(stamps)]
        return (
            stamps[0] - start,
            mean(steps) * 1e3,
            [text + more for text, more in zip(texts, new, strict=True)],
        )

    step([cases[0]["prompts"][0]])
    for case in cases:
        texts = [prompt for prompt in case["prompts"] for _ in range(case["branches"])]
        prefill, first, texts = step(texts)
        again, second, _ = step(texts)
        yield {
            "prefill_s": prefill,
            "prefill_again_s": again,
            "first_ms": first,
            "second_ms": second,
        }


def floor_steps(model_name: str, cases: list[Case], tokens: int) -> Iterator[Figures]:
    """The same number of rows through the linear layers alone, as the engine keeps them."""
    model, _ = load(model_name, dtype=torch.bfloat16)
    pack_linears(model)
    layers: list[tuple[Callable[[Tensor], Tensor], int]] = []
    for module in model.modules():
        if isinstance(module, PackedLinear) and module.index == 0:
            layers.append((module.shared.product, module.in_features))
        elif isinstance(module, nn.Linear):
            layers.append((module, module.in_features))
    for case in cases:
        rows = len(case["prompts"]) * case["branches"]
        inputs = {
            width: torch.randn(1, rows, width).to(model.device, model.dtype) for _, width in layers
        }

        def run(passes: int, inputs: dict[int, Tensor] = inputs) -> None:
            for _ in range(passes):
                for layer, width in layers:
                    layer(inputs[width])
            if model.device.type == "cuda":
                torch.cuda.synchronize()

        with torch.inference_mode():
            run(1)
            milliseconds = _seconds(lambda: run(tokens)) / tokens * 1e3
        yield {"first_ms": milliseconds, "second_ms": milliseconds}


ARMS = {"engine": engine_steps, "generate": generate_steps, "floor": floor_steps}


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    work = json.load(sys.stdin)
    figures = list(ARMS[sys.argv[1]](sys.argv[2], work["cases"], work["tokens"]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"cases": figures, "peak_bytes": peak}))


if __name__ == "__main__":
    main()
