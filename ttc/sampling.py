"""Sampling from next-token logits, one reproducible stream per branch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ttc.errors import InvalidInput

RUN = 256
"""Tokens whose probabilities are first summed as one when a token is drawn."""


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


def uniforms(keys: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    """One number in [0, 1) for each (stream key, token position): counter-based, so no state and no order.

    The finaliser is SplitMix64 (Steele, Lea & Flood, 2014).
    """
    x = np.asarray(keys, np.uint64) + (np.asarray(positions, np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


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


def choose(logits: Tensor, sampling: Sampling, uniform: np.ndarray) -> Tensor:
    """Pick a token per row by inverting the cumulative distribution at `uniform`. logits: (rows, vocab)."""
    if sampling.temperature == 0:
        return logits.argmax(-1)
    scaled = logits if sampling.temperature == 1 else logits / sampling.temperature
    probs = filter_logits(scaled, sampling).softmax(-1)
    if probs.shape[-1] % RUN:
        probs = torch.nn.functional.pad(probs, (0, -probs.shape[-1] % RUN))
    runs = probs.unflatten(-1, (-1, RUN))  # (rows, runs, RUN): a cumulative sum over runs, then one within the run
    masses = runs.sum(-1)
    target = torch.as_tensor(uniform, device=probs.device, dtype=probs.dtype)[:, None] * masses.sum(-1, keepdim=True)
    run, passed = _invert(masses, target)
    inside = runs.gather(1, run[..., None].expand(-1, -1, RUN))[:, 0]
    return (run * RUN + _invert(inside, target - passed)[0])[:, 0]


def _invert(masses: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The first place whose cumulative mass exceeds `target`, and the mass before it. (rows, n), (rows, 1)."""
    cumulative = masses.cumsum(-1)
    place = torch.searchsorted(cumulative, target, right=True)
    # rounding may land before or past every place that has any mass
    last = masses.shape[-1] - 1 - (masses > 0).flip(-1).to(torch.uint8).argmax(-1, keepdim=True)
    place = torch.minimum(place, last)
    return place, cumulative.gather(-1, place) - masses.gather(-1, place)


SAMPLED = Sampling()
"""Plain sampling from the model's own distribution."""
