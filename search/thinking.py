"""A step in several parts, where a model thinks within limits or calls tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Literal

from search.base import StepParts
from ttc.backend import Backend
from ttc.branch import Branch, ThoughtClosed
from ttc.step import Step, Thinking
from ttc.text.chat import decoded
from ttc.text.thoughts import Thoughts

CALL_TOKENS = 512
"""So many tokens beyond its limit a thought may have to end a call of a tool."""


def most_tokens(branch: Branch, step: Step, thoughts: Thoughts, calls_tools: bool) -> int:
    """The most tokens that a step of the branch may write."""
    thinking = step.thinking
    limit = None if thinking is None else thinking.tokens
    if thinking is None or limit is None or branch.thinking_ended is not None:
        return step.max_tokens
    left = max(0, limit - branch.thinking_tokens)
    if thinking.step is None or not left or not branch.thinks(thoughts):
        return step.max_tokens + left + CALL_TOKENS * calls_tools
    step_limit = thinking.step if isinstance(thinking.step, int) else step.max_tokens
    return min(left, step_limit) + CALL_TOKENS * calls_tools


@dataclass(eq=False)
class StepInParts:
    """A step in which the branch may think and answer. A part ends where the step ends, with a call
    of a tool, or with the mark that ends or begins a thought that has a limit of its own.

    thinking: its limits; without `tokens` they are the step's. None closes no thought.
    thoughts: None for a model without.
    left: the tokens that the step may still write.
    tools: its `ToolCalls`, None where it calls none.
    extra: so many tokens more may be thought, to end a call.
    limit: of the thought, inf for none of its own. cut: where a step ends within such a thought.
    """

    branch: Branch
    step: Step
    thinking: Thinking | None
    thoughts: Thoughts | None
    backend: Backend
    left: int
    tools: Any = None
    extra: int = 0
    limit: float = field(init=False)
    cut: int | tuple[str, ...] | None = field(init=False)

    def __post_init__(self) -> None:
        self.limit, self.cut = inf, None
        self.answer_left, self.closing = self.left, list[int]()
        limits, thoughts = self.thinking, self.thoughts
        if limits is None or thoughts is None:
            return
        self.closing = self.backend.encode(f"{thoughts.marks.closing}\n\n{limits.final}")
        if limits.tokens is not None:
            self.limit, self.cut, self.answer_left = (
                limits.tokens,
                limits.step,
                self.step.max_tokens,
            )

    def parts(self) -> StepParts:
        branch, tools = self.branch, self.tools
        why: ThoughtClosed = "limit"
        closes, wrote = self._spent, False
        while True:
            if closes:
                end = len(branch.tokens)
                yield self.closing
                branch.thinking_ended = end
                if self.limit != 0:
                    branch.thought_closed = why
                if (self.cut is not None and wrote) or self._at_end:
                    branch.end_step("length")
                    return
            start, thinks = len(branch.tokens), self._thinks_apart
            step, at_limit = self._thought() if thinks else (self._answer(), False)
            yield step if tools is None else tools.until(step)
            wrote = True
            called = tools is not None and tools.look()
            self._count(start, thinks)
            why = "looped" if branch.step_reasons[-1] == "looped" else "limit"
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
                closes = follows == "close" and not self._ends_call(why)

    @property
    def _at_end(self) -> bool:
        return self.left <= 0 or self.answer_left <= 0

    @property
    def _thinks(self) -> bool:
        """Whether a thought is open that may be closed."""
        if self.thinking is None or self.thoughts is None:
            return False
        return self.branch.thinks(self.thoughts)

    @property
    def _thinks_apart(self) -> bool:
        return self.limit < inf and self._thinks

    @property
    def _spent(self) -> bool:
        return self._thinks_apart and self._thought_left() <= 0

    def _thought_left(self) -> int:
        """The tokens that may still be thought, with room for the answer after them."""
        left = int(self.limit) + self.extra - self.branch.thinking_tokens
        room = self.backend.context_left(self.branch)
        if room is None:
            return left
        room -= len(self.closing) + self.step.max_tokens
        return min(left, room) if room > 0 else left

    def _answer(self) -> Step:
        """A part of the answer; of both, where thoughts have no limit of their own."""
        ends: Sequence[str] = ()
        if self.thoughts and self.limit < inf and self.branch.thinking_ended is None:
            ends = self.thoughts.last_strings(False)
        limit, delimiter = min(self.left, self.answer_left), (*self.step.delimiters, *ends)
        return replace(self.step, max_tokens=limit, delimiter=delimiter, thinking=None)

    def _thought(self) -> tuple[Step, bool]:
        """A part of thinking, and whether it goes to the end of what may be thought."""
        assert self.thoughts is not None
        ends, step_limit = self.thoughts.last_strings(True), self.left
        cut = None if self.extra else self.cut
        if isinstance(cut, int):
            step_limit = min(self.left, cut)
        elif cut is not None:
            ends = (*ends, *cut)
            step_limit = min(self.left, self.step.max_tokens)
        limit = self._thought_left()
        tokens = min(limit, step_limit)
        thought = replace(
            self.step, max_tokens=tokens, delimiter=ends, end=(), thinking=None, grammar=None
        )
        return thought, limit <= step_limit

    def _count(self, start: int, thinks: bool) -> None:
        written = len(self.branch.tokens) - start
        self.left -= written
        if self.limit == inf:
            count_thinking(self.branch, start, self.thoughts)
            self.answer_left = self.left
        elif thinks:
            self.branch.thinking_tokens += written
            self.branch.usage.thinking_tokens += written
        else:
            self.answer_left -= written

    def _follows(self, start: int, thinks: bool, at_limit: bool) -> Literal["over", "close", "go"]:
        """What follows the part from `start` on. thinks: whether it was one of thinking."""
        reason = self.branch.step_reasons[-1]
        if reason == "looped" or (reason == "length" and at_limit):
            return "close" if self._thinks and (self.left > 0 or self.cut is not None) else "over"
        if reason != "delimiter":
            return "over"
        delimiters = self.cut if thinks else self.step.delimiters
        written = self.branch.tokens[start:]
        words = decoded(written, self.backend.tokenizer, special=True).lstrip()
        thinks_on = self._thinks_apart
        if isinstance(delimiters, tuple) and any(string in words for string in delimiters):
            spent = thinks_on and self.branch.thinking_tokens >= self.limit
            return "close" if thinks and spent else "over"
        if (thinks and not thinks_on and self.cut is not None) or self.left <= 0:
            return "over"
        if thinks_on:
            return "go" if self._thought_left() > 0 else "close"
        return "go" if self.answer_left > 0 else "over"

    def _ends_call(self, why: ThoughtClosed) -> bool:
        """Go on where the thought's limit has come in a call, once."""
        if self.extra or self.left <= 0 or why == "looped":
            return False
        if self.tools is None or self.branch.thinking_tokens < self.limit:
            return False
        self.extra = CALL_TOKENS * self.tools.in_call()
        return self.extra > 0


def count_thinking(branch: Branch, start: int, thoughts: Thoughts | None) -> None:
    """Count what a branch has thought from the token numbered `start` on."""
    if thoughts is not None and branch.thinking_ended is None:
        count = thoughts.count(branch.tokens[start:], branch.thinks_at(start, thoughts))
        branch.thinking_tokens += count
        branch.usage.thinking_tokens += count
