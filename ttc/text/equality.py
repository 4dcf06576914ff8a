"""One equality of answers, for grading and for voting."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

from ttc.text.code import spelt_alike
from ttc.text.math_equality import math_equal
from ttc.text.numbers import MAX_CHARS, as_number, without_unit
from ttc.text.typed_math import in_latex

Same = Callable[[str, str], bool]
"""Whether two answers are the same; where one is a gold answer, it comes first."""

_SIZES = re.compile(r"\\(?:left|right|displaystyle)\b\s*")
_SPACES = re.compile(r"\\[,;:! ]")
_SHORT_FRACTION = re.compile(r"\\frac ?(?:\{([^{}]{1,100})\}|(\d)) ?(?:\{([^{}]{1,100})\}|(\d))")
_AROUND = re.compile(r" ?([-+*/=<>^_,;:|(){}\[\]]) ?")
_PERCENT = re.compile("%|percent|pct", re.IGNORECASE)
_NEAR = 1e-5
"""Numbers further apart are never equal to math-verify, which rounds decimals to six digits."""


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
        return spelt_alike(answer)
    value = as_number(without_unit(answer) if kind in ("number", "strict", "math") else answer)
    if value is not None:
        return str(value)
    plain = " ".join(_plain_latex(answer).split()).strip(" .")
    return _plain_math(plain) if kind == "math" else plain


_short = lru_cache(maxsize=2**14)(_spelling)


def same_answer(gold: str, predicted: str | None, kind: str = "number") -> bool:
    """Whether `predicted` is right: spelt the same (`canonical`), or of kind "math" equal by
    math-verify, gold first.

    A comparison that takes too long counts as not equal (see `ttc.text.math_equality`).
    """
    if predicted is None:
        return False
    left, right = canonical(gold, kind), canonical(predicted, kind)
    if left == right:
        return left is not None
    if kind != "math" or left is None or right is None or _apart(gold, predicted):
        return False
    return math_equal(in_latex(gold), in_latex(predicted))


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
    known: dict[str, str] = {}  # the group of each spelling
    votes: list[str | None] = []
    for answer in answers:
        spelling = canonical(answer, kind)
        if answer is None or spelling is None:
            votes.append(None)
            continue
        if spelling not in known:
            others = firsts.items() if same is not None or kind == "math" else ()
            group = (name for name, first in others if equal(first, answer) or equal(answer, first))
            known[spelling] = next(group, spelling)
            firsts.setdefault(known[spelling], answer)
        votes.append(known[spelling])
    return votes


def _apart(gold: str, predicted: str) -> bool:
    """Whether both are plain numbers, no percentages, that differ by more than any rounding."""
    if _PERCENT.search(gold) or _PERCENT.search(predicted):
        return False
    left, right = (as_number(without_unit(answer)) for answer in (gold, predicted))
    return left is not None and right is not None and abs(left - right) > _NEAR


def _plain_latex(answer: str) -> str:
    """Without what changes how a formula looks, not what it says."""
    sized = _SIZES.sub("", re.sub(r"\\[dt]frac\b", r"\\frac", answer))
    return _SPACES.sub(" ", sized)


def _plain_math(plain: str) -> str:
    """A formula with single blanks, without those that say nothing, and with braces in \\frac12."""
    if len(plain) > MAX_CHARS:
        return plain
    braced = re.sub(r"\\[dt]frac(?=\d)", r"\\frac", plain)
    braced = _SHORT_FRACTION.sub(lambda m: rf"\frac{{{m[1] or m[2]}}}{{{m[3] or m[4]}}}", braced)
    return _AROUND.sub(r"\1", in_latex(braced)).strip(" $")
