"""How answers of one kind are read, and which of them are the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ttc.text.answers import extract_answer
from ttc.text.equality import Same, ballots
from ttc.text.thinking_marks import ThinkingMarks


@dataclass(frozen=True)
class AnswerReader:
    """Reads answers out of texts. It is the `extract` of a search, which votes by its equality.

    kind, strict, choices: as for `extract_answer`.
    extract: reads a text instead; then answers are the same if they are spelt the same
    (`canonical`).
    same: a grader of two answers, the gold one first, to group by instead.
    marks: what parts thoughts from the answer, which alone is read; None where all is answer.
    """

    kind: str = "number"
    choices: str | None = None
    extract: Callable[[str], str | None] | None = None
    same: Same | None = None
    strict: bool = False
    marks: ThinkingMarks | None = None

    def __call__(self, text: str) -> str | None:
        if self.extract is None:
            return extract_answer(text, self.kind, self.strict, self.choices, self.marks)
        answer = text if self.marks is None else self.marks.split(text).answer
        return None if answer is None else self.extract(answer)

    def among(self, choices: object) -> AnswerReader:
        if not isinstance(choices, str) or not re.fullmatch("[A-Z]+", choices):
            return self
        return replace(self, choices=choices)

    def ballots(self, answers: Sequence[str | None]) -> list[str | None]:
        return ballots(answers, self.equality, self.same)

    @property
    def equality(self) -> str:
        return self.kind if self.extract is None else "text"


def ballots_by(
    extract: Callable[[str], str | None], answers: Sequence[str | None]
) -> list[str | None]:
    """What answers that `extract` has read vote for: by an `AnswerReader`'s equality, else by their
    spelling."""
    return extract.ballots(answers) if isinstance(extract, AnswerReader) else ballots(answers)
