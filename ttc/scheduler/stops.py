"""Where a step ends: at a delimiter, at an end string, at the end of the sequence, at a limit, or
where its tokens go in circles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ttc.branch import Branch
from ttc.errors import OutOfMemory
from ttc.model.limits import ModelLimits
from ttc.tree.branch import StepEnd


class Gate(Protocol):
    """Stops branches while they decode (`ttc.approximate.decode_gate.DecodeGate`)."""

    def losers(self, problem: Sequence[Branch]) -> list[Branch]:
        """Those of a problem's branches in this step that stop now."""
        ...


def check_gate(gate: Gate | None, branches: int, groups: Sequence[Sequence[int]]) -> None:
    """Raise OutOfMemory unless all branches decode together, where a gate compares them."""
    if gate is not None and len(groups) > 1:
        raise OutOfMemory(
            "a decode gate compares a problem's branches token by token, and the budget has room "
            f"for {len(groups[0])} of {branches} branches at a time; give a larger "
            "memory.budget_gib, fewer or shorter branches, or no gate"
        )


LOOK_TOKENS = 16
"""At every so many tokens a branch is looked at for loops."""

MARGIN_TOKENS = 8
"""Decoded beyond what a string can span, so that its first character is whole."""


class Stops:
    """Says after each token whether it ended its branch's step. A string is looked for only when
    the newest token's text holds the last character of one.

    stop: strings that end the step, in the text since its start, leading blanks left out.
    end: strings that finish the branch; they may begin in an earlier step, but not in tokens that
        were given.
    decode: tokens to text, with `special=True` special tokens as well: both kinds of strings may
        hold them.
    loops: whether a step ends as "looped" where the branch's last tokens, not those that were
        given, repeat.
    """

    def __init__(
        self,
        stop: Sequence[str],
        end: Sequence[str],
        limits: ModelLimits,
        decode: Callable[..., str],
        loops: bool = False,
    ):
        self.repeats: Callable[[Sequence[int], int], bool] | None = None
        if loops:
            from ttc.scheduler.repeats import repeats

            self.repeats = repeats
        self.stop = tuple(stop)
        self.end = tuple(end)
        self.limits = limits
        self.decode = decode
        self.last_characters = {s[-1] for s in (*stop, *end)}
        self._may_complete: dict[int, bool] = {}

    def check(self, branch: Branch, start: int, limit: int) -> StepEnd | None:
        """Why the step of `branch` is over after its last token, None if it is not. Sets
        `finish_reason` where the branch itself is over. start, limit: `len(tokens)` at the step's
        start, and where it ends at the latest."""
        token, length = branch.tokens[-1], len(branch.tokens)
        completes = bool(self.last_characters) and self._completes(token)
        if token in self.limits.eos_ids:
            branch.finish_reason = "eos"
        elif completes and self._has_ended(branch, start):
            branch.finish_reason = "end"
        elif length == self.limits.context_length:
            branch.finish_reason = "context"
        if branch.finish_reason is not None:
            return branch.finish_reason
        if completes and self.stop:
            text = self.decode(branch.tokens[start:], special=True).lstrip()
            if any(s in text for s in self.stop):
                return "delimiter"
        repeats = None if length % LOOK_TOKENS else self.repeats
        if repeats is not None and repeats(branch.tokens, branch.given_end):
            return "looped"
        return "length" if length >= limit else None

    def _completes(self, token: int) -> bool:
        """Whether a string may end in this token's text."""
        if (completes := self._may_complete.get(token)) is None:
            text = self.decode([token], special=True)
            # some tokenizers drop a blank at the front of a text; a replaced character may be part
            # of any
            unclear = not text or "\ufffd" in text or " " in self.last_characters
            completes = self._may_complete[token] = unclear or any(
                c in text for c in self.last_characters
            )
        return completes

    def _has_ended(self, branch: Branch, start: int) -> bool:
        """Whether an end string is complete that was not so at the step's start."""
        if not self.end:
            return False
        # a character is at most four tokens
        window = 4 * max(map(len, self.end)) + MARGIN_TOKENS
        first = max(branch.given_end, len(branch.tokens) - window)
        text = self.decode(branch.tokens[first:], special=True)
        earlier = self.decode(branch.tokens[first:start], special=True)
        before = len(earlier.rstrip("\ufffd"))
        return any(text.find(s, max(0, before - len(s) + 1)) >= 0 for s in self.end)
