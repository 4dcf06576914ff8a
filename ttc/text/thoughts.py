"""Which part of a model's text is thought, and which is its answer.

A text is cut at marks, the strings with which a model begins and ends to think. The last of them
counts: what follows an end is the answer, and after a beginning there is none yet.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

from ttc.checks import check_kind
from ttc.errors import InvalidInput
from ttc.text.prompt import raw_tokens


class Parted(NamedTuple):
    """A text in two. thought: what stands before the answer. answer: None while it is not begun."""

    thought: str
    answer: str | None


class Cut(NamedTuple):
    """A mark from `start` to `end` (excluded). thinks: whether a thought follows; None if it
    changes nothing."""

    start: int
    end: int
    thinks: bool | None


class Piece(NamedTuple):
    """What lies between two marks, from `start` to `end` (excluded)."""

    start: int
    end: int
    thought: bool


class Header(NamedTuple):
    """A mark with the model's words in it, as gpt-oss's
    `<|channel|>final <|constrain|>json<|message|>`: from `start` to the next `end`, which stands at
    most `HEADER_TOKENS` tokens or `HEADER_CHARS` characters later."""

    start: str
    end: str


HEADER_TOKENS, HEADER_CHARS = 20, 200
"""The first is that of vLLM's parser for gpt-oss."""

Mark = str | Header


@dataclass(frozen=True)
class ThinkingMarks:
    r"""The strings that part a model's thoughts from its answers.

    begin, end: any of `begin` opens a thought, any of `end` closes it. wraps: strings that belong
    to neither, as the tags around an answer. One string may be given for a tuple of one, and a
    `Header` for a string. closing: what is written to end a thought, by default the first of `end`.

    What follows the last end of thinking is the answer, whatever stands before: thoughts don't
    nest, and all before an end that nothing opened was thought. A text whose last mark opens a
    thought has no answer.
    Raises InvalidInput where `end` is empty, and for strings that are empty or both `begin` and
    `end`.
    """

    begin: Sequence[Mark]
    end: Sequence[Mark]
    wraps: Sequence[Mark] = ()
    closing: str = ""

    def __post_init__(self) -> None:
        for name in ("begin", "end", "wraps"):
            given = getattr(self, name)
            strings = (given,) if isinstance(given, Mark) else given
            listed = isinstance(strings, Sequence) and all(map(_is_mark, strings))
            check_kind(name, given, listed, "a string, or a list of strings that are not empty")
            object.__setattr__(self, name, tuple(strings))
        if not self.end:
            raise InvalidInput(
                "end is empty; name the string that ends the model's thoughts, as </think>"
            )
        if not self.closing:
            object.__setattr__(self, "closing", spelt(self.end[0]))
        if both := set(self.begin) & set(self.end):
            raise InvalidInput(
                f"{min(both)!r} is among begin and end; a mark either opens a thought or closes it"
            )

    @cached_property
    def kinds(self) -> dict[Mark, bool | None]:
        """All marks; for each whether a thought follows it."""
        return (
            dict.fromkeys(self.wraps, None)
            | dict.fromkeys(self.begin, True)
            | dict.fromkeys(self.end, False)
        )

    @cached_property
    def _ordered(self) -> list[Mark]:
        """The marks, the longest first."""
        return sorted(self.kinds, key=lambda mark: len(spelt(mark)), reverse=True)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Finds marks, the longest at each place, each as a group of its number."""
        starts = "|".join(re.escape(_start(mark)) for mark in self._ordered)
        return re.compile(
            "|".join(f"({_expression(mark, starts)})" for mark in self._ordered), re.DOTALL
        )

    def cuts(self, text: str) -> list[Cut]:
        """The marks in a text, in order."""
        kinds = [self.kinds[mark] for mark in self._ordered]
        return [
            Cut(*found.span(), kinds[(found.lastindex or 1) - 1])
            for found in self.pattern.finditer(text)
        ]

    def unsettled(self, text: str) -> int:
        """How many characters at the end of a text may be the beginning of a mark."""
        held = max(_overlap(text, spelt(mark)) for mark in self.kinds)
        for mark in self.kinds:
            if isinstance(mark, Header):
                start = text.rfind(mark.start, max(0, len(text) - HEADER_CHARS - len(spelt(mark))))
                if start >= 0 and mark.end not in text[start + len(mark.start) :]:
                    held = max(held, len(text) - start)
        return held

    def split(self, text: str, begun: bool = False) -> Parted:
        """The thought and the answer of a text. begun: whether a thought is open at first."""
        return _split(len(text), self.cuts(text), begun, lambda start, end: text[start:end])


def spelt(mark: Mark) -> str:
    """A mark as it is written where it holds no other words."""
    return mark if isinstance(mark, str) else mark.start + mark.end


def _is_mark(given: Any) -> bool:
    parts = given if isinstance(given, Header) else (given,)
    return all(isinstance(part, str) and part for part in parts)


def _start(mark: Mark) -> str:
    return mark if isinstance(mark, str) else mark.start


def _expression(mark: Mark, starts: str) -> str:
    """starts: an expression for what no header holds, the starts of all marks."""
    if isinstance(mark, str):
        return re.escape(mark)
    start, end = map(re.escape, mark)
    return f"{start}(?:(?!{starts}).){{0,{HEADER_CHARS}}}?{end}"


def pieces(length: int, cuts: Sequence[Cut], begun: bool) -> list[Piece]:
    """What lies between the marks of so many characters or tokens, empty pieces left out."""
    between = list[Piece]()
    start, thought = 0, begun
    for cut in (*cuts, Cut(length, length, None)):
        if cut.start > start:
            between.append(Piece(start, cut.start, thought))
        start = cut.end
        thought = thought if cut.thinks is None else cut.thinks
    return between


def _split(
    length: int, cuts: Sequence[Cut], begun: bool, text: Callable[[int, int], str]
) -> Parted:
    """The thought and the answer, what follows the last end of thinking, of so many characters or
    tokens. text: gives that of a piece."""
    found = pieces(length, cuts, begun)
    if ends_in_thought(cuts, begun):
        return Parted("".join(text(piece.start, piece.end) for piece in found), None)
    end = max((cut.end for cut in cuts if cut.thinks is False), default=0)
    thought = [text(piece.start, piece.end) for piece in found if piece.start < end]
    answer = [text(piece.start, piece.end) for piece in found if piece.start >= end]
    return Parted("".join(thought), "".join(answer))


def ends_in_thought(cuts: Sequence[Cut], begun: bool) -> bool:
    """Whether the last mark leaves a thought open."""
    return next((cut.thinks for cut in reversed(cuts) if cut.thinks is not None), begun)


# ---------------------------------------------------------------- the marks of known models


@dataclass(frozen=True)
class Family:
    """Models that think alike.

    signs: all stand in the chat template, or are tokens of the vocabulary. written: they are
    ordinary words, so that the chat template alone tells.
    """

    marks: ThinkingMarks
    signs: tuple[str, ...]
    written: bool = False


TAGS = ThinkingMarks("<think>", "</think>")
"""DeepSeek-R1, Qwen3, QwQ, SmolLM3, GLM-4.5, MiniMax-M2, Phi-4-reasoning, OLMo 3 Think, Nemotron,
ERNIE 4.5 and EXAONE 4."""

FAMILIES = (
    Family(
        ThinkingMarks("<think>", "</think>", ("<answer>", "</answer>")),
        ("</think>", "<answer>"),
        written=True,
    ),
    Family(TAGS, ("</think>",)),
    Family(  # gpt-oss: channels of the harmony format
        ThinkingMarks(
            (
                Header("<|channel|>analysis", "<|message|>"),
                Header("<|channel|>commentary", "<|message|>"),
            ),
            Header("<|channel|>final", "<|message|>"),
            ("<|start|>assistant",),
            "<|end|><|start|>assistant<|channel|>final<|message|>",
        ),
        ("<|channel|>", "<|message|>"),
    ),
    Family(ThinkingMarks("[THINK]", "[/THINK]"), ("[/THINK]",)),  # Magistral
    Family(  # Granite 3.2
        ThinkingMarks(
            ("Here is my thought process:", "Here's my thought process:"),
            ("Here is my response:", "Here's my response:"),
        ),
        ("Here is my thought process:", "Here is my response:"),
        written=True,
    ),
    Family(ThinkingMarks("<thought>", "</thought>"), ("</thought>",)),  # EXAONE Deep
    Family(ThinkingMarks("<seed:think>", "</seed:think>"), ("</seed:think>",)),  # Seed-OSS
    Family(
        ThinkingMarks(("<|channel>thought\n", "<|channel>"), "<channel|>"),
        ("<|channel>", "<channel|>"),
    ),  # Gemma 4
    Family(  # Command A Reasoning
        ThinkingMarks(
            "<|START_THINKING|>", "<|END_THINKING|>", ("<|START_RESPONSE|>", "<|END_RESPONSE|>")
        ),
        ("<|END_THINKING|>",),
    ),
    Family(ThinkingMarks("<|inner_prefix|>", "<|inner_suffix|>"), ("<|inner_suffix|>",)),  # Apertus
    Family(ThinkingMarks("◁think▷", "◁/think▷"), ("◁/think▷",)),  # Kimi-VL-Thinking
    Family(
        ThinkingMarks("<longcat_think>", "</longcat_think>"), ("</longcat_think>",)
    ),  # LongCat-Flash-Thinking
    Family(  # Apriel 1.5
        ThinkingMarks(
            "Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", ("[END FINAL RESPONSE]",)
        ),
        ("[BEGIN FINAL RESPONSE]",),
        written=True,
    ),
)
"""More particular ones first. Sources: the models' chat templates, and vLLM's reasoning parsers."""


def _all_tags() -> ThinkingMarks:
    tagged = [family.marks for family in FAMILIES if not family.written]
    begin, end, wraps = (
        tuple(dict.fromkeys(mark for marks in tagged for mark in getattr(marks, name)))
        for name in ("begin", "end", "wraps")
    )
    return ThinkingMarks(begin, end, wraps)


ANY = _all_tags()
"""The marks of all known models that no other text holds, for texts of an unknown model."""


def marks_of(tokenizer: Any) -> ThinkingMarks | None:
    """The marks of a tokenizer's model, by its chat template or its vocabulary; None for none."""
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, Mapping):
        template = "\n".join(map(str, template.values()))
    for family in FAMILIES:
        if isinstance(template, str) and all(sign in template for sign in family.signs):
            return family.marks
    for family in FAMILIES:
        if not family.written and all(_is_token(sign, tokenizer) for sign in family.signs):
            return family.marks
    return None


def _is_token(text: str, tokenizer: Any) -> bool:
    number_of = getattr(tokenizer, "convert_tokens_to_ids", None)
    number = None if number_of is None else number_of(text)
    return number is not None and number != getattr(tokenizer, "unk_token_id", None)


# ---------------------------------------------------------------- thoughts in tokens

Setting = ThinkingMarks | Literal[False] | None
"""Marks that a user sets: None for the model's own, False for none."""


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
        """Those of a tokenizer's model, or what the user has set; None for none."""
        fits = setting is None or setting is False or isinstance(setting, ThinkingMarks)
        check_kind(
            "thinking_marks", setting, fits, "ThinkingMarks(begin, end), False for none, or None"
        )
        marks = marks_of(tokenizer) if setting is None else setting
        return cls(marks, tokenizer) if isinstance(marks, ThinkingMarks) else None

    def split(self, tokens: Sequence[int], begun: bool = False) -> Parted:
        """As `ThinkingMarks.split`, of generated tokens; special tokens are left out."""
        if not self.hidden:
            return self.marks.split(self._decode(tokens), begun)
        cuts = self._cuts(tokens)
        return _split(len(tokens), cuts, begun, lambda start, end: self._decode(tokens[start:end]))

    def pieces(self, tokens: Sequence[int], begun: bool = False) -> list[tuple[bool, str]]:
        """(whether it is thought, text) of what lies between the marks, in order.

        Other than in `split`, what comes before an end that nothing opened stays what it was, so
        that more tokens never change earlier pieces.
        """
        if self.hidden:
            cuts = self._cuts(tokens)
            return [
                (p.thought, self._decode(tokens[p.start : p.end]))
                for p in pieces(len(tokens), cuts, begun)
            ]
        text = self._decode(tokens)
        return [
            (p.thought, text[p.start : p.end])
            for p in pieces(len(text), self.marks.cuts(text), begun)
        ]

    def settled(self, tokens: Sequence[int], begun: bool = False) -> list[tuple[bool, str]]:
        """`pieces` of tokens that go on, without what may begin a mark or a character."""
        if self.hidden:
            found = self.pieces(tokens[: len(tokens) - self._unsettled(tokens)], begun)
        else:
            found = self.pieces(tokens, begun)
        if found:
            thought, text = found[-1]
            text = text.rstrip("\ufffd")
            found[-1] = thought, text[: len(text) - self.marks.unsettled(text)]
        return found

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
        return text.endswith(tuple(map(spelt, self.marks.begin)))

    def open_after(self, tokens: Sequence[int], begun: bool = False) -> bool:
        """Whether a thought is open after these tokens. begun: whether one was open before them."""
        cuts = self._cuts(tokens) if self.hidden else self.marks.cuts(self._decode(tokens))
        return ends_in_thought(cuts, begun)

    def whole(self, tokens: Sequence[int]) -> str:
        """The text of tokens with marks and special tokens."""
        return self._decode(tokens, special=True)

    def without_marks(self, tokens: Sequence[int]) -> str:
        """The text of tokens, marks and special tokens left out."""
        return "".join(text for _, text in self.pieces(tokens))

    @cached_property
    def end_token(self) -> str:
        """The mark that ends a thought and is one token, "" where none is."""
        ends = map(spelt, self.marks.end)
        return next((mark for mark in ends if len(self._encode(mark)) == 1), "")

    def last_strings(self, thinks: bool) -> tuple[str, ...]:
        """The last string of each mark after which thinking begins, or with `thinks` ends: a text
        is looked at once one of them has come."""
        marks = self.marks.end if thinks else self.marks.begin
        return tuple(dict.fromkeys(mark if isinstance(mark, str) else mark.end for mark in marks))

    def count(self, tokens: Sequence[int], begun: bool) -> int:
        """How many of these tokens belong to thoughts, with the marks that end them. begun: whether
        a thought is open before them."""
        if self.hidden:
            cuts, places = self._cuts(tokens), range(len(tokens) + 1)
        else:
            cuts = self.marks.cuts(self._decode(tokens))
            places = _Ends(tokens, self._decode)  # type: ignore[assignment]
        count, start, thinks = 0, 0, begun
        for cut in cuts:
            if cut.thinks is None or cut.thinks is thinks:
                continue
            end = bisect_left(places, cut.end if thinks else cut.start)
            count += end - start if thinks else 0
            start, thinks = end, cut.thinks
        return count + (len(tokens) - start if thinks else 0)

    @cached_property
    def hidden(self) -> bool:
        """Whether marks hold special tokens, so that texts leave them out."""
        return any(not self._special.isdisjoint(sequence.tokens) for sequence in self._sequences)

    @cached_property
    def _sequences(self) -> list[_Sequence]:
        """The marks in tokens, the longest first."""
        sequences = list[_Sequence]()
        for mark, thinks in self.marks.kinds.items():
            start, end = (mark, "") if isinstance(mark, str) else mark
            tokens = self._encode(start)
            if tokens:
                sequences.append(_Sequence(tokens, self._encode(end) if end else [], thinks))
        return sorted(sequences, key=lambda sequence: len(sequence.tokens), reverse=True)

    @cached_property
    def _special(self) -> frozenset[int]:
        """The tokens that texts leave out."""
        added = getattr(self.tokenizer, "added_tokens_decoder", None) or {}
        named = getattr(self.tokenizer, "all_special_ids", None) or ()
        return frozenset(named) | {
            number for number, token in added.items() if getattr(token, "special", False)
        }

    @cached_property
    def _bounds(self) -> frozenset[int]:
        """Special tokens that are no part of a mark that opens or closes a thought."""
        marks = [mark.tokens for mark in self._sequences if mark.thinks is not None]
        return self._special.difference(*marks)

    @cached_property
    def _before(self) -> list[int]:
        """What the tokenizer puts before a raw text."""
        return raw_tokens("", self.tokenizer)

    def _cuts(self, tokens: Sequence[int]) -> list[Cut]:
        """The marks among tokens, in order."""
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
        """How many of the last tokens may be the beginning of a mark."""
        held = [_overlap(tokens, mark.tokens) for mark in self._sequences]
        for mark in self._sequences:
            if mark.end:
                first = max(0, len(tokens) - len(mark.tokens) - HEADER_TOKENS)
                for place in range(first, len(tokens)):
                    if mark.opens(tokens, place) and not self._end_of(mark, tokens, place):
                        held.append(len(tokens) - place)
        return max(held, default=0)

    def _end_of(self, mark: _Sequence, tokens: Sequence[int], place: int) -> int:
        """Where a mark ends that begins at a place, 0 if it does not. No header holds another's
        start."""
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
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _decode(self, tokens: Sequence[int], special: bool = False) -> str:
        text = self.tokenizer.decode(
            list(tokens), skip_special_tokens=not special, clean_up_tokenization_spaces=False
        )
        return str(text)


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


class _Ends(Sequence[int]):
    """How long the text of the first so many tokens is."""

    def __init__(self, tokens: Sequence[int], decode: Callable[[Sequence[int]], str]):
        self.tokens, self.decode = tokens, decode

    def __len__(self) -> int:
        return len(self.tokens) + 1

    def __getitem__(self, count: Any) -> Any:
        return len(self.decode(self.tokens[:count]))


def _overlap(text: Sequence[Any], mark: Sequence[Any]) -> int:
    """How much of the end of `text` is the beginning of `mark`, but not all of it."""
    sizes = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text[len(text) - size :] == mark[:size]), 0)
