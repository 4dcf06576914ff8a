"""KV in 8 bits beside KV in the model's type: error, memory and time.

Errors of attention: of each layer with plain transformers, whose cache alone is rounded in that one
layer. Log-probabilities: of texts that the exact engine wrote, given piece by piece, so that each
piece reads what is stored of all before it. Times: steps of both engines in turn.
"""

from __future__ import annotations

import json
import time
from copy import deepcopy
from pathlib import Path
from statistics import mean, median
from typing import Annotated, Any

import torch
from torch import Tensor
from transformers import DynamicCache

from experiments.lab.bench.options import RESULTS, Model
from experiments.lab.records import save
from experiments.runs.provenance import provenance
from ttc.approximate.quantized_kv import Bytes, QuantizedKV
from ttc.engine import Engine
from ttc.model.loading.load import load
from ttc.residency.resident import Resident
from ttc.sampling import Sampling
from ttc.step import Step

MEMORY = {
    "bfloat16": Resident(),
    "int8": QuantizedKV(kind="int8"),
    "fp8": QuantizedKV(kind="fp8"),
}
PROMPT = "The old lighthouse keeper opened the letter, read it twice, and began to write an answer."
PIECE = 32
"""Tokens that are scored together."""
CASES = ((16, 0, 2048), (16, 512, 64))
"""Branches, own tokens of each, shared tokens."""
ROUNDS = 5
STEPS = 8


def run(
    *,
    texts: int = 4,
    tokens: Annotated[int, "of each text"] = 384,
    model: Model = "smollm2-135m",
    out: Path = RESULTS / "kv_storage.json",
) -> None:
    """Measure, print the figures as they come, and write them. texts, tokens: of the texts that are scored."""
    torch.set_num_threads(2)
    engines = {
        name: Engine.from_pretrained(model, dtype=torch.bfloat16, memory=memory)
        for name, memory in MEMORY.items()
    }
    figures: dict[str, Any] = {"steps": []}
    for case in CASES:
        figures["steps"].append(steps(engines, *case))
        print(json.dumps(figures["steps"][-1]), flush=True)
    for name, measured in (
        ("scores", lambda: score_errors(engines, texts, tokens)),
        ("attention", lambda: attention_errors(model)),
    ):
        figures[name] = measured()
        print(json.dumps({name: figures[name]}), flush=True)
    words = f"python -m experiments.bench kv_storage --texts {texts} --tokens {tokens}"
    result = provenance(words, model=f"{model}, bfloat16, its real weights") | figures
    save(result, out)


@torch.no_grad()
def attention_errors(model_name: str) -> dict[str, dict[str, float]]:
    """The root mean square error of attention's output over that of the output, of the median layer
    and the worst, for 32 tokens behind 480."""
    model, tokenizer = load(model_name, dtype=torch.float32)
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    text = model.generate(
        ids, do_sample=True, max_new_tokens=512 - ids.shape[1], min_new_tokens=512 - ids.shape[1]
    )
    stored = DynamicCache(config=model.config)
    model(text[:, :480], past_key_values=stored)

    def output(number: int, codec: Bytes | None) -> Tensor:
        """What the output projection of a layer gets, with the cache of that layer rounded."""
        cache = deepcopy(stored)
        if codec is not None:
            layer: Any = cache.layers[number]
            layer.keys, layer.values = rounded(layer.keys, codec), rounded(layer.values, codec)
        seen: list[Tensor] = []
        projection = model.model.layers[number].self_attn.o_proj
        hook = projection.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        model(text[:, 480:512], past_key_values=cache)
        hook.remove()
        return seen[0]

    errors: dict[str, list[float]] = {"int8": [], "fp8": []}
    for layer in range(model.config.num_hidden_layers):
        exact = output(layer, None)
        errors["int8"].append(float((output(layer, Bytes("int8")) - exact).norm() / exact.norm()))
        errors["fp8"].append(float((output(layer, Bytes("fp8")) - exact).norm() / exact.norm()))
    return {kind: {"median": median(e), "largest": max(e)} for kind, e in errors.items()}


def rounded(numbers: Tensor, codec: Bytes) -> Tensor:
    packed = torch.empty(*numbers.shape[:-1], numbers.shape[-1] + codec.row_bytes, dtype=torch.int8)
    codec.pack(packed, numbers)
    return codec.unpack(packed, numbers.dtype)


def score_errors(engines: dict[str, Engine], count: int, tokens: int) -> dict[str, Any]:
    """How far log-probabilities are from the exact engine's, per token of its own texts."""
    exact = engines["bfloat16"]
    root = exact.root(exact.encode(PROMPT))
    branches = exact.fork(root, count)
    eos, exact.limits.eos_ids = exact.limits.eos_ids, frozenset()
    exact.generate(branches, tokens, sampling=Sampling())
    exact.limits.eos_ids = eos
    texts = [branch.generated for branch in branches]
    exact.release([*branches, root])
    rows = {name: scores(engine, texts) for name, engine in engines.items()}
    base = rows.pop("bfloat16")
    return {
        name: {
            "mean_gap": mean(abs(a - b) for a, b in zip(row, base, strict=True)),
            "mean_shift": mean(a - b for a, b in zip(row, base, strict=True)),
            "tokens": len(row),
        }
        for name, row in rows.items()
    }


def scores(engine: Engine, texts: list[list[int]]) -> list[float]:
    """The log-probabilities of texts after the prompt, given in pieces."""
    root = engine.root(engine.encode(PROMPT))
    branches = engine.fork(root, len(texts))
    found: list[float] = []
    for first in range(0, len(texts[0]), PIECE):
        parts = [text[first : first + PIECE] for text in texts]
        for ((row,),) in zip(
            engine.score(branches, [[part] for part in parts]).result(), strict=True
        ):
            found += row
        engine.extend(branches, parts).result()
    engine.release([*branches, root])
    return found


def steps(engines: dict[str, Engine], rows: int, own: int, shared: int) -> dict[str, Any]:
    """Milliseconds of a step of all branches, in turn, and the bytes of KV of their texts."""
    batches, result = {}, dict[str, Any](branches=rows, own_tokens=own, shared_tokens=shared)
    for name, engine in engines.items():
        engine.limits.eos_ids = frozenset()
        root = engine.root([7 * i % 40_000 + 100 for i in range(shared)])
        branches = engine.fork(root, rows)
        if own:
            texts = [
                [(11 * i + 13 * row) % 40_000 + 100 for i in range(own)] for row in range(rows)
            ]
            engine.extend(branches, texts).result()
        result[f"{name}_kv_bytes"] = engine.kv_bytes()
        batch = engine.running_batch()
        batch.add(branches, Step(STEPS * (ROUNDS + 2)))
        batches[name] = batch, [*branches, root]
    times: dict[str, list[float]] = {name: [] for name in engines}
    for turn in range(ROUNDS + 1):
        for name, (batch, _) in batches.items():
            start = time.perf_counter()
            for _ in range(STEPS):
                batch.step()
            if turn:  # the first round is not counted
                times[name].append((time.perf_counter() - start) / STEPS * 1e3)
    for name, (batch, branches) in batches.items():
        batch.close()
        engines[name].release(branches)
        result[f"{name}_ms"] = median(times[name])
    return result
