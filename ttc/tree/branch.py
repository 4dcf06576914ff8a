"""A branch: one candidate token sequence, a path from a root of the KV tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import accumulate, count, pairwise
from math import nan
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet

from ttc.checks import check_is
from ttc.errors import InvalidInput
from ttc.sampling import random_key
from ttc.text.thinking_marks import Parted
from ttc.text.thoughts import Thoughts
from ttc.tree.segment import Segment
from ttc.usage import Usage

if TYPE_CHECKING:
    from ttc.tool_calls import ToolCall

StepEnd = Literal["delimiter", "eos", "end", "context", "gate", "length", "looped", "interrupted"]
"""Why a step ended: a delimiter of the step, the branch's finish reason, its token limit, tokens
that go in circles, or an error."""

ThoughtClosed = Literal["limit", "looped"]

COLUMNS = ("logprobs", "top1", "entropies", "top_k_logprobs", "self_certainties")
"""Kept for every token after the prompt."""

COPIED = ("tokens", *COLUMNS, "step_ends", "step_reasons", "tool_calls")
"""The lists that a child has for itself."""

MOST_ROWS = 256
"""Branches that decode at once unless the caller says otherwise."""

_root_ids = count()


@dataclass(frozen=True)
class Substitution:
    """A prompt that another one's KV stands for, and how similar their states were (ASKS)."""

    prompt: list[int]
    similarity: float


class Branch:
    """One path from a root, as `Engine.root` and `Engine.fork` make it.

    tokens: every token, the prompt first, of which there are `prompt_length`: up to the last turn
        that was appended.
    logprobs, top1: of every token from there on, its log-probability under the model (temperature
        1, no filter) and the probability of the likeliest token; NaN where it was given by
        `Engine.extend`.
    entropies, top_k_logprobs, self_certainties: likewise, in nats, the entropy, the mean
        log-probability of the 20 likeliest tokens, and the divergence from the uniform
        distribution, where statistics were asked for; else NaN.
    turn_start: `len(tokens)` where the model's turn began. opened: whether the prompt had opened a
        thought there; None where only its tokens tell.
    opening: how many tokens stand before the first generated one, or before the first that will be.
    step_ends, step_reasons: `len(tokens)` after each step, and why it ended.
    given_end: `len(tokens)` after the last token that was given and not generated.
    model: its model's name, where there are several (`ttc.protocols.Handoff`).
    path: the child's index at each fork. forks: how many were ever made of it. parent, children:
        those that still exist.
    root_id: the same for all branches of one problem.
    key: its random stream.
    finish_reason: None while it can go on; else "eos", "end" (an end string), "context" (the
        model's limit), "gate" (a `DecodeGate`) or "looped".
    thoughts: how thoughts are told from answers, None where all of a text is answer.
    about: what is known of its problem beside the question (`Problem.metadata`).
    thinking_ended: `len(tokens)` where words asked for the answer, None where none did.
        thinking_tokens: tokens of thoughts since `turn_start`. thought_closed: why a driver closed
        its thought.
    tool_calls: the tools that it has called; their answers are not read as its own.
    cut: what the text leaves out at its end: a string of `leave_out`, and what its last token holds
        beyond.
    substituted: the prompt that it was meant to stand on, where it stands on another one's KV
        (approximate).
    score, step_scores: what the last `Rate` left.
    used_at: the engine's count of calls when one last worked on it.
    leaf: the segment under which the KV of all tokens but the last one lies, which is fed when the
        branch goes on. Raises InvalidInput once the branch was released.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        leaf: Segment | None,
        key: int,
        usage: Usage,
        decode: Callable[[Sequence[int]], str],
        root_id: int | None = None,
    ):
        self.tokens = list(tokens)
        self.prompt_length = self.given_end = self.opening = self.turn_start = len(self.tokens)
        self.opened: bool | None = None
        self.logprobs: list[float] = []
        self.top1: list[float] = []
        self.entropies: list[float] = []
        self.top_k_logprobs: list[float] = []
        self.self_certainties: list[float] = []
        self.step_ends: list[int] = []
        self.step_reasons: list[StepEnd] = []
        self.model = ""
        self.path: tuple[int, ...] = ()
        self.parent: Branch | None = None
        self.children: WeakSet[Branch] = WeakSet()
        self.root_id = next(_root_ids) if root_id is None else root_id
        self.key = key
        self._leaf = leaf
        self.usage = usage
        self.finish_reason: StepEnd | None = None
        self.thoughts: Thoughts | None = None
        self.about: Mapping[str, Any] = {}
        self.thinking_ended: int | None = None
        self.thinking_tokens = 0
        self.thought_closed: ThoughtClosed | None = None
        self.tool_calls: list[ToolCall] = []
        self.cut = ""
        self.substituted: Substitution | None = None
        self.score: float | None = None
        self.step_scores: list[float] = []
        self.used_at = 0
        self.forks = 0
        self._decode = decode

    def child(self) -> Branch:
        """A copy with a stream of its own, not rated yet. Its reference to the leaf is the caller's
        business."""
        twin = copy(self)
        for name in COPIED:
            setattr(twin, name, getattr(self, name)[:])
        twin.path = (*self.path, self.forks)
        twin.key = random_key(self.key, self.forks)
        twin.parent = self
        twin.children = WeakSet()
        twin.forks = 0
        twin.score, twin.step_scores = None, []
        self.forks += 1
        self.children.add(twin)
        return twin

    def adopt(self, child: Branch, model: str, given: int) -> None:
        """Make a root of another model a child of this branch. given: how many of its last tokens
        this branch has written in its last turn."""
        child.path = (*self.path, self.forks)
        child.key = random_key(self.key, self.forks)
        child.model = model
        child.parent = self
        child.about = self.about
        self.forks += 1
        self.children.add(child)
        child.count_as_written(given)

    def count_as_written(self, given: int) -> None:
        """Say of a root that its last `given` tokens are no prompt, but its text, which another
        model has written."""
        self.prompt_length = len(self.tokens) - given
        for column in self.columns():
            column[:] = [nan] * given
        if given:
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
        self.cut = ""

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
        self.thinking_ended = None
        self.thinking_tokens = 0
        self.thought_closed = None
        self.tool_calls = []
        for column in self.columns():
            column.clear()

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens alone, all of them as the prompt."""
        del self.tokens[length:]
        self.opening, self.turn_start = min(self.opening, length), min(self.turn_start, length)
        self.finish_reason = None
        self.cut = ""
        self.substituted = None
        self.begin_answer()

    def begin_turn(self, start: int, opened: bool | None) -> None:
        self.turn_start, self.opened = start, opened

    def give(self, tokens: Sequence[int]) -> None:
        if self.generated:
            for column in self.columns():
                column += [nan] * len(tokens)
        else:
            self.prompt_length += len(tokens)
        self.opening = self.opening_with(len(tokens))
        self.tokens += tokens
        self.given_end = len(self.tokens)

    def opening_with(self, given: int) -> int:
        return self.opening + given if self.opening == len(self.tokens) else self.opening

    def end_step(self, reason: StepEnd) -> None:
        self.step_ends.append(len(self.tokens))
        self.step_reasons.append(reason)

    def resume_step(self) -> None:
        self.step_ends.pop()
        self.step_reasons.pop()

    def leave_out(self, strings: Sequence[str]) -> None:
        if self.finish_reason != "end" or self.cut:
            return
        text = self.text
        before = self._decode(self.generated[:-1]).rstrip("\ufffd")
        places = [
            at
            for string in strings
            if (at := text.rfind(string)) + len(string) > len(before) and at >= 0
        ]
        self.cut = text[min(places) :] if places else ""

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

    @property
    def text(self) -> str:
        """The generated tokens as text, without special tokens and without `cut`."""
        return self._decode(self.generated).removesuffix(self.cut)

    @property
    def marked_text(self) -> str:
        """`text` as the model can be given it again: with the marks of its thoughts."""
        if self.thoughts is None or not self.thoughts.hidden:
            return self.text
        ended = self.finish_reason == "eos"
        return self.thoughts.whole(self.generated[:-1] if ended else self.generated).removesuffix(
            self.cut
        )

    def thinks_at(self, end: int, thoughts: Thoughts) -> bool:
        """Whether a thought is open before token `end`, of those after `turn_start`."""
        for call in reversed(self.tool_calls):
            if call.opened is not None and call.end <= end:
                return thoughts.open_after(self.tokens[call.end : end], call.opened)
        opened = (
            thoughts.begun(self.tokens[: self.turn_start]) if self.opened is None else self.opened
        )
        return thoughts.open_after(self.tokens[self.turn_start : end], opened)

    def thinks(self, thoughts: Thoughts) -> bool:
        return self.thinking_ended is None and self.thinks_at(len(self.tokens), thoughts)

    @property
    def answer_text(self) -> str | None:
        """What follows the thoughts; None while it still thinks."""
        return self.parted().answer

    @property
    def thought(self) -> str:
        """What stands before the answer."""
        return self.parted().thought

    def parted(self, end: int | None = None) -> Parted:
        """The thought and the answer up to token `end`, by default all. Words that ask for the
        answer end all thinking: from there on all is answer, marks left out."""
        thought, answer = self._parted(end)
        cut = self.cut if end is None or end >= len(self.tokens) else ""
        if answer is None:
            return Parted(thought.removesuffix(cut), None)
        return Parted(thought, answer.removesuffix(cut))

    def _parted(self, end: int | None) -> Parted:
        given, thoughts = self.without_calls(self.prompt_length, end), self.thoughts
        if thoughts is None:
            return Parted("", self._decode(given))
        begun = self.thinks_at(self.prompt_length, thoughts)
        if self.thinking_ended is None or (end is not None and end <= self.thinking_ended):
            place = len(self.tokens) if end is None else end
            if self.tool_calls and self.thinks_at(place, thoughts):
                return Parted(thoughts.without_marks(given), None)
            told = [c for c in self.tool_calls if c.opened is not None and c.end <= place]
            if told and self.thinks_at(told[-1].start, thoughts):  # the call has ended the thought
                call = told[-1]
                first = thoughts.without_marks(self.without_calls(self.prompt_length, call.end))
                last = thoughts.split(self.without_calls(call.end, end), bool(call.opened))
                return Parted(first + last.thought, last.answer)
            return thoughts.split(given, begun)
        asked = max(0, self.thinking_ended - self.prompt_length)
        before = thoughts.pieces(self.without_calls(self.prompt_length, self.thinking_ended), begun)
        said = self.without_calls(self.prompt_length + asked, end)
        return Parted("".join(text for _, text in before), thoughts.without_marks(said))

    def written_since(self, start: int) -> int:
        """How many of the tokens from `start` on it has written itself; tools said the others."""
        told = {(max(call.told, start), call.end) for call in self.tool_calls if call.end > start}
        return len(self.tokens) - start - sum(end - begin for begin, end in told)

    def without_calls(self, start: int, end: int | None = None) -> list[int]:
        """The tokens from `start` to `end`, without calls of tools and their answers."""
        if not self.tool_calls:
            return self.tokens[start:end]
        end = len(self.tokens) if end is None else end
        kept = list[int]()
        for call in self.tool_calls:
            kept += self.tokens[start : min(call.start, end)]
            start = max(start, call.end)
        return kept + self.tokens[start:end]

    @property
    def steps(self) -> list[str]:
        """The text of each generated step; together they are the text up to the last step's end.

        Cut out of longer texts, as a step alone would lose its leading space with some tokenizers.
        A character whose bytes a step's end parts belongs to the next one.
        """
        texts = [self._decode(self.tokens[self.prompt_length : end]) for end in self.step_ends]
        ends = [len(text.rstrip("\ufffd")) for text in texts[:-1]] + [
            len(text) for text in texts[-1:]
        ]
        if self.cut and texts and texts[-1].endswith(self.cut):
            ends = [min(end, len(texts[-1]) - len(self.cut)) for end in ends]
        ends = list(accumulate(ends, max, initial=0))
        return [texts[-1][a:b] for a, b in pairwise(ends)]

    def __repr__(self) -> str:
        state = f"finish_reason={self.finish_reason}, score={self.score}"
        return f"Branch(path={self.path}, tokens={len(self.tokens)}, {state})"


def check_branches(branches: Iterable[Branch], name: str = "branches") -> None:
    """Refuse what is no list of branches, by its name."""
    check_is(name, branches, Iterable, "a list of branches")
    for branch in branches:
        check_is(f"one of {name}", branch, Branch, "what engine.root or engine.fork makes")


def check_live(branches: Sequence[Branch]) -> None:
    """Refuse branches that were released, one that comes twice, and what is no branch."""
    check_branches(branches)
    for branch in branches:
        _ = branch.leaf  # raises if the branch was released
    if len({id(b) for b in branches}) < len(branches):
        raise InvalidInput(
            "the same branch was given twice in one call; fork it to continue it in two ways"
        )


def by_model(branches: Sequence[Branch]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for place, branch in enumerate(branches):
        places.setdefault(branch.model, []).append(place)
    return places


def by_problem(branches: Sequence[Branch]) -> list[list[int]]:
    """The places of each problem's branches, in order of appearance."""
    places: dict[int, list[int]] = {}
    for place, branch in enumerate(branches):
        places.setdefault(branch.root_id, []).append(place)
    return list(places.values())
