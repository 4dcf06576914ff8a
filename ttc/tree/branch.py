"""A branch as the tree knows it: tokens on a path from a root, where they end in the tree, a random
stream and a meter. `ttc.branch.Branch` reads what they say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import count
from math import nan
from typing import Any, ClassVar, Literal, Self
from weakref import WeakSet

from ttc.checks import check_is
from ttc.errors import InvalidInput
from ttc.sampling import random_key
from ttc.tree.segment import Segment
from ttc.usage import Usage

StepEnd = Literal["delimiter", "eos", "end", "context", "gate", "length", "looped", "interrupted"]
"""Why a step ended: a delimiter of the step, the branch's finish reason, its token limit, tokens
that go in circles, or an error."""

MOST_ROWS = 256
"""Branches that decode at once unless the caller says otherwise."""

_root_ids = count()


@dataclass(frozen=True)
class Substitution:
    """A prompt that another one's KV stands for, and how similar their states were (ASKS)."""

    prompt: list[int]
    similarity: float


class TokenBranch:
    """One path from a root, by its tokens alone.

    tokens: every token, the prompt first, of which there are `prompt_length`: up to the last turn
        that was appended.
    logprobs, top1: of every token from there on, its log-probability under the model (temperature
        1, no filter) and the probability of the likeliest token; NaN where it was given by
        `Engine.extend`.
    entropies, top_k_logprobs, self_certainties: likewise, in nats, the entropy, the mean
        log-probability of the 20 likeliest tokens, and the divergence from the uniform
        distribution, where statistics were asked for; else NaN.
    alternatives: the likeliest tokens in the place of a generated one, by its number in `tokens`,
        each with its log-probability; {} where they were not asked for (`Step.top_logprobs`).
    opening: how many tokens stand before the first generated one, or before the first that will be.
    step_ends, step_reasons: `len(tokens)` after each step, and why it ended.
    given_end: `len(tokens)` after the last token that was given and not generated.
    model: its model's name, where there are several (`ttc.protocols.Handoff`).
    path: the child's index at each fork. forks: how many were ever made of it. parent, children:
        those that still exist.
    root_id: the same for all branches of one problem.
    key: its random stream. usage: the meter of its problem.
    finish_reason: None while it can go on; else "eos", "end" (an end string), "context" (the
        model's limit), "gate" (a `DecodeGate`) or "looped".
    substituted: the prompt that it was meant to stand on, where it stands on another one's KV
        (approximate).
    score, step_scores: what the last `Rate` left.
    matcher: where a grammar stands after its tokens, None for no grammar (`ttc.schema.grammar`).
    used_at: the engine's count of calls when one last worked on it.
    leaf: the segment under which the KV of all tokens but the last one lies, which is fed when the
        branch goes on. Raises InvalidInput once the branch was released.
    """

    COLUMNS: ClassVar = ("logprobs", "top1", "entropies", "top_k_logprobs", "self_certainties")
    """Kept for every token after the prompt."""

    COPIED: ClassVar[tuple[str, ...]] = ("tokens", *COLUMNS, "step_ends", "step_reasons")
    """The lists that a child has for itself."""

    parent: Self | None
    children: WeakSet[Self]

    def __init__(
        self,
        tokens: Sequence[int],
        leaf: Segment | None,
        key: int,
        usage: Usage,
        root_id: int | None = None,
    ):
        self.tokens = list(tokens)
        self.prompt_length = self.given_end = self.opening = len(self.tokens)
        self.logprobs: list[float] = []
        self.top1: list[float] = []
        self.entropies: list[float] = []
        self.top_k_logprobs: list[float] = []
        self.self_certainties: list[float] = []
        self.alternatives: dict[int, list[tuple[int, float]]] = {}
        self.step_ends: list[int] = []
        self.step_reasons: list[StepEnd] = []
        self.model = ""
        self.path: tuple[int, ...] = ()
        self.parent = None
        self.children = WeakSet()
        self.root_id = next(_root_ids) if root_id is None else root_id
        self.key = key
        self._leaf = leaf
        self.usage = usage
        self.finish_reason: StepEnd | None = None
        self.substituted: Substitution | None = None
        self.score: float | None = None
        self.step_scores: list[float] = []
        self.matcher: Any = None
        self.used_at = 0
        self.forks = 0

    def child(self) -> Self:
        """A copy with a stream of its own, not rated yet. Its reference to the leaf is the caller's
        business."""
        twin = copy(self)
        for name in self.COPIED:
            setattr(twin, name, getattr(self, name)[:])
        twin.alternatives = dict(self.alternatives)
        twin.children = WeakSet()
        twin.forks = 0
        twin.score, twin.step_scores = None, []
        twin.matcher = None if self.matcher is None else self.matcher.copy()
        self._take_in(twin)
        return twin

    def adopt(self, child: Self, model: str, count: int) -> None:
        """Make a root of another model a child of this branch. count: how many of its last tokens
        this branch has written in its last turn."""
        self._take_in(child)
        child.model = model
        child.count_as_written(count)

    def _take_in(self, child: Self) -> None:
        child.path = (*self.path, self.forks)
        child.key = random_key(self.key, self.forks)
        child.parent = self
        self.forks += 1
        self.children.add(child)

    def count_as_written(self, count: int) -> None:
        """Say of a root that its last `count` tokens are no prompt, but its text, which another
        model has written."""
        self.prompt_length = len(self.tokens) - count
        for column in self.columns():
            column[:] = [nan] * count
        if count:
            self.end_step("interrupted")

    def columns(self) -> tuple[list[float], ...]:
        return self.logprobs, self.top1, self.entropies, self.top_k_logprobs, self.self_certainties

    def append(
        self,
        token: int,
        logprob: float,
        top1: float,
        entropy: float = nan,
        top_k_logprob: float = nan,
        self_certainty: float = nan,
    ) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.top1.append(top1)
        self.entropies.append(entropy)
        self.top_k_logprobs.append(top_k_logprob)
        self.self_certainties.append(self_certainty)

    def take_back(self, count: int) -> None:
        """Undo the last `count` generated tokens."""
        del self.tokens[len(self.tokens) - count :]
        for column in self.columns():
            del column[len(column) - count :]
        self.finish_reason = None
        self.matcher = None

    def reopen(self, drop: int = 0) -> None:
        """Let a finished branch go on without its last `drop` tokens (0 or 1); given tokens must
        follow. The last token has no KV, so the tree stays."""
        self.take_back(drop)
        self.step_ends = [min(end, len(self.tokens)) for end in self.step_ends]

    def begin_answer(self) -> None:
        """Count every token so far as the prompt."""
        self.prompt_length = self.given_end = len(self.tokens)
        self.step_ends = []
        self.step_reasons = []
        self.matcher = None
        for column in self.columns():
            column.clear()

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens alone, all of them as the prompt."""
        del self.tokens[length:]
        self.opening = min(self.opening, length)
        self.finish_reason = None
        self.substituted = None
        self.begin_answer()

    def give(self, tokens: Sequence[int]) -> None:
        if self.generated:
            for column in self.columns():
                column += [nan] * len(tokens)
        else:
            self.prompt_length += len(tokens)
        self.opening = self.opening_with(len(tokens))
        self.tokens += tokens
        self.given_end = len(self.tokens)

    def opening_with(self, count: int) -> int:
        return self.opening + count if self.opening == len(self.tokens) else self.opening

    def end_step(self, reason: StepEnd) -> None:
        self.step_ends.append(len(self.tokens))
        self.step_reasons.append(reason)

    def resume_step(self) -> None:
        self.step_ends.pop()
        self.step_reasons.pop()

    @property
    def leaf(self) -> Segment:
        if self._leaf is None:
            raise InvalidInput(f"{self!r} was released; fork or generate before releasing it")
        return self._leaf

    @leaf.setter
    def leaf(self, segment: Segment) -> None:
        self._leaf = segment

    @property
    def released(self) -> bool:
        return self._leaf is None

    def detach(self) -> Segment | None:
        leaf = self._leaf
        self._leaf = None
        return leaf

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def gated(self) -> bool:
        return self.finish_reason == "gate"

    def __repr__(self) -> str:
        state = f"finish_reason={self.finish_reason}, score={self.score}"
        return f"{type(self).__name__}(path={self.path}, tokens={len(self.tokens)}, {state})"


def check_branches(branches: Iterable[TokenBranch], name: str = "branches") -> None:
    """Refuse what is no list of branches, by its name."""
    check_is(name, branches, Iterable, "a list of branches")
    for branch in branches:
        check_is(f"one of {name}", branch, TokenBranch, "what engine.root or engine.fork makes")


def check_live(branches: Sequence[TokenBranch]) -> None:
    """Refuse branches that were released, one that comes twice, and what is no branch."""
    check_branches(branches)
    for branch in branches:
        _ = branch.leaf  # raises if the branch was released
    if len({id(b) for b in branches}) < len(branches):
        raise InvalidInput(
            "the same branch was given twice in one call; fork it to continue it in two ways"
        )


def by_model(branches: Sequence[TokenBranch]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for place, branch in enumerate(branches):
        places.setdefault(branch.model, []).append(place)
    return places


def by_problem(branches: Sequence[TokenBranch]) -> list[list[int]]:
    """The places of each problem's branches, in order of appearance."""
    places: dict[int, list[int]] = {}
    for place, branch in enumerate(branches):
        places.setdefault(branch.root_id, []).append(place)
    return list(places.values())
