"""A branch: one candidate, and what its tokens say: its text, its thoughts, its answer, the tools
that it calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ttc.text.thinking_marks import Parted
from ttc.text.thoughts import Thoughts
from ttc.tree.branch import TokenBranch
from ttc.tree.segment import Segment
from ttc.usage import Usage

if TYPE_CHECKING:
    from ttc.tool_calls import ToolCall

ThoughtClosed = Literal["limit", "looped"]


class Branch(TokenBranch):
    """A `TokenBranch` that is read, as `Engine.root` and `Engine.fork` make it.

    turn_start: `len(tokens)` where the model's turn began. opened: whether the prompt had opened a
        thought there; None where only its tokens tell.
    thoughts: how thoughts are told from answers, None where all of a text is answer.
    about: what is known of its problem beside the question (`Problem.metadata`).
    thinking_ended: `len(tokens)` where words asked for the answer, None where none did.
        thinking_tokens: tokens of thoughts since `turn_start`. thought_closed: why a driver closed
        its thought.
    tool_calls: the tools that it has called; their answers are not read as its own.
    cut: what the text leaves out at its end: a string of `leave_out`, and what its last token holds
        beyond.
    """

    COPIED: ClassVar = (*TokenBranch.COPIED, "tool_calls")

    def __init__(
        self,
        tokens: Sequence[int],
        leaf: Segment | None,
        key: int,
        usage: Usage,
        decode: Callable[[Sequence[int]], str],
        root_id: int | None = None,
    ):
        super().__init__(tokens, leaf, key, usage, root_id)
        self.turn_start = len(self.tokens)
        self.opened: bool | None = None
        self.thoughts: Thoughts | None = None
        self.about: Mapping[str, Any] = {}
        self.thinking_ended: int | None = None
        self.thinking_tokens = 0
        self.thought_closed: ThoughtClosed | None = None
        self.tool_calls: list[ToolCall] = []
        self.cut = ""
        self._decode = decode

    def adopt(self, child: Self, model: str, count: int) -> None:
        super().adopt(child, model, count)
        child.about = self.about

    def take_back(self, count: int) -> None:
        super().take_back(count)
        self.cut = ""

    def begin_turn(self, start: int, opened: bool | None) -> None:
        self.turn_start, self.opened = start, opened

    def begin_answer(self) -> None:
        super().begin_answer()
        self.thinking_ended = None
        self.thinking_tokens = 0
        self.thought_closed = None
        self.tool_calls = []

    def rewind(self, length: int) -> None:
        super().rewind(length)
        self.turn_start = min(self.turn_start, length)
        self.cut = ""

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
    def text(self) -> str:
        """The generated tokens as text, without special tokens and without `cut`."""
        return self._decode(self.generated).removesuffix(self.cut)

    def text_since(self, end: int) -> str:
        """`text` from the end of a step on, as `steps` has it."""
        before = self._decode(self.tokens[self.prompt_length : end]).rstrip("\ufffd")
        return self.text.removeprefix(before)

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
        written, thoughts = self.without_calls(self.prompt_length, end), self.thoughts
        if thoughts is None:
            return Parted("", self._decode(written))
        begun = self.thinks_at(self.prompt_length, thoughts)
        if self.thinking_ended is None or (end is not None and end <= self.thinking_ended):
            place = len(self.tokens) if end is None else end
            if self.tool_calls and self.thinks_at(place, thoughts):
                return Parted(thoughts.without_marks(written), None)
            calls = [c for c in self.tool_calls if c.opened is not None and c.end <= place]
            # the call has ended the thought
            if calls and self.thinks_at((call := calls[-1]).start, thoughts):
                first = thoughts.without_marks(self.without_calls(self.prompt_length, call.end))
                last = thoughts.split(self.without_calls(call.end, end), bool(call.opened))
                return Parted(first + last.thought, last.answer)
            return thoughts.split(written, begun)
        before = thoughts.pieces(self.without_calls(self.prompt_length, self.thinking_ended), begun)
        answer = self.without_calls(max(self.prompt_length, self.thinking_ended), end)
        return Parted("".join(text for _, text in before), thoughts.without_marks(answer))

    def written_since(self, start: int) -> int:
        """How many of the tokens from `start` on it has written itself; tools said the others."""
        spans = {(max(call.told, start), call.end) for call in self.tool_calls if call.end > start}
        return len(self.tokens) - start - sum(end - begin for begin, end in spans)

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
