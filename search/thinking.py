"""A step in which a model thinks, answers, or does one after the other, each with its own limit."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from ttc.protocols import Backend, Step, Thinking
from ttc.text.chat import decoded
from ttc.text.thoughts import Thoughts
from ttc.tree.branch import Branch, ThoughtClosed

GoesOn = Literal["over", "decode", "close", "call"]
"""What follows a phase: the step is over, another phase is decoded, the thought is closed, or tools
are called."""


CALL_TOKENS = 512
"""So many tokens beyond its limit a thought may have to end a call of a tool."""


def most_tokens(
    branch: Branch, step: Step, thoughts: Thoughts | None, calls_tools: bool = False
) -> int:
    """The most tokens that a step of the branch may write."""
    thinking = step.thinking
    limit = None if thinking is None else thinking.tokens
    if thinking is None or limit is None or thoughts is None or branch.thinking_ended is not None:
        return step.max_tokens
    left = max(0, limit - branch.thinking_tokens)
    if thinking.step is None or not left or not branch.thinks(thoughts):
        return step.max_tokens + left + CALL_TOKENS * calls_tools
    step_limit = thinking.step if isinstance(thinking.step, int) else step.max_tokens
    return min(left, step_limit) + CALL_TOKENS * calls_tools


class Phases(Protocol):
    """A step in phases, as `ThinkingStep` is one."""

    @property
    def branch(self) -> Branch: ...

    def phase(self) -> Step | None: ...

    def ended(self) -> GoesOn: ...

    def go_on(self) -> GoesOn: ...


def closing(thinking: Thinking, thoughts: Thoughts, backend: Backend) -> list[int]:
    """The tokens that end a thought and ask for the answer."""
    final = f"\n\n{thinking.final}" if thinking.final else ""
    return backend.encode(thoughts.marks.closing + (final or "\n\n"))


@dataclass(eq=False)
class ThinkingStep:
    """The step of one branch, in phases: in each the branch either thinks or answers. A phase ends
    with the mark that ends or begins a thought, or where the step or a limit ends.

    left, answer_left: the tokens that the step may still write, and those of the answer among them.
    limit: the most tokens of the thought.
    start: `len(tokens)` at the phase's beginning.
    thinks: whether it is one of thinking.
    at_limit: whether it goes to the end of what may be thought.
    closes: whether the thought is to be closed before anything else, and why.
    wrote: whether a phase is over.
    extra: so many tokens more may be thought, to end a call.
    """

    branch: Branch
    step: Step
    thinking: Thinking
    thoughts: Thoughts
    backend: Backend
    left: int
    limit: int = field(init=False)
    answer_left: int = field(init=False)
    start: int = field(init=False)
    thinks: bool = field(init=False)
    at_limit: bool = False
    closes: bool = False
    why: ThoughtClosed = "limit"
    wrote: bool = False
    extra: int = 0

    def __post_init__(self) -> None:
        assert self.thinking.tokens is not None
        self.limit = self.thinking.tokens
        self.answer_left = self.step.max_tokens
        self._begin_phase()
        self.closes = self.thinks and self._thought_left() <= 0

    def _begin_phase(self) -> None:
        self.start = len(self.branch.tokens)
        self.thinks = self.branch.thinks(self.thoughts)

    @property
    def cut(self) -> bool:
        return self.thinking.step is not None

    @property
    def closing(self) -> list[int]:
        return closing(self.thinking, self.thoughts, self.backend)

    def phase(self) -> Step | None:
        """What the branch decodes now; None where its thought is to be closed instead."""
        if self.closes:
            return None
        ends = self.thoughts.last_strings(self.thinks)
        if not self.thinks:
            if self.branch.thinking_ended is not None:
                ends = ()
            delimiter = (*self.step.delimiters, *ends)
            limit = min(self.left, self.answer_left)
            return replace(self.step, max_tokens=limit, delimiter=delimiter, thinking=None)
        limit, part = self._thought_left(), self.thinking.step
        step_limit = self.left
        if isinstance(part, int) and not self.extra:
            step_limit = min(self.left, part)
        elif isinstance(part, tuple) and not self.extra:
            ends = (*ends, *part)
            step_limit = min(step_limit, self.step.max_tokens)
        self.at_limit = limit <= step_limit
        return replace(
            self.step, max_tokens=min(limit, step_limit), delimiter=ends, end=(), thinking=None
        )

    def _thought_left(self) -> int:
        """The tokens that may still be thought, with room for the answer after them."""
        left = self.limit + self.extra - self.branch.thinking_tokens
        room = self.backend.context_left(self.branch)
        if room is None:
            return left
        room -= len(self.closing) + self.step.max_tokens
        return min(left, room) if room > 0 else left

    def ended(self) -> GoesOn:
        """What follows the phase that was decoded. Where the step goes on, its end is taken
        back."""
        branch, thought = self.branch, self.thinks
        written = len(branch.tokens) - self.start
        self.left -= written
        self.wrote = True
        if thought:
            branch.thinking_tokens += written
            branch.usage.thinking_tokens += written
        else:
            self.answer_left -= written
        self.why = "looped" if branch.step_reasons[-1] == "looped" else "limit"
        follows = self._follows()
        self.closes = follows == "close"
        if follows != "over":
            branch.resume_step()
        return follows

    def _follows(self) -> GoesOn:
        thought, reason = self.thinks, self.branch.step_reasons[-1]
        if reason == "length":
            goes_on = self.left > 0 or self.cut
            return "close" if thought and self.at_limit and goes_on else "over"
        if reason == "looped":
            return "close" if thought and (self.left > 0 or self.cut) else "over"
        if reason != "delimiter":
            return "over"
        delimiters = self.step.delimiters if not thought else self.thinking.step
        words = self.thoughts.whole(self.branch.tokens[self.start :])
        if isinstance(delimiters, tuple) and any(string in words.lstrip() for string in delimiters):
            spent = self.branch.thinking_tokens >= self.limit
            return "close" if thought and spent and self.branch.thinks(self.thoughts) else "over"
        self._begin_phase()
        if (thought and not self.thinks and self.cut) or self.left <= 0:
            return "over"
        if self.thinks:
            return "decode" if self._thought_left() > 0 else "close"
        return "decode" if self.answer_left > 0 else "over"

    def closed(self) -> GoesOn:
        self.closes = False
        if self.limit:
            self.branch.thought_closed = self.why
        self._begin_phase()
        parted = self.cut and self.wrote
        return "over" if parted or self.left <= 0 or self.answer_left <= 0 else "decode"

    def end_call(self) -> GoesOn:
        """Go on where the thought's limit has come in a call, once; else the thought is closed."""
        spent = self.branch.thinking_tokens >= self.limit
        if self.extra or self.left <= 0 or not spent or self.why == "looped":
            return "close"
        self.extra = CALL_TOKENS
        self.closes = False
        self._begin_phase()
        return "decode"

    def go_on(self) -> GoesOn:
        """What follows the answers of tools, which are neither thought nor answer."""
        self.extra = 0
        self._begin_phase()
        if self.left <= 0 or self.answer_left <= 0:
            self.branch.end_step("length")
            return "over"
        self.closes = self.thinks and self._thought_left() <= 0
        return "close" if self.closes else "decode"


@dataclass(eq=False)
class PlainStep:
    """A step without thoughts.

    left: the tokens that it may still write. start: `len(tokens)` at the phase's beginning.
    """

    branch: Branch
    step: Step
    tokenizer: Any
    left: int
    start: int = field(init=False)

    def __post_init__(self) -> None:
        self.start = len(self.branch.tokens)

    def phase(self) -> Step | None:
        return replace(self.step, max_tokens=self.left, thinking=None)

    def ended(self) -> GoesOn:
        """What follows: the step goes on where it ended at no delimiter of its own."""
        written = self.branch.tokens[self.start :]
        self.left -= len(written)
        if self.branch.step_reasons[-1] == "delimiter":
            words = decoded(written, self.tokenizer, special=True).lstrip()
            if not any(string in words for string in self.step.delimiters):
                self.branch.resume_step()
                return self.go_on()
        return "over"

    def go_on(self) -> GoesOn:
        """Begin another phase where there is room; else the step is at its limit."""
        self.start = len(self.branch.tokens)
        if self.left > 0:
            return "decode"
        self.branch.end_step("length")
        return "over"


@dataclass(eq=False)
class UnlimitedStep(PlainStep):
    """A step whose limits count thoughts too: a thought is closed where it goes in circles.

    closes: whether it is to be closed before anything else.
    """

    thinking: Thinking
    thoughts: Thoughts
    backend: Backend
    closes: bool = False

    @property
    def closing(self) -> list[int]:
        return closing(self.thinking, self.thoughts, self.backend)

    def phase(self) -> Step | None:
        return None if self.closes else super().phase()

    def ended(self) -> GoesOn:
        branch = self.branch
        if branch.thinking_ended is None:
            written = branch.tokens[self.start :]
            count = self.thoughts.count(written, branch.thinks_at(self.start, self.thoughts))
            branch.thinking_tokens += count
            branch.usage.thinking_tokens += count
        follows = super().ended()
        looped = branch.step_reasons[-1:] == ["looped"] and branch.thinks(self.thoughts)
        if not looped or self.left <= 0:
            return follows
        branch.resume_step()
        self.closes = True
        return "close"

    def closed(self) -> GoesOn:
        self.closes = False
        self.branch.thought_closed = "looped"
        self.start = len(self.branch.tokens)
        return "decode"
