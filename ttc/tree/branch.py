"""A branch: one candidate token sequence, a path from a root of the KV tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from ttc.sampling import stream_key
from ttc.usage import Usage

if TYPE_CHECKING:
    from ttc.tree.tree import Segment


@dataclass(frozen=True)
class Substitution:
    """A prompt that another one's KV stands for, and how similar their states were (ASKS)."""

    prompt: list[int]
    similarity: float


class Branch:
    """One path from a root, as `Engine.root` and `Engine.fork` make it.

    tokens: every token, prompt first. prompt_length: how many of them were given by the root.
    logprobs, top1: for every token from `prompt_length` on, its log-probability under the model (temperature 1,
    no filter) and the probability of the model's most likely token at that place.
    step_ends: `len(tokens)` after each `generate`. path: child index at each fork. key: the branch's random stream.
    finish_reason: None while it can go on; else "eos", "end" (an end string), "context" (the model's limit) or "gate"
    (a `DecodeGate` stopped it). substituted: the prompt that this branch was meant to stand on, where it stands on
    another one's (approximate), else None.
    score, step_scores: what the last `Rate` left. used_at: the engine's count of calls when one last worked on it.

    The KV of all tokens but the last is in the tree under `leaf`; the last one is fed when the branch goes on.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        leaf: Segment | None,
        key: int,
        usage: Usage,
        decode: Callable[[Sequence[int]], str],
    ):
        self.tokens = list(tokens)
        self.prompt_length = len(self.tokens)
        self.logprobs: list[float] = []
        self.top1: list[float] = []
        self.step_ends: list[int] = []
        self.path: tuple[int, ...] = ()
        self.key = key
        self.leaf = leaf
        self.usage = usage
        self.finish_reason: str | None = None
        self.substituted: Substitution | None = None
        self.score: float | None = None
        self.step_scores: list[float] = []
        self.used_at = 0
        self._forks = 0
        self._decode = decode

    def child(self) -> Branch:
        """A copy with its own stream; the tree's reference counts are the caller's business."""
        twin = Branch(self.tokens, self.leaf, stream_key(self.key, self._forks), self.usage, self._decode)
        twin.prompt_length = self.prompt_length
        twin.logprobs, twin.top1, twin.step_ends = self.logprobs[:], self.top1[:], self.step_ends[:]
        twin.path = (*self.path, self._forks)
        twin.finish_reason, twin.used_at, twin.substituted = self.finish_reason, self.used_at, self.substituted
        self._forks += 1
        return twin

    @property
    def generated(self) -> list[int]:
        """The tokens after the prompt."""
        return self.tokens[self.prompt_length :]

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def gated(self) -> bool:
        """Whether a `DecodeGate` stopped it, so that it is no whole answer."""
        return self.finish_reason == "gate"

    @property
    def text(self) -> str:
        """The generated tokens as text, without special tokens."""
        return self._decode(self.generated)

    @property
    def steps(self) -> list[str]:
        """The text of each generated step; together they are the text up to the last step's end.

        Cut out of longer texts: decoded alone, a step would lose its leading space with some tokenizers. A character
        whose bytes a step's end parts belongs to the next one.
        """
        texts = [self._decode(self.tokens[self.prompt_length : end]) for end in self.step_ends]
        ends = [len(text.rstrip("\ufffd")) for text in texts[:-1]] + [len(text) for text in texts[-1:]]
        ends = list(accumulate(ends, max, initial=0))
        return [texts[-1][a:b] for a, b in pairwise(ends)]

    def __repr__(self) -> str:
        state = f"finish_reason={self.finish_reason}, score={self.score}"
        return f"Branch(path={self.path}, tokens={len(self.tokens)}, {state})"


def by_problem(branches: Sequence[Branch]) -> list[list[int]]:
    """The places of each problem's branches, in order of appearance: branches of one root share its usage meter."""
    places: dict[int, list[int]] = {}
    for place, branch in enumerate(branches):
        places.setdefault(id(branch.usage), []).append(place)
    return list(places.values())
