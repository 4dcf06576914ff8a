"""Choosing tokens by a sequence of array operations, which is what `ttc.draws` compiles."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ttc.draws import HEAD, TAIL
from ttc.errors import UnsupportedModel
from ttc.sampling import Sampling


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
