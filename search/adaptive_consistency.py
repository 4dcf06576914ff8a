"""Adaptive consistency (Aggarwal et al., 2023): sample until the vote is decided, as far as chance
allows to say."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Interval

from search.base import Case, Search, SearchSteps, expand
from search.selection import answer_of
from ttc.branch import Branch
from ttc.checks import PositiveInt
from ttc.text.equality import ballots_by


@dataclass(frozen=True)
class AdaptiveConsistency(Search):
    """At most `n` samples that vote, until the answer is clear.

    block: so many are made at a time. A block counts when all of its samples are done, so that
        short answers have no head start.
    rule: when it is clear: "beta", once the most frequent answer is the most likely one with
        probability `confidence` or more (see `majority_probability`); or "window", once all samples
        of a block have the same answer (ESC; Li et al., 2024), for blocks of 2 or more. Samples
        without an answer have no vote, and a window that holds one does not agree.
    confidence: how sure the rule "beta" has to be.

    Tokens: n L.
    Use it where: as `self_consistency`, and problems differ in difficulty.
    """

    n: int = 40
    block: PositiveInt = 1
    rule: Literal["beta", "window"] = "beta"
    confidence: Annotated[float, Interval(gt=0.5, le=1)] = 0.95
    max_tokens: int = 256

    needs_verifier = False
    voting = "majority"

    def refusals(self) -> Mapping[str, object]:
        return {
            f"block={self.block} makes a window of one sample, which always agrees; give 2 or "
            "more": self.rule == "window" and self.block < 2
        }

    def run(self, root: Branch, case: Case) -> SearchSteps:
        step = case.answer(self.max_tokens)
        branches, answers = list[Branch](), list[str | None]()
        for sampled in range(0, self.n, self.block):
            count = min(self.block, self.n - sampled)
            samples = yield from expand([root], count, step, self.sampling)
            branches += samples
            answers += [answer_of(sample, case.extract) for sample in samples]
            votes = ballots_by(case.extract, answers)
            if self.decided(votes[len(votes) - len(samples) :], votes):
                break
        return branches

    def decided(self, last: Sequence[str | None], votes: Sequence[str | None]) -> bool:
        """Whether the samples so far are enough. last: the votes of the last block."""
        if self.rule == "window":
            return len(last) == self.block and last[0] is not None and len(set(last)) == 1
        counts = Counter(vote for vote in votes if vote is not None)
        first, second = sorted([*counts.values(), 0, 0], reverse=True)[:2]
        return majority_probability(first, second) >= self.confidence


def majority_probability(first: int, second: int) -> float:
    """P = 1 - I_0.5(first + 1, second + 1): that the answer with `first` votes is more likely than
    the one with `second`, under a flat prior (Aggarwal et al., 2023).

    I is the regularised incomplete beta function; of whole numbers it is a sum of binomial
    coefficients.
    """
    n = first + second + 1
    return float(sum(math.comb(n, k) for k in range(first + 1)) / 2**n)
