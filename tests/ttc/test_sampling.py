"""Sampling against plain references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttc import InvalidInput, Sampling
from ttc.sampling import choose, filter_logits, stream_key, uniforms


def reference(probs: np.ndarray, sampling: Sampling) -> set[int]:
    """The tokens that the filters leave, by sorting one row."""
    order = np.argsort(-probs, kind="stable")
    if 0 < sampling.top_k < len(probs):
        order = order[: sampling.top_k]
    kept = probs[order] / probs[order].sum()
    order = order[np.cumsum(kept) - kept < sampling.top_p]
    return {int(t) for t in order if probs[t] >= sampling.min_p * probs.max()}


@given(st.integers(0, 10_000), st.integers(0, 12), st.sampled_from([0.3, 0.7, 0.95, 1.0]), st.sampled_from([0.0, 0.1]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_filters(seed: int, top_k: int, top_p: float, min_p: float) -> None:
    sampling = Sampling(1.0, top_k, top_p, min_p)
    logits = torch.randn(3, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2
    left = filter_logits(logits, sampling)
    for row, probs in zip(left, logits.softmax(-1).numpy(), strict=True):
        assert set(row.isfinite().nonzero().flatten().tolist()) == reference(probs, sampling)


@pytest.mark.parametrize("vocab", [7, 256, 700])
def test_tokens_come_with_their_probabilities(vocab: int) -> None:
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(1))
    logits[0, [0, vocab // 2, vocab - 1]] = float("-inf")
    probs = logits.softmax(-1)[0].double().numpy()
    draws = 20_000
    uniform = (np.arange(draws) + 0.5) / draws  # evenly spread: each token's count is exact but for the rounding
    tokens = torch.cat([choose(logits.expand(2000, -1), Sampling(), u) for u in uniform.reshape(-1, 2000)])
    counts = np.bincount(tokens.numpy(), minlength=vocab)
    assert np.abs(counts - draws * probs).max() <= 2
    assert counts[[0, vocab // 2, vocab - 1]].sum() == 0


def test_the_ends_of_the_unit_interval() -> None:
    logits = torch.tensor([[float("-inf"), 0.0, 0.0, float("-inf")]])
    ends = np.array([0.0, 1 - 2**-53])
    assert choose(logits.expand(2, -1), Sampling(), ends).tolist() == [1, 2]
    assert choose(torch.tensor([[1.0, 3.0, 2.0]]), Sampling(temperature=0), ends[:1]).tolist() == [1]


def test_uniforms_depend_on_key_and_position_alone() -> None:
    keys, positions = [stream_key(0, i) for i in range(500)], list(range(500))
    values = uniforms(keys, positions)
    assert (uniforms(keys[::-1], positions[::-1])[::-1] == values).all()
    assert values.min() >= 0 and values.max() < 1 and len(set(values)) == 500
    assert abs(values.mean() - 0.5) < 0.05
    same = uniforms([keys[0]] * 500, positions)
    assert abs(np.corrcoef(same[:-1], same[1:])[0, 1]) < 0.15


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -0.1}, r"temperature=-0\.1"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_k": -1}, "top_k=-1"),
        ({"top_p": 0}, "top_p=0"),
        ({"top_p": 1.5}, r"top_p=1\.5"),
        ({"min_p": 1}, "min_p=1"),
    ],
)
def test_bad_parameters_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Sampling(**fields)
