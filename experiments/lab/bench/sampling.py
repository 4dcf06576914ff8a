"""Choosing tokens: the compiled function of `ttc.sampling` against the sequence of array operations
before it."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.runs.provenance import provenance
from ttc.errors import UnsupportedModel
from ttc.model.loading import load
from ttc.sampling import HEAD, TAIL, Sampling, draw, draw_with_torch, random_key, random_states

ROWS = (1, 16, 256)
SAMPLINGS = {
    "greedy": Sampling(0),
    "plain": Sampling(),
    "top-p 0.95": Sampling(top_p=0.95),
    "top-k 50": Sampling(top_k=50),
}
SECONDS = 1.0
"""Spent on each case."""


# ---------------------------------------------------------------- as it was, also the reference of
# the tests


def filter_by_sorting(logits: Tensor, sampling: Sampling) -> Tensor:
    """Mask the tokens that `sampling` excludes with -inf. logits: (rows, vocab), already divided by
    temperature."""
    if 0 < sampling.top_k < logits.shape[-1]:
        floor = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < floor, float("-inf"))
    if sampling.top_p < 1:
        ordered, index = logits.sort(dim=-1, descending=True, stable=True)
        probs = ordered.softmax(-1)
        drop = probs.cumsum(-1) - probs >= sampling.top_p
        logits = logits.masked_fill(torch.zeros_like(drop).scatter(-1, index, drop), float("-inf"))
    if sampling.min_p > 0:
        floor = logits.amax(-1, keepdim=True) + float(np.log(sampling.min_p))
        logits = logits.masked_fill(logits < floor, float("-inf"))
    return logits


def numpy_gumbels(states: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """A standard Gumbel number for each (state, token), float64: SplitMix64, then -log(-log(u))."""
    x = states + (tokens.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    uniform = (((x ^ (x >> np.uint64(31))) >> np.uint64(11)) + 0.5) * 2.0**-53
    noise: np.ndarray = -np.log(-np.log(uniform))
    return noise


def choose_by_arrays(logits: Tensor, sampling: Sampling, states: np.ndarray) -> Tensor:
    """Pick a token per row. logits: (rows, vocab), at least float32. states: one per row."""
    if sampling.temperature == 0:
        return logits.argmax(-1)
    scaled = filter_by_sorting(logits / sampling.temperature, sampling)
    top = scaled.amax(-1, keepdim=True)
    head = np.flatnonzero((scaled > top - HEAD).numpy())
    rows, tokens = np.divmod(head, logits.shape[-1])
    weights = scaled.sub_(top).view(-1)[torch.as_tensor(head)].double().numpy()
    total = scaled.exp_().sum(-1).numpy()
    race, tail_noise = (
        weights + numpy_gumbels(states[rows], tokens),
        numpy_gumbels(states, np.full(len(states), TAIL)),
    )
    starts = np.searchsorted(rows, np.arange(len(states) + 1))
    chosen = []
    for row, (start, end) in enumerate(pairwise(starts)):
        if start == end:
            raise UnsupportedModel("the model's logits are not finite")
        best = start + race[start:end].argmax()
        tail = total[row] - np.exp(weights[start:end]).sum()  # may round to no more than 0
        wins = tail > 0 and np.log(tail) + tail_noise[row] > race[best]
        token = _in_tail(scaled[row], states[row]) if wins else None
        chosen.append(int(tokens[best]) if token is None else token)
    return torch.tensor(chosen)


def _in_tail(weights: Tensor, state: np.ndarray) -> int | None:
    """The winner among the tokens beyond the head, None if there are none. weights: (vocab,), 1 for
    the likeliest."""
    tokens = np.flatnonzero(((weights <= math.exp(-HEAD)) & (weights > 0)).numpy())
    if not len(tokens):
        return None
    found = weights[torch.as_tensor(tokens)].double().log().numpy()
    return int(tokens[(found + numpy_gumbels(state, tokens)).argmax()])


def draw_by_arrays(logits: Tensor, sampling: Sampling, states: np.ndarray) -> list[list[float]]:
    """Tokens, their log-probabilities and the likeliest tokens' probabilities."""
    chosen = choose_by_arrays(logits, sampling, states)
    total = logits.logsumexp(-1)
    logprobs = logits.gather(-1, chosen[:, None])[:, 0] - total
    top1 = (logits.amax(-1) - total).exp()
    columns: list[list[float]] = torch.stack(
        [chosen.double(), logprobs.double(), top1.double()]
    ).tolist()
    return columns


# ---------------------------------------------------------------- the measurement


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
