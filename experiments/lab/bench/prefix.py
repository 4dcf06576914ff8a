"""B branches on one prefix of n tokens: decode step, prefill, peak memory and KV bytes of each way
to do it."""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Annotated, Any

import torch

from experiments.lab.bench.dtypes import default_dtype, generate_dtype
from experiments.lab.bench.options import RESULTS, Model
from experiments.lab.records import UNNOTED, parts, save
from experiments.runs.provenance import provenance
from ttc.cost_model.bandwidth import read_bandwidth
from ttc.engine import Engine
from ttc.model.loading.load import load
from ttc.model.runner_choice import runner_for

CASES = ((64, 1), (256, 8), (256, 32), (1024, 8), (1024, 32), (4096, 8), (4096, 32))
SHORT = ((64, 1), (256, 8), (1024, 8), (1024, 32), (4096, 8))
"""The README's cases, for `generate` and the engine alone."""

STORED = ((64, 1), (1024, 8))
"""Those that are measured with weights in 4 bits too."""

AVX2 = tuple((tokens, branches) for tokens in (256, 1024) for branches in (1, 8, 16, 64))
QUICK = ((64, 1), (256, 8), (4096, 8), (4096, 32))
NEW_TOKENS = 24
AVX2_ENVIRONMENT = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "TTC_CPU": "haswell",
}
"""What makes a process use the instructions of a processor without AVX-512: PyTorch, oneDNN, and
this package's kernels."""
Figures = dict[str, float | None]


@dataclass(frozen=True)
class Way:
    """What is measured, in which type. quantized: the weights stay in the 4 bits of the default
    model's file."""

    arm: str
    dtype: str
    quantized: bool = False


Case = tuple[int, int]
"""Tokens of the prefix, and branches."""


def prompt(tokens: int) -> list[int]:
    return torch.randint(10, 40_000, (tokens,), generator=torch.Generator().manual_seed(0)).tolist()


def timed_generate(model: Any, ids: list[int], branches: int, new_tokens: int) -> list[float]:
    """The seconds from the start of `generate(num_return_sequences=B)`, where every branch has a
    copy of the prefix, to each of its tokens; the first is the prefill's."""
    from transformers import StoppingCriteria

    stamps: list[float] = []

    class Clock(StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            stamps.append(time.perf_counter() - start)
            return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)

    start = time.perf_counter()
    model.generate(
        torch.tensor([ids], device=model.device),
        num_return_sequences=branches,
        do_sample=True,
        top_k=0,
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        stopping_criteria=[Clock()],
    )
    return stamps


def _generate(model: Any, tokenizer: Any, ids: list[int], branches: int) -> Figures:
    stamps = timed_generate(model, ids, branches, NEW_TOKENS)
    return _figures(stamps[0], stamps, branches * len(ids), model)


def _repeat(model: Any, tokenizer: Any, ids: list[int], branches: int) -> Figures:
    """One prefill, then `batch_repeat_interleave` of the cache and a plain sampling loop."""
    from transformers import DynamicCache

    with torch.inference_mode():
        start = time.perf_counter()
        cache = DynamicCache(config=model.config)
        logits = model(
            torch.tensor([ids], device=model.device), past_key_values=cache, logits_to_keep=1
        ).logits
        cache.batch_repeat_interleave(branches)
        logits = logits.repeat_interleave(branches, 0)
        prefill, stamps = time.perf_counter() - start, []
        for _ in range(NEW_TOKENS):
            token = torch.multinomial(logits[:, -1].float().softmax(-1), 1)
            stamps.append(time.perf_counter())
            logits = model(token, past_key_values=cache).logits
        token.tolist()
    return _figures(prefill, stamps, branches * len(ids), model)


def _continuous(model: Any, tokenizer: Any, ids: list[int], branches: int) -> Figures:
    """transformers' continuous batching: one request, which it forks when its prompt is
    prefilled."""
    from transformers import GenerationConfig

    options = {"do_sample": True, "eos_token_id": -1, "pad_token_id": 0}
    model.generate_batch(
        [ids[:8]], generation_config=GenerationConfig(max_new_tokens=1, pad_token_id=0)
    )
    config = GenerationConfig(
        max_new_tokens=NEW_TOKENS + 1, num_return_sequences=branches, **options
    )
    start = time.perf_counter()
    outputs = model.generate_batch(
        [ids], generation_config=config, progress_bar=False, record_timestamps=True
    )
    if len(outputs) != branches:  # a version without forks: B requests with the same prompt
        config.num_return_sequences = 1
        start = time.perf_counter()
        outputs = model.generate_batch(
            [ids] * branches, generation_config=config, progress_bar=False, record_timestamps=True
        )
    if len(outputs) != branches:
        raise RuntimeError(f"generate_batch answered {len(outputs)} of {branches} requests")
    return _batched_figures(start, [output.timestamps for output in outputs.values()])


def _batched_figures(start: float, stamps: Sequence[Sequence[float]]) -> Figures:
    """Of the times of each request's tokens. Prefill ends with the first token of the last request
    that has one; where prompts are prefilled one after the other, others may have ended by then."""
    last = max(stamps, key=lambda times: times[0])
    steps = [b - a for a, b in pairwise(last)]
    return {
        "prefill_s": last[0] - start,
        "step_ms": statistics.median(steps) * 1e3,
        "kv_bytes": None,
    }


def _engine(model: Any, tokenizer: Any, ids: list[int], branches: int) -> Figures:
    """The engine: one prefill, forks that copy nothing, one read of the prefix per step."""
    engine = Engine(model, tokenizer, runner=runner_for(model, "auto", pack=True))
    engine.limits.eos_ids = frozenset()
    engine.release([engine.root(prompt(8)[::-1])])
    start = time.perf_counter()
    root = engine.root(ids)
    prefill = time.perf_counter() - start
    prefix_bytes = engine.kv_bytes()
    children = engine.fork(root, branches)
    stamps: list[float] = []
    forward = engine.runner.forward

    def timed(*arguments: Any) -> torch.Tensor:
        stamps.append(time.perf_counter())
        return forward(*arguments)

    engine.runner.forward = timed  # type: ignore[method-assign, assignment]
    engine.generate(children, NEW_TOKENS)
    stamps.append(time.perf_counter())
    steps = [b - a for a, b in pairwise(stamps[1:])]
    return {
        "prefill_s": prefill,
        "step_ms": statistics.median(steps) * 1e3,
        "kv_bytes": prefix_bytes,
    }


ARMS: dict[str, Callable[[Any, Any, list[int], int], Figures]] = {
    "generate": _generate,
    "repeat_interleave": _repeat,
    "generate_batch": _continuous,
    "engine": _engine,
}


def _figures(prefill: float, stamps: list[float], tokens: int, model: Any) -> Figures:
    steps = [b - a for a, b in pairwise(stamps)]
    config = model.config
    per_token = (
        2
        * config.num_hidden_layers
        * config.num_key_value_heads
        * config.head_dim
        * model.dtype.itemsize
    )
    return {
        "prefill_s": prefill,
        "step_ms": statistics.median(steps) * 1e3,
        "kv_bytes": tokens * per_token,
    }


def run_arm(
    name: str,
    tokens: int,
    branches: int,
    model: str,
    dtype: str,
    /,
    *,
    quantized: Annotated[bool, "weights stay as their file has them"] = False,
) -> None:
    """Measure one arm in this process and print its figures as JSON."""
    loaded, tokenizer = load(model, dtype=dtype, quantized=quantized)
    with torch.inference_mode():
        loaded(torch.tensor([prompt(8)], device=loaded.device))  # first-use set-up is not counted
    figures = ARMS[name](loaded, tokenizer, prompt(tokens), branches)
    figures["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(figures))


def run(
    *,
    quick: Annotated[bool, "fewer cases"] = False,
    short: Annotated[bool, "the README's cases"] = False,
    avx2: Annotated[bool, "as on a processor without AVX-512"] = False,
    model: Model = "smollm2-135m",
    out: Path | None = None,
) -> None:
    """Run the cases and arms of a size, print ratios against `generate`, and write the figures.

    out: by default prefix.json, or prefix_SIZE.json, beside the other records.
    """
    size = "quick" if quick else "short" if short else "avx2" if avx2 else "full"
    out = out or RESULTS / ("prefix.json" if size == "full" else f"prefix_{size}.json")
    cases = _cases(size, model)
    loaded, _ = load(model, dtype=torch.bfloat16)
    weights = sum(p.numel() * p.element_size() for p in loaded.parameters())
    del loaded
    bandwidth = read_bandwidth()
    rows = []
    environment = os.environ | (AVX2_ENVIRONMENT if size == "avx2" else {})
    for (tokens, branches), way in cases:
        case = {"tokens": tokens, "branches": branches} | asdict(way)
        words = [way.arm, str(tokens), str(branches), model, way.dtype]
        words += ["--quantized"] if way.quantized else []
        rows.append(case | measure(words, environment))
        print(json.dumps(rows[-1]), flush=True)
    for row in rows:
        if row["arm"] == "engine" and row["dtype"] == "bfloat16" and "kv_bytes" in row:
            row["floor_ms"] = (weights + row["kv_bytes"]) / bandwidth * 1e3
    result = provenance(
        "python -m experiments.bench prefix" + ("" if size == "full" else f" --{size}"),
        model=f"{model}, {_named(cases)}, its real weights; random prompts; sampled tokens",
    )
    result |= {
        "environment": AVX2_ENVIRONMENT if size == "avx2" else {},
        "read_bandwidth_gb_s": bandwidth / 1e9,
        "weight_bytes": weights,
        "rows": rows,
    }
    written = _beside_others(result, out) if size == "short" else result
    save(written, out)
    print({"short": short_table, "avx2": avx2_table}.get(size, table)(result))


def _cases(size: str, model_name: str) -> list[tuple[Case, Way]]:
    """What is measured of a size, and the way to do it."""
    if size == "short":
        engine = Way("engine", default_dtype(model_name))
        ways = [Way("generate", generate_dtype()), engine]
        stored = replace(engine, quantized=True)
        return [*product(SHORT, ways), *((case, stored) for case in STORED)]
    if size == "avx2":  # where PyTorch emulates bfloat16
        own = [Way("engine", dtype) for dtype in ("float32", "bfloat16")]
        return [*product(AVX2, [Way("generate", "float32"), *own])]
    ways = [Way(arm, "bfloat16") for arm in ARMS]
    return [*product(QUICK if size == "quick" else CASES, ways)]


def _beside_others(result: dict[str, Any], out: Path) -> dict[str, Any]:
    """The record of this processor among those of others in a file, by their instructions."""
    known = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    return known | {_instructions(result): result}


def _named(cases: Sequence[tuple[Case, Way]]) -> str:
    """The types, by way where they differ."""
    types = {way.dtype for _, way in cases}
    if len(types) == 1:
        return types.pop()
    return " and ".join(dict.fromkeys(f"{way.arm} in {way.dtype}" for _, way in cases))


def measure(words: list[str], environment: Mapping[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "experiments.bench", "arm", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def table(result: dict[str, Any]) -> str:
    """The figures as a Markdown table."""
    lines = [
        "| prefix | branches | way | prefill | step | step, against `generate` | prefix KV | peak "
        "memory |",
        "|---|---|---|---|---|---|---|---|",
    ]
    plain = {
        (r["tokens"], r["branches"]): r["step_ms"]
        for r in result["rows"]
        if r["arm"] == "generate" and "step_ms" in r
    }
    for row in result["rows"]:
        head = f"| {row['tokens']} | {row['branches']} | `{row['arm']}` |"
        if "error" in row:
            lines.append(f"{head} {row['error'][:80]} | | | | |")
            continue
        base = plain.get((row["tokens"], row["branches"]))
        ratio = f"{base / row['step_ms']:.1f}x faster" if base and row["arm"] != "generate" else ""
        floor = f" (floor {row['floor_ms']:.1f})" if "floor_ms" in row else ""
        kv = "" if row["kv_bytes"] is None else f"{row['kv_bytes'] / 2**20:.1f} MiB"
        lines.append(
            f"{head} {row['prefill_s']:.2f} s | {row['step_ms']:.1f} ms{floor} | {ratio} | {kv} | "
            f"{row['peak_bytes'] / 2**30:.2f} GiB |"
        )
    return "\n".join(lines)


def short_table(result: dict[str, Any]) -> str:
    """The engine beside `generate`, a line for each case, as a Markdown table.

    result: a record, or one for each processor.
    """
    lines = [
        "| processor | prefix | branches | step, `generate` | step, engine | faster | prefill, "
        "`generate` | prefill, engine |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *(line for part in parts(result) for line in _short_lines(part))])


def _short_lines(record: dict[str, Any]) -> Iterator[str]:
    processor = _instructions(record)
    plain = {(r["tokens"], r["branches"]): r for r in record["rows"] if r["arm"] == "generate"}
    for row in record["rows"]:
        if row["arm"] == "generate":
            continue
        beside = plain[row["tokens"], row["branches"]]
        name = f"{processor}, weights in 4 bits" if row.get("quantized") else processor
        yield (
            f"| {name} | {row['tokens']:,} | {row['branches']} | {beside['step_ms']:.0f} ms | "
            f"{row['step_ms']:.0f} ms | {beside['step_ms'] / row['step_ms']:.1f}x | "
            f"{beside['prefill_s']:.1f} s | {row['prefill_s']:.1f} s |"
        )


def _instructions(record: dict[str, Any]) -> str:
    """The vector instructions of a record's processor, as "AVX-512"."""
    instructions: str = record["machine"].get("instructions", UNNOTED)
    return instructions.partition(" ")[0].replace("AVX512", "AVX-512")


def avx2_table(result: dict[str, Any]) -> str:
    """The engine in both types beside `generate` in float32, a line for each case."""
    lines = [
        "| prefix | branches | `generate`, float32 | engine, float32 | engine, bfloat16 |",
        "|---|---|---|---|---|",
    ]
    rows = {(r["tokens"], r["branches"], r["arm"], r["dtype"]): r for r in result["rows"]}
    for tokens, branches in dict.fromkeys((r["tokens"], r["branches"]) for r in result["rows"]):
        plain = rows[tokens, branches, "generate", "float32"]["step_ms"]
        steps = [rows[tokens, branches, "engine", d]["step_ms"] for d in ("float32", "bfloat16")]
        cells = [f"{step:.0f} ms ({plain / step:.1f}x)" for step in steps]
        lines.append(f"| {tokens:,} | {branches} | {plain:.0f} ms | {' | '.join(cells)} |")
    return "\n".join(lines)


README_CASES = ((64, 1), (1024, 8), (4096, 8))
"""The prefixes and branches of the README's table."""


def table_and_plot(result: dict[str, Any]) -> str:
    """What the README shows of these figures: the steps of some cases, and a plot of all."""
    header, cells = ["prefix", "branches"], {case: list[str]() for case in README_CASES}
    for record in parts(result):
        processor = _instructions(record)
        header += [f"{processor}: `generate`, ms", f"{processor}: engine, ms"]
        steps = {
            (row["tokens"], row["branches"], row["arm"]): row["step_ms"]
            for row in record["rows"]
            if not row.get("quantized")
        }
        for case, shown in cells.items():
            plain, ours = (steps[*case, arm] for arm in ("generate", "engine"))
            shown += [f"{plain:.0f}", f"{ours:.0f} ({plain / ours:.1f}x)"]
    rows = [header, *([f"{tokens:,}", str(n), *cells[tokens, n]] for tokens, n in cells)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, f"|{'---|' * len(header)}")
    link = "![time of a decoding step, of generate and of the engine](docs/plots/prefix.png)"
    return "\n".join([*lines, "", link])


def draw(figures: Path, out: Path) -> bool:
    """Plot the step's time of `generate` and of the engine for each case, of the first processor.
    Returns whether there were figures, and matplotlib to draw them."""
    if not figures.exists():
        return False
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    record = parts(json.loads(figures.read_text(encoding="utf-8")))[0]
    rows = [row for row in record["rows"] if not row.get("quantized")]
    cases = sorted({(r["branches"] * r["tokens"], r["branches"], r["tokens"]) for r in rows})
    figure, axis = pyplot.subplots(figsize=(6, 3.2), layout="constrained")
    for n, arm in enumerate(("generate", "engine")):
        steps = {
            (r["branches"], r["tokens"]): r["step_ms"]
            for r in rows
            if r["arm"] == arm and "step_ms" in r
        }
        shown = [(place, steps[case[1:]]) for place, case in enumerate(cases) if case[1:] in steps]
        bars = axis.bar(
            [place + (n - 0.5) * 0.4 for place, _ in shown],
            [step for _, step in shown],
            0.4,
            label=arm,
        )
        axis.bar_label(bars, fmt="%.0f", fontsize=8)
    axis.set_xticks(
        range(len(cases)), [f"{branches} x {tokens:,}" for _, branches, tokens in cases]
    )
    axis.tick_params("x", labelsize=8)
    axis.set(
        xlabel="branches x tokens of their prefix",
        ylabel="ms",
        title=f"a decoding step, {_instructions(record)}",
        yscale="log",
    )
    axis.legend()
    figure.savefig(out, dpi=120, metadata={"Software": None})
    pyplot.close(figure)
    return True
