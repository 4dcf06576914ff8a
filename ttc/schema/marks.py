"""The marks of a model's thoughts, as far as a grammar has to know them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ttc.backend import Backend
from ttc.text.thinking_marks import Header
from ttc.text.thoughts import Thoughts


@dataclass(eq=False)
class Marks:
    """openings: the tokens with which a model may begin a thought; of a `Header`, those of its
    start. single: marks that are one token each, which no answer holds."""

    thoughts: Thoughts
    backend: Backend
    openings: tuple[tuple[int, ...], ...] = field(init=False)
    single: frozenset[int] = field(init=False)
    _ends: dict[int, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tokens = {
            mark: tuple(self.backend.encode(mark.start if isinstance(mark, Header) else mark))
            for mark in self.thoughts.marks.kinds
        }
        opening = [
            tokens[mark]
            for mark, thinks in self.thoughts.marks.kinds.items()
            if thinks or (isinstance(mark, Header) and thinks is False)
        ]
        self.openings = tuple(dict.fromkeys(filter(None, opening)))
        self.single = frozenset(group[0] for group in tokens.values() if len(group) == 1)

    def has_ended(self, tokens: Sequence[int], new: int) -> bool:
        """Whether a thought is over that begins with the first of these tokens. new: how many of
        them are looked at for the first time."""
        if not any(map(self._may_end, tokens[len(tokens) - new :])):
            return False
        return not self.thoughts.open_after(tokens, begun=True)

    def _may_end(self, token: int) -> bool:
        if (ends := self._ends.get(token)) is None:
            text = self.backend.decode([token], special=True)
            ends = any(string[-1] in text for string in self.thoughts.last_strings(True))
            self._ends[token] = ends
        return ends
