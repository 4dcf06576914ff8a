"""What generation settings do to logits, for branches of any lengths side by side.

Each processor does to a row what transformers' logits processor does to a text alone. Two are
written for rows of any lengths, as models that many use ask for them; the others are transformers'
own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ttc.draws import padded, penalised


class Texts:
    """What stands before the tokens that are to be chosen.

    tokens: of each row, int64. prompts: how many of them are its prompt. device: where processors
    work.
    """

    def __init__(
        self,
        tokens: Sequence[np.ndarray],
        prompts: Sequence[int],
        device: torch.device | str = "cpu",
    ):
        self.tokens = list(tokens)
        self.prompts = [int(prompt) for prompt in prompts]
        self.device = torch.device(device)

    @cached_property
    def ids(self) -> Tensor:
        """All tokens, int64 (rows, longest): each row ends in the last column."""
        return padded(self.tokens, self.device)

    @cached_property
    def prompt_ids(self) -> Tensor:
        pairs = zip(self.tokens, self.prompts, strict=True)
        return padded([row[:prompt] for row, prompt in pairs], self.device)

    @cached_property
    def alike(self) -> list[tuple[int, Tensor, Tensor]]:
        """(length of the prompt, numbers of rows, their tokens) of rows with the same lengths."""
        groups: dict[tuple[int, int], list[int]] = {}
        for number, (row, prompt) in enumerate(zip(self.tokens, self.prompts, strict=True)):
            groups.setdefault((len(row), prompt), []).append(number)
        alike = []
        for (_, prompt), rows in groups.items():
            tokens = padded([self.tokens[n] for n in rows], self.device)
            places = torch.from_numpy(np.asarray(rows)).to(self.device, non_blocking=True)
            alike.append((prompt, places, tokens))
        return alike


class Processor(Protocol):
    """One setting. scores: (rows, vocab), float32 or float64, changed in place and returned."""

    def __call__(self, texts: Texts, scores: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Repetition:
    """`RepetitionPenaltyLogitsProcessor`; of the prompt alone,
    `EncoderRepetitionPenaltyLogitsProcessor`, whose penalty is one over the setting."""

    penalty: float
    of_prompt: bool = False

    def __call__(self, texts: Texts, scores: Tensor) -> Tensor:
        ids = texts.prompt_ids if self.of_prompt else texts.ids
        return penalised(scores, ids, self.penalty)


@dataclass(frozen=True)
class NoRepeatNGram:
    """`NoRepeatNGramLogitsProcessor`; of the prompt alone,
    `EncoderNoRepeatNGramLogitsProcessor`."""

    size: int
    of_prompt: bool = False

    def __call__(self, texts: Texts, scores: Tensor) -> Tensor:
        ids = texts.ids
        source = texts.prompt_ids if self.of_prompt else ids
        first = ids.shape[1] + 1 - self.size
        if first < 0 or source.shape[1] < self.size:
            return scores
        runs = source.unfold(1, self.size, 1)  # (rows, places, size)
        same = (runs[..., :-1] == ids[:, None, first:]).all(-1)
        width = scores.shape[-1]
        last = runs[..., -1]
        last = torch.where(same & (last >= 0), last.clamp(max=width), width)
        banned = torch.zeros(len(scores), width + 1, dtype=torch.bool, device=scores.device)
        return scores.masked_fill_(banned.scatter_(1, last, True)[:, :width], -inf)


@dataclass(frozen=True)
class ByLength:
    """A logits processor of transformers, for texts of one length at a time.

    make: from the length of a prompt and the device to the processor.
    """

    make: Callable[[int, torch.device], Any]

    def __call__(self, texts: Texts, scores: Tensor) -> Tensor:
        for prompt, rows, ids in texts.alike:
            processor = self.make(prompt, texts.device)
            scores[rows] = processor(ids, scores[rows])
        return scores


def processed(processors: Sequence[Processor], texts: Texts, logits: Tensor) -> Tensor:
    """A changed copy of logits (rows, vocab), in float32 at least."""
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    for processor in processors:
        scores = processor(texts, scores)
    return scores
