"""Diverse prompts (Li et al., 2023; RKSC's setting): each sample starts from a prompt of its
own."""

from __future__ import annotations

from dataclasses import dataclass

from search.base import Case, Search, SearchSteps, expand
from ttc.branch import Branch
from ttc.checks import QuestionText
from ttc.protocols import Aggregation, Rate, Vary

HINTS = (
    " Let's think step by step.",
    " First, list what is known.",
    " Let's write an equation.",
    " Work carefully, then check.",
    " Start from what is asked.",
    " Break it into small parts.",
    " Estimate first, then compute.",
    " Solve it the simplest way.",
)
"""Eight reasoning hints; RKSC's are not in the paper."""


@dataclass(frozen=True)
class DiversePrompts(Search):
    """Best of `n` samples from several phrasings of the prompt.

    phrasings: instructions with `{question}` in them, none for the template's own. hints: what
    answers start with.

    Tokens: n L.
    Use it where: samples of one prompt are too much alike.
    """

    n: int = 8
    max_tokens: int = 256
    phrasings: tuple[QuestionText, ...] = ()
    hints: tuple[str, ...] = HINTS
    aggregation: Aggregation = "last"

    def run(self, root: Branch, case: Case) -> SearchSteps:
        step = case.answer(self.max_tokens)
        starts = yield Vary(root, self.n, self.phrasings, self.hints)
        branches = yield from expand(starts, 1, step, self.sampling)
        yield Rate(branches, self.aggregation)
        return branches
