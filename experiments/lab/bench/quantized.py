"""Decoding with weights that stay as a .gguf file stores them, beside bfloat16 weights and the time
of reading the weights once."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from gguf import GGMLQuantizationType as Kind

from experiments.lab.bench.prefix import prompt
from experiments.lab.bench.random_gguf import Shape, write_llama
from experiments.runs.provenance import provenance
from ttc.cost_model.bandwidth import read_bandwidth
from ttc.engine import Engine
from ttc.model.default_model import SMOLLM2
from ttc.sampling import Sampling

ONE_B = Shape(layers=16, width=2048, inner=8192, heads=32, kv_heads=8, vocab=128_256, context=2048)
"""The sizes of Llama-3.2-1B."""
KINDS = ("Q4_1", "Q8_0", "Q4_K")
BRANCHES = (1, 4, 16, 64)
PREFIX = 512
TOKENS = 6
"""A branch's tokens in a round, the first of them not timed."""
ROUNDS = 3


def run(quick: bool, out: Path) -> None:
    """Measure each model in turn, print a table and write the figures. quick: the large shape in
    Q4_1 and bfloat16 alone, 1 and 16 branches, one round."""
    torch.set_num_threads(2)
    branches = (1, 16) if quick else BRANCHES
    rounds = 1 if quick else ROUNDS
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        if not quick:
            for name, stays in ((f"{SMOLLM2}, Q4_1", True), (f"{SMOLLM2}, bfloat16", False)):
                engine = Engine.from_pretrained(
                    SMOLLM2, device="cpu", dtype=torch.bfloat16, quantized=stays
                )
                rows += _cases(name, engine, branches, rounds)
        for kind in ("Q4_1",) if quick else KINDS:
            file = Path(folder) / f"{kind}.gguf"
            write_llama(file, Kind[kind], ONE_B)
            engine = Engine.from_pretrained(
                file, device="cpu", dtype=torch.bfloat16, quantized=True
            )
            rows += _cases(f"1B, {kind}", engine, branches, rounds)
            file.unlink()
        rows += _cases("1B, bfloat16", _bfloat16(), branches, rounds)
    result = provenance("python -m experiments.bench quantized", model="random weights and SmolLM2")
    result |= {"bytes_per_s": read_bandwidth(), "prefix": PREFIX, "rows": rows}
    for row in rows:
        row["floor_ms"] = row["weight_bytes"] / result["bytes_per_s"] * 1e3
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(table(rows))


def _bfloat16() -> Engine:
    """The large shape with random bfloat16 weights."""
    from accelerate import init_empty_weights
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=ONE_B.vocab,
        hidden_size=ONE_B.width,
        intermediate_size=ONE_B.inner,
        num_hidden_layers=ONE_B.layers,
        num_attention_heads=ONE_B.heads,
        num_key_value_heads=ONE_B.kv_heads,
        max_position_embeddings=ONE_B.context,
        tie_word_embeddings=True,
    )
    with init_empty_weights(include_buffers=False):
        model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
    some = (0.02 * torch.randn(1 << 20)).bfloat16()
    for name, weight in list(model.named_parameters()):
        parent, _, last = name.rpartition(".")
        repeats = -(-weight.numel() // len(some))
        numbers = some.repeat(repeats)[: weight.numel()].view(weight.shape)
        made = torch.ones_like(numbers) if weight.ndim == 1 else numbers
        model.get_submodule(parent).register_parameter(last, torch.nn.Parameter(made, False))
    model.tie_weights()
    return Engine(model.eval(), None, runner="fused")


def _cases(
    name: str, engine: Engine, branches: tuple[int, ...], rounds: int
) -> list[dict[str, Any]]:
    engine.limits.eos_ids = frozenset()
    highest = engine.model.config.vocab_size - 1
    start = time.perf_counter()
    root = engine.root([min(token, highest) for token in prompt(PREFIX)])
    prefill_s = time.perf_counter() - start
    tensors = {
        tensor.data_ptr(): tensor.nbytes
        for tensor in (*engine.model.parameters(), *engine.model.buffers())
    }
    made = []
    for count in branches:
        spent = []
        for _ in range(rounds):
            forks = engine.fork(root, count)
            engine.generate(forks, 1, sampling=Sampling())
            start = time.perf_counter()
            engine.generate(forks, TOKENS - 1, sampling=Sampling())
            spent.append((time.perf_counter() - start) / (TOKENS - 1) * 1e3)
            engine.release(forks)
        made.append(
            {
                "model": name,
                "branches": count,
                "step_ms": median(spent),
                "prefill_s": prefill_s,
                "weight_bytes": sum(tensors.values()),
                "by": getattr(engine.runner, "reason", "") or "compiled layers",
            }
        )
    engine.release([root])
    return made


def table(rows: list[dict[str, Any]]) -> str:
    """The figures as a Markdown table."""
    made = ["| model | branches | step | weights read once | prefill |", "|---|---|---|---|---|"]
    for row in rows:
        made.append(
            f"| {row['model']} | {row['branches']} | {row['step_ms']:.0f} ms | "
            f"{row['floor_ms']:.0f} ms | {row['prefill_s']:.1f} s |"
        )
    return "\n".join(made)
