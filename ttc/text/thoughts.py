"""A model's thoughts in its tokens: where its marks stand, and what lies between them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

from ttc.checks import check_kind
from ttc.errors import InvalidInput
from ttc.text.chat import decoded, encoded
from ttc.text.prompt import raw_tokens
from ttc.text.thinking_marks import (
    HEADER_TOKENS,
    Cut,
    Parted,
    ThinkingMarks,
    ends_in_thought,
    mark_text,
    overlap,
    pieces,
    split_at,
)
from ttc.text.thinking_models import marks_of

Setting = ThinkingMarks | Literal[False] | None
"""Marks that a user sets: None for the model's own, False for none."""

Mode = Literal["auto", "on", "off", "minimal", "low", "medium", "high", "xhigh"]
"""Whether a model thinks before it answers. auto: as the chat template has it. minimal to xhigh:
how hard to think."""


@dataclass(frozen=True, eq=False)
class Thoughts:
    """A model's marks, found in its tokens.

    Marks that are special tokens, which texts leave out, are found by their token numbers. Others
    are found in the text, as they may be written in any tokens.
    """

    marks: ThinkingMarks
    tokenizer: Any = field(repr=False)

    @classmethod
    def of(cls, tokenizer: Any, setting: Setting = None) -> Thoughts | None:
        fits = setting is None or setting is False or isinstance(setting, ThinkingMarks)
        check_kind(
            "thinking_marks", setting, fits, "ThinkingMarks(begin, end), False for none, or None"
        )
        marks = marks_of(tokenizer) if setting is None else setting
        return cls(marks, tokenizer) if isinstance(marks, ThinkingMarks) else None

    @classmethod
    def of_model(cls, tokenizer: Any) -> Thoughts | None:
        """By the model's own marks; None also where its template's are refused."""
        with suppress(InvalidInput):
            return cls.of(tokenizer)
        return None

    def split(self, tokens: Sequence[int], begun: bool = False) -> Parted:
        """As `ThinkingMarks.split`, of generated tokens; special tokens are left out."""
        length, cuts, text = self._parted(tokens)
        return split_at(length, cuts, begun, text)

    def pieces(self, tokens: Sequence[int], begun: bool = False) -> list[tuple[bool, str]]:
        """(whether it is thought, text) of what lies between the marks, in order.

        Other than in `split`, what comes before an end that nothing opened stays what it was, so
        that more tokens never change earlier pieces.
        """
        length, cuts, text = self._parted(tokens)
        return [(p.thought, text(p.start, p.end)) for p in pieces(length, cuts, begun)]

    def settled(self, tokens: Sequence[int], begun: bool = False) -> list[tuple[bool, str]]:
        """`pieces` of tokens that go on, without what may begin a mark or a character."""
        if self.hidden:
            parts = self.pieces(tokens[: len(tokens) - self._unsettled(tokens)], begun)
        else:
            parts = self.pieces(tokens, begun)
        if parts:
            thought, text = parts[-1]
            text = text.rstrip("\ufffd")
            parts[-1] = thought, text[: len(text) - self.marks.unsettled(text)]
        return parts

    def begun(self, tokens: Sequence[int], end: str | None = None) -> bool:
        """Whether a thought is open after the tokens of a prompt.

        end: what the prompt's form puts after the question, which alone counts
        (`PromptTemplate.end_of_prompt`). None where it is not known: then what follows the last
        special token counts, the head of the model's turn. In a prompt of words alone any may be
        the user's, so that only a mark at its very end opens a thought.
        """
        if end is not None:
            cuts = self._cuts(self._encode(end)) if self.hidden else self.marks.cuts(end)
            return ends_in_thought(cuts, begun=False)
        bounds = (i for i in reversed(range(len(tokens))) if tokens[i] in self._bounds)
        first = next(bounds, -1) + 1
        if list(tokens[:first]) != self._before[:first]:
            return self.open_after(tokens[first:])
        text = self.whole(tokens[first:]).rstrip()
        return text.endswith(tuple(map(mark_text, self.marks.begin)))

    def open_after(self, tokens: Sequence[int], begun: bool = False) -> bool:
        return ends_in_thought(self._parted(tokens)[1], begun)

    def whole(self, tokens: Sequence[int]) -> str:
        return self._decode(tokens, special=True)

    def without_marks(self, tokens: Sequence[int]) -> str:
        return "".join(text for _, text in self.pieces(tokens))

    @cached_property
    def end_token(self) -> str:
        ends = map(mark_text, self.marks.end)
        return next((mark for mark in ends if len(self._encode(mark)) == 1), "")

    def last_strings(self, thinks: bool) -> tuple[str, ...]:
        """The last string of each mark that begins, or with `thinks` ends, a thought; once one has
        come a text is looked at."""
        marks = self.marks.end if thinks else self.marks.begin
        return tuple(dict.fromkeys(mark if isinstance(mark, str) else mark.end for mark in marks))

    def count(self, tokens: Sequence[int], begun: bool) -> int:
        """How many of these tokens belong to thoughts, their ends included. begun: whether one is
        open before them."""

        def place(count: int) -> int:
            return count if self.hidden else len(self._decode(tokens[:count]))

        count = 0
        start = 0
        thinks = begun
        for cut in self._parted(tokens)[1]:
            if cut.thinks is None or cut.thinks is thinks:
                continue
            end = bisect_left(range(len(tokens) + 1), cut.end if thinks else cut.start, key=place)
            count += end - start if thinks else 0
            start, thinks = end, cut.thinks
        return count + (len(tokens) - start if thinks else 0)

    @cached_property
    def hidden(self) -> bool:
        return any(not self._special.isdisjoint(sequence.tokens) for sequence in self._sequences)

    @cached_property
    def _sequences(self) -> list[_Sequence]:
        sequences = list[_Sequence]()
        for mark, thinks in self.marks.kinds.items():
            start, end = (mark, "") if isinstance(mark, str) else mark
            tokens = self._encode(start)
            if tokens:
                sequences.append(_Sequence(tokens, self._encode(end) if end else [], thinks))
        return sorted(sequences, key=lambda sequence: len(sequence.tokens), reverse=True)

    @cached_property
    def _special(self) -> frozenset[int]:
        added = getattr(self.tokenizer, "added_tokens_decoder", None) or {}
        named = getattr(self.tokenizer, "all_special_ids", None) or ()
        return frozenset(named) | {
            number for number, token in added.items() if getattr(token, "special", False)
        }

    @cached_property
    def _bounds(self) -> frozenset[int]:
        marks = [mark.tokens for mark in self._sequences if mark.thinks is not None]
        return self._special.difference(*marks)

    @cached_property
    def _before(self) -> list[int]:
        return raw_tokens("", self.tokenizer)

    def _parted(self, tokens: Sequence[int]) -> tuple[int, list[Cut], Callable[[int, int], str]]:
        """How many tokens, or characters where marks are found in the text, the marks in them, and
        what gives the text between two places."""
        if self.hidden:
            return (
                len(tokens),
                self._cuts(tokens),
                lambda start, end: self._decode(tokens[start:end]),
            )
        text = self._decode(tokens)
        return len(text), self.marks.cuts(text), lambda start, end: text[start:end]

    def _cuts(self, tokens: Sequence[int]) -> list[Cut]:
        by_start: dict[int, list[_Sequence]] = {}
        for mark in self._sequences:
            by_start.setdefault(mark.start[0], []).append(mark)
        cuts, place = list[Cut](), 0
        while place < len(tokens):
            after = place + 1
            for mark in by_start.get(tokens[place], ()):
                if end := self._end_of(mark, tokens, place):
                    cuts.append(Cut(place, end, mark.thinks))
                    after = end
                    break
            place = after
        return cuts

    def _unsettled(self, tokens: Sequence[int]) -> int:
        counts = [overlap(tokens, mark.tokens) for mark in self._sequences]
        for mark in self._sequences:
            if mark.end:
                first = max(0, len(tokens) - len(mark.tokens) - HEADER_TOKENS)
                for place in range(first, len(tokens)):
                    if mark.opens(tokens, place) and not self._end_of(mark, tokens, place):
                        counts.append(len(tokens) - place)
        return max(counts, default=0)

    def _end_of(self, mark: _Sequence, tokens: Sequence[int], place: int) -> int:
        if not mark.opens(tokens, place):
            return 0
        first = place + len(mark.start)
        for at in range(
            first, min(first + HEADER_TOKENS, len(tokens)) + 1 if mark.end else first + 1
        ):
            if list(tokens[at : at + len(mark.end)]) == mark.end:
                return at + len(mark.end)
            if any(other.opens(tokens, at) for other in self._sequences):
                return 0
        return 0

    def _encode(self, text: str) -> list[int]:
        return encoded(text, self.tokenizer)

    def _decode(self, tokens: Sequence[int], special: bool = False) -> str:
        return decoded(tokens, self.tokenizer, special=special)


class _Sequence(NamedTuple):
    """A mark in tokens. end: that of a `Header`, [] for other marks."""

    start: list[int]
    end: list[int]
    thinks: bool | None

    @property
    def tokens(self) -> list[int]:
        return self.start + self.end

    def opens(self, tokens: Sequence[int], place: int) -> bool:
        return list(tokens[place : place + len(self.start)]) == self.start
