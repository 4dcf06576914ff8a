"""The calls of tools in a step: it decodes, is told the answers, and decodes on."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ttc.backend import Backend
from ttc.branch import Branch
from ttc.step import Step
from ttc.text.chat import decoded, following
from ttc.text.encodable import encodable
from ttc.tool_calls import ToolCall, Written
from ttc.tools.chat import ToolChat

CUT = " ... (cut)"
"""Stands after an answer that was too long."""

ENDING_TOKENS = 24
"""The newest tokens, in which the end of a call is looked for."""


@dataclass(eq=False)
class ToolRun:
    """One call under way.

    chars: the most characters of its answer that are kept. until: the time at which it is given up.
    answer: what it came to, once it is `done`. failed: whether that is an error. error: what the
        tool itself raised, with its line.
    """

    time_s: float
    chars: int
    answer: str = ""
    failed: bool = False
    error: str | None = None
    done: bool = False
    until: float | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def end(self, answer: str, failed: bool = False, error: str | None = None) -> None:
        """Say what it came to; nothing changes that any more."""
        with self.lock:
            if not self.done:
                self.answer = encodable(answer[: self.chars])
                self.failed, self.error, self.done = failed, error, True


@dataclass(eq=False)
class ToolCalls:
    """The calls of tools in the step of one branch.

    made: the calls of its problem, by what is called.
    calls, runs: those that it waits for, and the work on each.
    eos: whether the model's turn ended with them.
    start, end: the places where the first of them begins, and where the last ends.
    """

    branch: Branch
    chat: ToolChat
    backend: Backend
    made: dict[str, ToolRun]
    calls: list[Written] = field(default_factory=list)
    runs: list[ToolRun] = field(default_factory=list)
    eos: bool = False
    start: int = 0
    end: int = 0

    def until(self, step: Step) -> Step:
        """A part of the step that ends with a call too."""
        if not self.chat.ends:
            return step
        return replace(step, delimiter=(*step.delimiters, *self.chat.ends))

    def look(self) -> bool:
        """Whether the part that was decoded calls tools."""
        self.eos = self.branch.step_reasons[-1] == "eos"
        self.calls = self._calls(self.eos)
        return bool(self.calls)

    def answered(self, over: bool) -> Generator[Any, None, bool]:
        """Wait for the answers, and have the branch given them. False where the step is over: the
        calls are the caller's to make, or there is no room for the answers. over: whether it would
        be without them."""
        branch, tools = self.branch, self.chat.tools.by_name
        branch.usage.tool_calls += len(self.calls)
        if any(call.name in tools and tools[call.name].run is None for call in self.calls):
            self._leave_to_caller(over)
            return False
        if over:
            branch.resume_step()
        branch.reopen()
        yield self
        texts = [self._shortened(run.answer) for run in self.runs]
        tokens = self._answer_tokens(texts)
        room = self.backend.context_left(branch)
        if room is not None and len(tokens) >= room:
            branch.finish_reason = "context"
            branch.end_step("context")
            return False
        yield tokens
        thoughts = branch.thoughts if self.chat.turns else None
        opened = None if thoughts is None else thoughts.begun(branch.tokens)
        self._note(texts, self.runs, opened)
        self.calls, self.runs = [], []
        return True

    def _calls(self, eos: bool) -> list[Written]:
        branch = self.branch
        form = self.chat.format
        thoughts = self.branch.thoughts
        before = branch.tool_calls
        start = max([branch.prompt_length, *(call.end for call in before)])
        tokens, tokenizer = branch.tokens[start:], self.backend.tokenizer
        newest = whole_text(tokenizer, tokens[-ENDING_TOKENS:])
        if not eos and not any(end in newest for end in self.chat.ends):
            return []
        text, first = whole_text(tokenizer, tokens), 0
        if thoughts is not None and not form.in_thoughts:
            cuts = thoughts.marks.cuts(text)
            first = max((cut.end for cut in cuts if cut.thinks is False), default=0)
            if branch.thinks(thoughts) and not (eos and form.ends_with_call(text)):
                return []  # else the call ends the turn, and the thought with it
        calls = self.chat.calls(text[first:])
        if not eos and self.chat.turns and any(call.error for call in calls):
            return []  # the end of a call stands within one
        calls = [  # JSON can spell half of a surrogate pair
            call._replace(name=encodable(call.name), arguments=encodable(call.arguments))
            for call in calls
        ]
        if all(tool.run is None for tool in self.chat.tools.tools):
            names = self.chat.tools.callable_names or self.chat.tools.by_name
            calls = [call for call in calls if call.name in names]
        if not self.chat.tools.parallel:
            calls = calls[:1]
        if len(before) + len(calls) > self.chat.tools.calls_per_branch:
            return []
        if calls:
            place = first + min(call.start for call in calls)
            self.start = start + token_at(tokenizer, tokens, place)
            self.end = len(branch.tokens)
        return calls

    def in_call(self) -> bool:
        """Whether the branch has begun a call and not ended its turn with it."""
        branch, before = self.branch, self.branch.tool_calls
        if self.calls or len(before) >= self.chat.tools.calls_per_branch:
            return False
        start = max([branch.prompt_length, *(call.end for call in before)])
        return self.chat.format.in_call(whole_text(self.backend.tokenizer, branch.tokens[start:]))

    def _leave_to_caller(self, over: bool) -> None:
        branch = self.branch
        if not over:
            branch.end_step("end")
        if branch.finish_reason is None:
            branch.finish_reason = branch.step_reasons[-1] = "end"
        self._note([None] * len(self.calls), [ToolRun(0.0, 0)] * len(self.calls), None)

    @property
    def done(self) -> bool:
        return all(run.done for run in self.runs)

    def _answer_tokens(self, texts: Sequence[str]) -> list[int]:
        """Of the answers, and of the start of the model's next turn."""
        ended = self.branch.tokens[self.end - 1 : self.end] if self.eos else []
        last = whole_text(self.backend.tokenizer, ended)
        return following(self.chat.after(self.calls, texts, last), self.backend.tokenizer)

    def _shortened(self, answer: str) -> str:
        tools, whole = self.chat.tools, len(answer) <= self.chat.tools.answer_chars
        tokens = self.backend.encode(answer[: tools.answer_chars])
        if whole and len(tokens) <= tools.answer_tokens:
            return answer
        return self.backend.decode(tokens[: tools.answer_tokens]) + CUT

    def _note(
        self, answers: Sequence[str | None], runs: Sequence[ToolRun], opened: bool | None
    ) -> None:
        places = (self.start, self.end, len(self.branch.tokens))
        self.branch.tool_calls += [
            ToolCall(call.name, call.arguments, answer, run.failed, *places, opened, run.error)
            for call, answer, run in zip(self.calls, answers, runs, strict=True)
        ]


def whole_text(tokenizer: Any, tokens: Sequence[int]) -> str:
    return decoded(tokens, tokenizer, special=True)


def token_at(tokenizer: Any, tokens: Sequence[int], place: int) -> int:
    def length(count: int) -> int:
        return len(whole_text(tokenizer, tokens[:count]).rstrip("\ufffd"))

    places = range(len(tokens) + 1)
    last = bisect_right(places, place, key=length) - 1
    return bisect_left(places, length(last), key=length)  # with all bytes of its first character
