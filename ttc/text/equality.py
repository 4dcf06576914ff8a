"""How answers are read, and which of them are the same: one equality for grading and for voting."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ttc.text.answers import extract_answer
from ttc.text.numbers import MAX_CHARS, as_number, plain_spelling
from ttc.text.thinking_marks import ThinkingMarks
from ttc.text.units import split_unit

Same = Callable[[str, str], bool]
"""Whether two answers are the same; where one is a gold answer, it comes first."""


def canonical(answer: str | None, kind: str = "text") -> str | None:
    """One spelling for answers that are the same: 12.0, $12 and 12 agree. None for an invalid one.

    kind: the answer kind. "number" and "math" leave out a unit behind a number too, "math" blanks
    that say nothing, and "code" comments.
    """
    if answer is None:
        return None
    return _short(answer, kind) if len(answer) <= MAX_CHARS else _spelling(answer, kind)


def _spelling(answer: str, kind: str) -> str | None:
    if not answer.strip():
        return None
    if kind == "code":
        from ttc.text.code import normalized

        return normalized(answer)
    if kind == "math":
        from ttc.text.quantities import math_spelling

        return math_spelling(answer)
    value = as_number(split_unit(answer)[0] if kind in ("number", "strict") else answer)
    return plain_spelling(answer) if value is None else str(value)


_short = lru_cache(maxsize=2**14)(_spelling)


def same_answer(gold: str, predicted: str | None, kind: str = "number") -> bool:
    """Whether `predicted` is right: spelt the same (`canonical`), or of kind "math" the same words,
    date, time, quantity or formula. Which of the two is gold changes nothing.

    A comparison that takes too long counts as not equal (see `ttc.text.math_equality`).
    """
    if predicted is None:
        return False
    left, right = canonical(gold, kind), canonical(predicted, kind)
    if left is None or right is None:
        return False
    if left == right:
        return True
    if kind != "math":
        return False
    from ttc.text.quantities import same_math

    return same_math(gold, predicted)


def ballots(
    answers: Sequence[str | None], kind: str = "text", same: Same | None = None
) -> list[str | None]:
    """What each answer votes for: answers that are the same give the same string, None has no vote.

    same: the grader to group by; default: `same_answer` of this kind. Two answers are the same if
    either is right when the other is gold.
    Equality by a grader is not transitive (0.3333333 is 1/3, and 0.3333328 is 0.3333333). So an
    answer joins the first group whose first answer it equals, or begins one: later answers never
    change what earlier ones vote for.
    """
    equal = same or (lambda gold, predicted: same_answer(gold, predicted, kind))
    firsts: dict[str, str] = {}  # the first answer of each group, by its spelling
    groups: dict[str, str] = {}  # the group of each spelling
    votes: list[str | None] = []
    for answer in answers:
        spelling = canonical(answer, kind)
        if answer is None or spelling is None:
            votes.append(None)
            continue
        if spelling not in groups:
            others = firsts.items() if same is not None or kind == "math" else ()
            group = (name for name, first in others if equal(first, answer) or equal(answer, first))
            groups[spelling] = next(group, spelling)
            firsts.setdefault(groups[spelling], answer)
        votes.append(groups[spelling])
    return votes


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
