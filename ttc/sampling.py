"""Sampling from next-token logits, one reproducible stream per branch."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ttc.errors import InvalidInput, UnsupportedModel

HEAD = 10.0
"""Tokens that are exp(HEAD) times less likely than the likeliest, or less, take part in a draw as one; if it wins, it
is drawn among them."""

TAIL = 2**40
"""The number under which they do: no token's."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. `temperature=0` is greedy. Filters apply in the order top-k, top-p, min-p."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise InvalidInput(f"temperature={self.temperature} must be 0 (greedy) or above")
        if self.top_k < 0:
            raise InvalidInput(f"top_k={self.top_k} must be 0 (off) or above")
        if not 0 < self.top_p <= 1:
            raise InvalidInput(f"top_p={self.top_p} must lie in (0, 1]; 1 turns it off")
        if not 0 <= self.min_p < 1:
            raise InvalidInput(f"min_p={self.min_p} must lie in [0, 1); 0 turns it off")


def stream_key(*parts: object) -> int:
    """A 64-bit key from any printable parts: (run seed, problem id) for a root, (parent key, index) for a child."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def streams(keys: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    """A 64-bit state for each (stream key, token position): counter-based, so nothing is kept and no order matters."""
    return _mix(np.asarray(keys, np.uint64), np.asarray(positions, np.uint64))


def gumbels(states: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """A standard Gumbel number for each (state, token), float64."""
    uniform = ((_mix(states, tokens.astype(np.uint64)) >> np.uint64(11)) + 0.5) * 2.0**-53
    noise: np.ndarray = -np.log(-np.log(uniform))
    return noise


def _mix(states: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """SplitMix64 (Steele, Lea & Flood, 2014): output number `counters` from each of `states`."""
    x = states + (counters + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def filter_logits(logits: Tensor, sampling: Sampling) -> Tensor:
    """Mask the tokens that `sampling` excludes with -inf. logits: (rows, vocab), already divided by temperature."""
    if 0 < sampling.top_k < logits.shape[-1]:
        floor = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < floor, float("-inf"))
    if sampling.top_p < 1:
        ordered, index = logits.sort(dim=-1, descending=True)
        probs = ordered.softmax(-1)
        drop = probs.cumsum(-1) - probs >= sampling.top_p
        logits = logits.masked_fill(torch.zeros_like(drop).scatter(-1, index, drop), float("-inf"))
    if sampling.min_p > 0:
        floor = logits.amax(-1, keepdim=True) + float(np.log(sampling.min_p))
        logits = logits.masked_fill(logits < floor, float("-inf"))
    return logits


def choose(logits: Tensor, sampling: Sampling, states: np.ndarray) -> Tensor:
    """Pick a token per row: the largest sum of log-probability and Gumbel noise (Maddison et al., 2014, section 2).

    logits: (rows, vocab), at least float32. states: one per row, of `streams`.
    The noise belongs to one token at one place of one stream, so rounding changes a choice only where the two best are
    as close as the rounding. Inverting the cumulative distribution would not do: in its tail thousands of tokens lie
    side by side, and every rounding moves the choice on to a neighbour.
    """
    if sampling.temperature == 0:
        return logits.argmax(-1)
    scaled = filter_logits(logits / sampling.temperature, sampling)
    top = scaled.amax(-1, keepdim=True)
    head = _places(scaled > top - HEAD)
    rows, tokens = np.divmod(head, logits.shape[-1])
    weights = scaled.sub_(top).view(-1)[torch.as_tensor(head, device=logits.device)].double().cpu().numpy()
    total = scaled.exp_().sum(-1).cpu().numpy()
    race, tail_noise = weights + gumbels(states[rows], tokens), gumbels(states, np.full(len(states), TAIL))
    starts = np.searchsorted(rows, np.arange(len(states) + 1))
    chosen = []
    for row, (start, end) in enumerate(pairwise(starts)):
        if start == end:
            raise UnsupportedModel("the model's logits are not finite; load it in another dtype, as dtype=float32")
        best = start + race[start:end].argmax()
        tail = total[row] - np.exp(weights[start:end]).sum()  # may round to no more than 0
        wins = tail > 0 and np.log(tail) + tail_noise[row] > race[best]
        token = _in_tail(scaled[row], states[row]) if wins else None
        chosen.append(int(tokens[best]) if token is None else token)
    return torch.tensor(chosen, device=logits.device)


def _in_tail(weights: Tensor, state: np.ndarray) -> int | None:
    """The winner among the tokens beyond the head, None if there are none. weights: (vocab,), 1 for the likeliest."""
    tokens = _places((weights <= math.exp(-HEAD)) & (weights > 0))
    if not len(tokens):
        return None
    found = weights[torch.as_tensor(tokens, device=weights.device)].double().log().cpu().numpy()
    return int(tokens[(found + gumbels(state, tokens)).argmax()])


def _places(mask: Tensor) -> np.ndarray:
    """Where a mask is true, counted through its rows; NumPy is several times faster at it than PyTorch on a CPU."""
    places: np.ndarray = (
        np.flatnonzero(mask.numpy()) if mask.device.type == "cpu" else mask.flatten().nonzero()[:, 0].cpu().numpy()
    )
    return places


SAMPLED = Sampling()
"""Plain sampling from the model's own distribution."""
