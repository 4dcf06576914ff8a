"""What generation settings do to logits, against transformers' own classes on each text alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.generation import logits_process as hf

from ttc.model import processors as ours

VOCAB, ENDS = 24, [3, 7]
Theirs = Callable[[Tensor, int], Any]
"""From a text's tokens and the length of its prompt to transformers' processor."""


def by_length(make: Callable[[int], Any]) -> tuple[ours.Processor, Theirs]:
    return ours.ByLength(lambda prompt, _: make(prompt)), lambda ids, prompt: make(prompt)


SAME: dict[str, tuple[ours.Processor, Theirs]] = {
    "repetition": (
        ours.Repetition(1.7),
        lambda ids, prompt: hf.RepetitionPenaltyLogitsProcessor(1.7),
    ),
    "repetition, rewarded": (
        ours.Repetition(0.6),
        lambda ids, prompt: hf.RepetitionPenaltyLogitsProcessor(0.6),
    ),
    "repetition of the prompt": (
        ours.Repetition(1 / 1.7, of_prompt=True),
        lambda ids, prompt: hf.EncoderRepetitionPenaltyLogitsProcessor(1.7, ids[:, :prompt]),
    ),
    "1-grams": (ours.NoRepeatNGram(1), lambda ids, prompt: hf.NoRepeatNGramLogitsProcessor(1)),
    "2-grams": (ours.NoRepeatNGram(2), lambda ids, prompt: hf.NoRepeatNGramLogitsProcessor(2)),
    "3-grams": (ours.NoRepeatNGram(3), lambda ids, prompt: hf.NoRepeatNGramLogitsProcessor(3)),
    "30-grams": (ours.NoRepeatNGram(30), lambda ids, prompt: hf.NoRepeatNGramLogitsProcessor(30)),
    "1-grams of the prompt": (
        ours.NoRepeatNGram(1, of_prompt=True),
        lambda ids, prompt: hf.EncoderNoRepeatNGramLogitsProcessor(1, ids[:, :prompt]),
    ),
    "2-grams of the prompt": (
        ours.NoRepeatNGram(2, of_prompt=True),
        lambda ids, prompt: hf.EncoderNoRepeatNGramLogitsProcessor(2, ids[:, :prompt]),
    ),
    "biases": by_length(
        lambda _: hf.SequenceBiasLogitsProcessor({(1,): 2.5, (2, 4): -9.0, (1, 2, 0): 3.0})
    ),
    "least new tokens": by_length(
        lambda prompt: hf.MinNewTokensLengthLogitsProcessor(prompt, 4, ENDS)
    ),
    "forced last of new ones": by_length(
        lambda prompt: hf.ForcedEOSTokenLogitsProcessor(prompt + 4, 3)
    ),
    "decay": by_length(lambda prompt: hf.ExponentialDecayLengthPenalty((2, 1.3), ENDS, prompt)),
}


def texts(seed: int) -> tuple[list[np.ndarray], list[int]]:
    """Twelve texts of few different tokens, the shortest of one, and the lengths of their
    prompts."""
    random = np.random.default_rng(seed)
    lengths = [1, 1, 2, 3, 5, 6, 8, 8, 9, 12, 20, 40]
    rows = [random.integers(0, 8, length) for length in lengths]
    return rows, [int(random.integers(1, length + 1)) for length in lengths]


@pytest.mark.parametrize("name", SAME)
def test_a_batch_of_texts_is_changed_as_each_alone(name: str) -> None:
    processor, theirs = SAME[name]
    changed = 0
    for seed in range(8):
        rows, prompts = texts(seed)
        logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(seed)) * 4
        logits[seed, [3, 7]] = float("-inf")
        before = logits.clone()
        scores = ours.processed([processor], ours.Texts(rows, prompts), logits)
        assert torch.equal(logits, before)
        for row, prompt, logit, score in zip(rows, prompts, logits, scores, strict=True):
            ids = torch.from_numpy(row)[None]
            torch.testing.assert_close(
                score[None], theirs(ids, prompt)(ids, logit[None].clone()), rtol=0, atol=0
            )
        changed += int((scores != logits).sum())
    assert changed > 0 or name == "30-grams"


def test_tokens_beyond_the_logits_are_passed_over() -> None:
    """An embedding may be larger than the output."""
    rows = [np.asarray([VOCAB + 3, VOCAB]), np.asarray([2, VOCAB, 2])]
    logits = torch.ones(2, VOCAB)
    scores = ours.processed(
        [ours.Repetition(2.0), ours.NoRepeatNGram(1)], ours.Texts(rows, [1, 1]), logits
    )
    assert (scores[0] == 1).all()
    assert (scores[1] == 1).nonzero().flatten().tolist() == [t for t in range(VOCAB) if t != 2]


def test_logits_of_16_bits_are_changed_in_float32() -> None:
    logits = torch.randn(1, VOCAB).bfloat16()
    scores = ours.processed([ours.Repetition(1.3)], ours.Texts([np.asarray([1, 2])], [1]), logits)
    expected = hf.RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([[1, 2]]), logits.float())
    assert scores.dtype == torch.float32 and torch.equal(scores, expected)
