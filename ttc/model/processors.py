"""What generation settings do to logits before a token is chosen, for branches of any lengths side by side.

Each processor does to a row what transformers' logits processor of the same setting does to a text alone
(`transformers.generation.logits_process`), in the same order of floating-point operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

NO_TOKEN = -1
"""What fills the front of a row where its text is shorter than the longest one's."""


class Texts:
    """What stands before the tokens that are to be chosen.

    tokens: of each row, int64. prompts: how many of them are its prompt. device: where processors work.
    """

    def __init__(self, tokens: Sequence[np.ndarray], prompts: Sequence[int], device: torch.device | str = "cpu"):
        self.tokens = list(tokens)
        self.prompts = np.asarray(prompts, np.int64)
        self.lengths = np.asarray([len(row) for row in self.tokens], np.int64)
        self.device = torch.device(device)

    @cached_property
    def ids(self) -> Tensor:
        """All tokens, int64 (rows, longest): each row ends in the last column, as transformers pads a batch."""
        return self._padded(self.tokens)

    @cached_property
    def prompt_ids(self) -> Tensor:
        """Likewise, those of the prompts."""
        pairs = zip(self.tokens, self.prompts, strict=True)
        return self._padded([row[:prompt] for row, prompt in pairs])

    def _padded(self, rows: Sequence[np.ndarray]) -> Tensor:
        padded = np.full((len(rows), max(map(len, rows))), NO_TOKEN)
        for place, row in enumerate(rows):
            padded[place, padded.shape[1] - len(row) :] = row
        return torch.from_numpy(padded).to(self.device, non_blocking=True)

    def column(self, values: np.ndarray) -> Tensor:
        """A number or truth value for each row, (rows, 1)."""
        return torch.from_numpy(values).to(self.device, non_blocking=True)[:, None]


class Processor(Protocol):
    """One setting. scores: (rows, vocab), float32 or float64, which may be changed in place and returned."""

    def __call__(self, texts: Texts, scores: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Repetition:
    """`RepetitionPenaltyLogitsProcessor`; of the prompt alone, `EncoderRepetitionPenaltyLogitsProcessor`, whose penalty
    is one over the setting."""

    penalty: float
    of_prompt: bool = False

    def __call__(self, texts: Texts, scores: Tensor) -> Tensor:
        ids = texts.prompt_ids if self.of_prompt else texts.ids
        known = (ids >= 0) & (ids < scores.shape[-1])
        # what is no token of the vocabulary becomes another token of the row: it gets the same value twice
        another = ids.masked_fill(~known, NO_TOKEN).amax(1, keepdim=True).clamp_min(0)
        places = torch.where(known, ids, another)
        before = scores.gather(1, places)
        after = torch.where(before < 0, before * self.penalty, before / self.penalty)
        return scores.scatter_(1, places, torch.where(known.any(1, keepdim=True), after, before))


@dataclass(frozen=True)
class NoRepeatNGram:
    """`NoRepeatNGramLogitsProcessor`; of the prompt alone, `EncoderNoRepeatNGramLogitsProcessor`."""

    size: int
    of_prompt: bool = False

    def __call__(self, texts: Texts, scores: Tensor) -> Tensor:
        ids, source = texts.ids, texts.prompt_ids if self.of_prompt else texts.ids
        first = ids.shape[1] + 1 - self.size
        if first < 0 or source.shape[1] < self.size:
            return scores
        runs = source.unfold(1, self.size, 1)  # (rows, places, size)
        same = (runs[..., :-1] == ids[:, None, first:]).all(-1)
        width, last = scores.shape[-1], runs[..., -1]
        last = torch.where(same & (last >= 0), last.clamp(max=width), width)
        banned = torch.zeros(len(scores), width + 1, dtype=torch.bool, device=scores.device)
        return scores.masked_fill_(banned.scatter_(1, last, True)[:, :width], -inf)


@dataclass(frozen=True)
class Biases:
    """`SequenceBiasLogitsProcessor` and `NoBadWordsLogitsProcessor`, which look at the end of a text alone.

    processor: the one of transformers.
    """

    processor: Any

    def __call__(self, texts: Texts, scores: Tensor) -> Tensor:
        biased: Tensor = self.processor(texts.ids, scores)
        return biased


@dataclass(frozen=True)
class LeastLength:
    """`MinLengthLogitsProcessor` and `MinNewTokensLengthLogitsProcessor`: no end before so many tokens.

    new_tokens: they are counted from the prompt's end on.
    """

    least: int
    new_tokens: bool
    eos_ids: tuple[int, ...]

    def __call__(self, texts: Texts, scores: Tensor) -> Tensor:
        before = texts.prompts if self.new_tokens else 0
        return _forbid(texts, scores, self.eos_ids, texts.lengths < self.least + before)


@dataclass(frozen=True)
class ForcedFirst:
    """`ForcedBOSTokenLogitsProcessor`: what follows a single token."""

    token: int

    def __call__(self, texts: Texts, scores: Tensor) -> Tensor:
        return _force(texts, scores, (self.token,), texts.lengths == 1)


@dataclass(frozen=True)
class ForcedLast:
    """`ForcedEOSTokenLogitsProcessor`: what ends a text at its longest.

    longest: in tokens. new_tokens: they are counted from the prompt's end on.
    """

    longest: int
    new_tokens: bool
    tokens: tuple[int, ...]

    def __call__(self, texts: Texts, scores: Tensor) -> Tensor:
        before = texts.prompts if self.new_tokens else 0
        return _force(texts, scores, self.tokens, texts.lengths == self.longest + before - 1)


@dataclass(frozen=True)
class InvalidRemoved:
    """`InfNanRemoveLogitsProcessor`: NaN is 0, and what is infinite the largest or smallest number."""

    def __call__(self, texts: Texts, scores: Tensor) -> Tensor:
        return scores.nan_to_num_(0.0)


@dataclass(frozen=True)
class LengthDecay:
    """`ExponentialDecayLengthPenalty`: the end becomes likelier, from `start` tokens after the prompt on."""

    start: int
    factor: float
    eos_ids: tuple[int, ...]

    def __call__(self, texts: Texts, scores: Tensor) -> Tensor:
        beyond = texts.lengths - texts.prompts - self.start
        if not (beyond > 0).any():
            return scores
        with np.errstate(over="ignore"):
            grown = np.float64(self.factor) ** np.maximum(beyond, 0) - 1
        largest = torch.finfo(scores.dtype).max
        of_row = texts.column(np.minimum(grown, largest)).to(scores.dtype)
        ends = _indices(self.eos_ids, scores)
        logits = scores[:, ends]
        penalty = (logits.abs() * of_row).masked_fill(~logits.isfinite(), 0.0)
        return scores.index_copy_(1, ends, (logits + penalty).clamp(max=largest))


@dataclass(frozen=True)
class Suppressed:
    """`SuppressTokensLogitsProcessor`."""

    tokens: tuple[int, ...]

    def __call__(self, texts: Texts, scores: Tensor) -> Tensor:
        return scores.index_fill_(1, _indices(self.tokens, scores), -inf)


@dataclass(frozen=True)
class SuppressedFirst:
    """`SuppressTokensAtBeginLogitsProcessor`: not as the first token after the prompt.

    after_forced: not as the second one, after a prompt of one token.
    """

    tokens: tuple[int, ...]
    after_forced: bool

    def __call__(self, texts: Texts, scores: Tensor) -> Tensor:
        first = texts.prompts + (self.after_forced & (texts.prompts <= 1))
        return _forbid(texts, scores, self.tokens, texts.lengths == first)


def processed(processors: Sequence[Processor], texts: Texts, logits: Tensor) -> Tensor:
    """A changed copy of logits (rows, vocab), in float32 at least."""
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    for processor in processors:
        scores = processor(texts, scores)
    return scores


def _indices(tokens: Sequence[int], scores: Tensor) -> Tensor:
    """Those of the tokens that the scores have a column for."""
    known = sorted({token for token in tokens if 0 <= token < scores.shape[-1]})
    return torch.tensor(known, dtype=torch.int64, device=scores.device)


def _forbid(texts: Texts, scores: Tensor, tokens: Sequence[int], rows: np.ndarray) -> Tensor:
    """Nothing but other tokens in these rows. rows: (rows,) bool."""
    if not rows.any():
        return scores
    columns = _indices(tokens, scores)
    return scores.index_copy_(1, columns, scores[:, columns].masked_fill(texts.column(rows), -inf))


def _force(texts: Texts, scores: Tensor, tokens: Sequence[int], rows: np.ndarray) -> Tensor:
    """Nothing but these tokens in these rows. rows: (rows,) bool."""
    if not rows.any():
        return scores
    columns, chosen = _indices(tokens, scores), texts.column(rows)
    kept = scores[:, columns].masked_fill(chosen, 0.0)
    return scores.masked_fill_(chosen, -inf).index_copy_(1, columns, kept)
