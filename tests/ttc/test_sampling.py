"""Sampling against plain references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttc import InvalidInput, Sampling, UnsupportedModel
from ttc.sampling import HEAD, choose, filter_logits, gumbels, stream_key, streams


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


@pytest.mark.parametrize(("vocab", "spread"), [(7, 1.0), (256, 3.0), (3000, 6.0)])
def test_tokens_come_with_their_probabilities(vocab: int, spread: float) -> None:
    """Head and tail: the third case has tokens beyond HEAD with a tenth of the mass."""
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(1)).abs() * -spread
    logits[0, 1 : vocab // 4] = 0.0 if vocab < 3000 else -HEAD - 0.5
    logits[0, [0, vocab // 2, vocab - 1]] = float("-inf")
    probs = logits.softmax(-1)[0].double().numpy()
    draws, key = 100_000, stream_key("probabilities", vocab)
    states = streams([key] * draws, range(draws))
    tokens = torch.cat([choose(logits.expand(2000, -1), Sampling(), s) for s in states.reshape(-1, 2000)])
    counts = np.bincount(tokens.numpy(), minlength=vocab)
    assert counts[[0, vocab // 2, vocab - 1]].sum() == 0
    order = np.argsort(probs)[::-1]
    for taken in (order[:1], order[: vocab // 8], order[vocab // 8 :], order[-vocab // 2 :]):  # five standard errors
        expected = draws * probs[taken].sum()
        assert abs(counts[taken].sum() - expected) <= 5 * np.sqrt(expected) + 1


def test_the_tail_is_drawn_from_like_the_head() -> None:
    logits = torch.full((1, 50_001), -HEAD - 1.0)
    logits[0, 7] = 0.0
    states = streams([stream_key("tail")] * 4000, range(4000))
    tokens = torch.cat([choose(logits.expand(100, -1), Sampling(), s) for s in states.reshape(-1, 100)]).numpy()
    share = 50_000 * np.exp(-HEAD - 1) / (1 + 50_000 * np.exp(-HEAD - 1))
    others = tokens[tokens != 7]
    assert abs(len(others) / 4000 - share) < 5 * np.sqrt(share / 4000)
    assert abs(others.mean() / 25_000 - 1) < 0.1 and len(set(others)) > 0.95 * len(others)


def test_rounding_does_not_change_what_is_drawn() -> None:
    """What other rows do to a row's logits in float32, a hundred-thousandth, moves next to no choice."""
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 50_000, generator=random) * 3
    for temperature in (0.8, 1.0):
        changed = 0
        for i in range(50):
            states = streams([stream_key(i)] * 40, range(40))
            rounded = logits + torch.randn(logits.shape, generator=random) * 1e-5
            drawn = [choose(x, Sampling(temperature), states) for x in (logits, rounded)]
            changed += int((drawn[0] != drawn[1]).sum())
        assert changed <= 1  # of 2,000; by the inverse of the cumulative distribution, twenty


def test_greedy_and_what_filters_leave() -> None:
    states = streams([1, 2, 3], [0, 0, 0])
    logits = torch.tensor([[1.0, 3.0, 2.0]]).expand(3, -1)
    assert choose(logits, Sampling(temperature=0), states).tolist() == [1, 1, 1]
    assert choose(logits, Sampling(top_k=1), states).tolist() == [1, 1, 1]
    assert choose(torch.tensor([[5.0, float("-inf")]]), Sampling(), states[:1]).tolist() == [0]
    with pytest.raises(UnsupportedModel, match="not finite"):
        choose(torch.full((1, 4), float("nan")), Sampling(), states[:1])


def test_streams_depend_on_key_and_position_alone() -> None:
    keys, positions = [stream_key(0, i) for i in range(500)], list(range(500))
    values = streams(keys, positions)
    assert (streams(keys[::-1], positions[::-1])[::-1] == values).all()
    assert len(set(values.tolist())) == 500
    tokens = np.arange(100_000)
    noise = gumbels(values[0], tokens)
    assert (gumbels(values[0], tokens[::-1])[::-1] == noise).all() and np.isfinite(noise).all()
    assert abs(noise.mean() - np.euler_gamma) < 0.02 and abs(noise.var() - np.pi**2 / 6) < 0.05
    for other in (gumbels(values[1], tokens), np.roll(noise, 1)):
        assert abs(np.corrcoef(noise, other)[0, 1]) < 0.02


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
