"""REBASE, reward balanced search (Wu et al., 2025, "Inference Scaling Laws", section 3.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import accumulate
from typing import Literal

from search.base import Case, SearchSteps, StepwiseSearch, expand
from search.selection import C, Voting, Winner, complete
from ttc.branch import Branch
from ttc.checks import PositiveFloat
from ttc.protocols import Aggregation, Extract, Rate, Release
from ttc.results import comparable


@dataclass(frozen=True)
class REBASE(StepwiseSearch):
    """Every step shares `n` continuations out among the open branches by their ratings.

    See `balanced` for the shares; the root gets all n. A finished branch takes its one continuation
    out of the budget for good. The search ends when no branch is open, or after `max_steps` steps.
    The candidates are the finished branches, and the open ones where none of these has an answer;
    also where a budget ends the search.

    balance_temperature: T_b of the paper; the lower, the more the best branches get.
    answer: that with the highest total score ("weighted_majority"), or of the best rated branch
    ("best").

    Tokens: n x max_steps x s.
    Use it where: ratings are fine-grained, and answers can be compared.
    """

    n: int = 16
    step_tokens: int = 256
    max_steps: int = 25
    delimiter: str | None = None
    aggregation: Aggregation = "last"
    balance_temperature: PositiveFloat = 0.2
    answer: Literal["weighted_majority", "best"] = "weighted_majority"
    _: KW_ONLY
    temperature: float = 1.0

    compares_ratings = True

    def run(self, root: Branch, case: Case) -> SearchSteps:
        step = case.step(self.step_tokens, self.delimiter)
        opened = [root]
        finished = list[Branch]()
        budget = self.n
        for _ in range(self.max_steps):
            scores = [branch.score or 0.0 for branch in opened]
            shares = balanced(scores, budget, self.balance_temperature)
            children = yield from expand(opened, shares, step, self.sampling)
            yield Release(opened)
            yield Rate(children, self.aggregation)
            finished += [child for child in children if child.finished]
            opened = [child for child in children if not child.finished]
            budget = self.n - len(finished)
            if budget <= 0 or not opened:
                break
        return complete([*finished, *opened], case.extract)

    @property
    def voting(self) -> Voting | None:
        return "weighted" if self.answer == "weighted_majority" else None

    def choose(self, candidates: Sequence[C], extract: Extract) -> Winner[C]:
        return super().choose(complete(candidates, extract), extract)


def balanced(scores: Sequence[float], budget: int, temperature: float) -> list[int]:
    """How many of `budget` continuations each branch gets; together they are exactly the budget.

    The best branch comes first, the first one of equals: ceil(budget w / sum of w) with
    w = exp(score / temperature) (REBASE's Eq. 1). The next one gets its share of what is left,
    among those that are left.
    """
    places = sorted(range(len(scores)), key=lambda place: -comparable(scores[place]))
    best = max(map(comparable, scores))
    weights = [math.exp((comparable(scores[place]) - best) / temperature) for place in places]
    sums = list(accumulate(reversed(weights)))[::-1]
    shares = [0] * len(scores)
    for place, weight, total in zip(places, weights, sums, strict=True):
        if not budget:
            break
        share = math.ceil(budget * weight / total - 1e-9)  # 5.000000001 is a rounding error
        shares[place] = share
        budget -= share
    return shares
