"""A step in several parts, each a generator that says what its branch does next: it decodes, its
thought is closed, or it waits for tools."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from ttc.backend import Backend
from ttc.step import Step, Thinking
from ttc.text.chat import decoded
from ttc.text.thoughts import Thoughts
from ttc.tree.branch import Branch, ThoughtClosed

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


class Close(NamedTuple):
    """The thought is closed by these tokens before anything else."""

    tokens: list[int]


StepParts = Generator[Any, None, None]
"""What a branch does next: decodes a `Step` that ends with this part, is given what a `Close` has,
or waits for the answers of its `search.tools.steps.ToolCalls`. The step is over at the end."""


def closing(thinking: Thinking, thoughts: Thoughts, backend: Backend) -> list[int]:
    """The tokens that end a thought and ask for the answer."""
    final = f"\n\n{thinking.final}" if thinking.final else ""
    return backend.encode(thoughts.marks.closing + (final or "\n\n"))


@dataclass(eq=False)
class ThinkingStep:
    """A step in which the branch thinks, answers, or does one after the other, each within its own
    limit. A part ends with the mark that ends or begins a thought, or where the step or a limit
    ends.

    left, answer_left: the tokens that the step may still write, and those of the answer among them.
    tools: its `ToolCalls`, None where it calls none.
    extra: so many tokens more may be thought, to end a call.
    why: what its thought is closed for.
    """

    branch: Branch
    step: Step
    thinking: Thinking
    thoughts: Thoughts
    backend: Backend
    left: int
    tools: Any = None
    extra: int = 0
    why: ThoughtClosed = "limit"

    def __post_init__(self) -> None:
        assert self.thinking.tokens is not None
        self.limit = self.thinking.tokens
        self.answer_left = self.step.max_tokens
        self.closing = closing(self.thinking, self.thoughts, self.backend)
        self.cut = self.thinking.step is not None

    def parts(self) -> StepParts:
        branch, tools = self.branch, self.tools
        closes, wrote = self._spent, False
        while True:
            if closes:
                yield Close(self.closing)
                if self.limit:
                    branch.thought_closed = self.why
                if (self.cut and wrote) or self._at_end:
                    branch.end_step("length")
                    return
            start, thinks = len(branch.tokens), branch.thinks(self.thoughts)
            part, at_limit = self._thought() if thinks else (self._answer(), False)
            yield part if tools is None else tools.until(part)
            called = tools is not None and tools.look()
            self._count(len(branch.tokens) - start, thinks)
            wrote = True
            follows = self._follows(start, thinks, at_limit)
            if follows != "over":
                branch.resume_step()
            if called:
                if not (yield from tools.answered(follows == "over")):
                    return
                self.extra = 0
                if self._at_end:
                    branch.end_step("length")
                    return
                closes = self._spent
            elif follows == "over":
                return
            else:
                closes = follows == "close" and not self._ends_call()

    @property
    def _at_end(self) -> bool:
        return self.left <= 0 or self.answer_left <= 0

    @property
    def _spent(self) -> bool:
        return self.branch.thinks(self.thoughts) and self._thought_left() <= 0

    def _thought_left(self) -> int:
        """The tokens that may still be thought, with room for the answer after them."""
        left = self.limit + self.extra - self.branch.thinking_tokens
        room = self.backend.context_left(self.branch)
        if room is None:
            return left
        room -= len(self.closing) + self.step.max_tokens
        return min(left, room) if room > 0 else left

    def _answer(self) -> Step:
        ended = self.branch.thinking_ended is not None
        ends = () if ended else self.thoughts.last_strings(False)
        limit, delimiter = min(self.left, self.answer_left), (*self.step.delimiters, *ends)
        return replace(self.step, max_tokens=limit, delimiter=delimiter, thinking=None)

    def _thought(self) -> tuple[Step, bool]:
        """A part of thinking, and whether it goes to the end of what may be thought."""
        ends, part, step_limit = self.thoughts.last_strings(True), self.thinking.step, self.left
        if isinstance(part, int) and not self.extra:
            step_limit = min(self.left, part)
        elif isinstance(part, tuple) and not self.extra:
            ends = (*ends, *part)
            step_limit = min(self.left, self.step.max_tokens)
        limit = self._thought_left()
        tokens = min(limit, step_limit)
        thought = replace(self.step, max_tokens=tokens, delimiter=ends, end=(), thinking=None)
        return thought, limit <= step_limit

    def _count(self, written: int, thinks: bool) -> None:
        self.left -= written
        if thinks:
            self.branch.thinking_tokens += written
            self.branch.usage.thinking_tokens += written
        else:
            self.answer_left -= written

    def _follows(self, start: int, thinks: bool, at_limit: bool) -> Literal["over", "close", "go"]:
        """What follows the part from `start` on. thinks: whether it was one of thinking."""
        reason = self.branch.step_reasons[-1]
        self.why = "looped" if reason == "looped" else "limit"
        if reason == "looped" or (reason == "length" and at_limit):
            return "close" if thinks and (self.left > 0 or self.cut) else "over"
        if reason != "delimiter":
            return "over"
        delimiters = self.thinking.step if thinks else self.step.delimiters
        words = self.thoughts.whole(self.branch.tokens[start:]).lstrip()
        thinks_on = self.branch.thinks(self.thoughts)
        if isinstance(delimiters, tuple) and any(string in words for string in delimiters):
            spent = self.branch.thinking_tokens >= self.limit
            return "close" if thinks and thinks_on and spent else "over"
        if (thinks and not thinks_on and self.cut) or self.left <= 0:
            return "over"
        if thinks_on:
            return "go" if self._thought_left() > 0 else "close"
        return "go" if self.answer_left > 0 else "over"

    def _ends_call(self) -> bool:
        """Go on where the thought's limit has come in a call, once."""
        if self.tools is None or not self.tools.in_call() or self.extra or self.left <= 0:
            return False
        if self.branch.thinking_tokens < self.limit or self.why == "looped":
            return False
        self.extra = CALL_TOKENS
        return True


def plain_step(
    branch: Branch,
    step: Step,
    backend: Backend,
    left: int,
    thinking: Thinking | None = None,
    thoughts: Thoughts | None = None,
    tools: Any = None,
) -> StepParts:
    """A step whose limits count thoughts too; a thought is closed where it goes in circles.

    left: the most tokens of the step. thoughts: None for none to count and close. tools: its
    `ToolCalls`, None where it calls none.
    """
    closes = False
    while True:
        if closes and thinking is not None and thoughts is not None:
            yield Close(closing(thinking, thoughts, backend))
            branch.thought_closed = "looped"
        start = len(branch.tokens)
        part = replace(step, max_tokens=left, thinking=None)
        yield part if tools is None else tools.until(part)
        called = tools is not None and tools.look()
        written = branch.tokens[start:]
        if thoughts is not None and branch.thinking_ended is None:
            count = thoughts.count(written, branch.thinks_at(start, thoughts))
            branch.thinking_tokens += count
            branch.usage.thinking_tokens += count
        left -= len(written)
        over = True
        if branch.step_reasons[-1] == "delimiter":
            words = decoded(written, backend.tokenizer, special=True).lstrip()
            over = any(string in words for string in step.delimiters)
            if not over:  # tools have ended it
                branch.resume_step()
                if left <= 0:
                    branch.end_step("length")
                    over = True
        looped = branch.step_reasons[-1:] == ["looped"]
        closes = looped and left > 0 and thoughts is not None and branch.thinks(thoughts)
        if closes:
            branch.resume_step()
            over = False
        if called:
            if not (yield from tools.answered(over)):
                return
            if left <= 0:
                branch.end_step("length")
                return
        elif over:
            return
