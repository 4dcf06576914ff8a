"""Answers to `Rate`: the verifier's scores, where the budget pays for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from search.active_search import ActiveSearch
from search.rating import aggregate
from search.under_way import PassEvents
from ttc.backend import Backend
from ttc.errors import VerifierError
from ttc.protocols import Aggregation, Rate
from ttc.task import Interrupted, Passes, interruptible
from ttc.usage import Usage

RateRequests = Sequence[tuple[ActiveSearch, Rate]]
"""Ratings, each with the search that asks for it."""

StepScores = list[list[float]]
"""The step scores of each branch of one request."""


@dataclass(frozen=True)
class Rates:
    """Answers the `Rate` requests of searches on one backend."""

    engine: Backend

    def answer(self, requests: RateRequests) -> PassEvents:
        """Scores for all that one verifier rates, in one call where none of them fails."""
        alike: dict[tuple[int, Aggregation], list[tuple[ActiveSearch, Rate]]] = defaultdict(list)
        for active, request in requests:
            key = id(active.config.rater.verifier), request.aggregation
            alike[key].append((active, request))
        for together in alike.values():
            yield from self._rate(_not_over(together))

    def price(self, active: ActiveSearch, request: Rate) -> int:
        rater, question = active.config.rater, active.problem.question
        return rater.price(request.branches, question, self.engine)

    def _rate(self, requests: RateRequests) -> PassEvents:
        paid = [(active, request) for active, request in requests if self._pays(active, request)]
        try:
            given = yield from self._scores(paid)
        except Interrupted:
            yield None  # the next step ends those who are overdue
            yield from self._rate(_not_over(paid))
            return
        for (active, request), scores in zip(paid, given, strict=True):
            if active.over:
                continue
            try:
                if isinstance(scores, VerifierError):
                    raise scores
                _keep(active, request, scores)
                progress = active.progress("rated", request.branches)
                active.advance([branch.score for branch in request.branches])
            except VerifierError as error:  # a search may say so too, of ratings that it cannot use
                active.fail(error)
            else:
                yield active.index, progress
        if paid:
            yield None

    def _pays(self, active: ActiveSearch, request: Rate) -> bool:
        """Whether the budget has room for a rating; else the search is told, or has failed."""
        spending = active.spending
        try:
            if spending.tokens_left is None or spending.pays(self.price(active, request)):
                return True
        except VerifierError as error:
            active.fail(error)
        else:
            active.run_out("max_tokens")
        return False

    def _scores(self, requests: RateRequests) -> Passes[list[StepScores | VerifierError]]:
        """The step scores of each problem's branches, or why there are none. All have one
        verifier."""
        if not requests:
            return []
        attempt = Attempt.of([active for active, _ in requests])
        branches = [branch for _, request in requests for branch in request.branches]
        questions = [
            active.problem.question for active, request in requests for _ in request.branches
        ]
        rating = requests[0][0].config.rater.rating(branches, questions, self.engine)
        try:
            while True:
                with interruptible(attempt.look):
                    next(rating)
                yield None
        except StopIteration as end:
            remaining = iter(end.value)
            return [[next(remaining) for _ in request.branches] for _, request in requests]
        except VerifierError as failure:
            if len(requests) == 1:
                return [failure]
        finally:
            rating.close()
        attempt.forget()  # the others do not pay for it
        alone = list[StepScores | VerifierError]()
        for active, request in requests:
            ended = VerifierError("the problem has ended meanwhile")
            alone += [ended] if active.over else (yield from self._scores([(active, request)]))
        return alone


@dataclass(frozen=True)
class Attempt:
    """A rating that may have to be made again.

    meters: of each search, with what they read before.
    """

    meters: dict[ActiveSearch, list[tuple[Usage, Usage]]]

    @classmethod
    def of(cls, searches: Sequence[ActiveSearch]) -> Attempt:
        return cls(
            {
                active: [(meter, replace(meter)) for meter in active.spending.meters.values()]
                for active in searches
            }
        )

    def forget(self) -> None:
        for active, meters in self.meters.items():
            for meter, before in [] if active.overdue else meters:
                vars(meter).update(vars(before))

    def look(self) -> None:
        if any(active.overdue for active in self.meters):
            self.forget()
            raise Interrupted


def _keep(active: ActiveSearch, request: Rate, scores: StepScores) -> None:
    if request.aggregation == "product":
        active.config.rater.check_product(scores)
    for branch, step_scores in zip(request.branches, scores, strict=True):
        branch.step_scores = step_scores
        branch.score = aggregate(step_scores, request.aggregation)
        active.tree.rated(branch)


def _not_over(requests: RateRequests) -> RateRequests:
    return [(active, request) for active, request in requests if not active.over]


def rate(driver: Any, requests: RateRequests) -> PassEvents:
    """Answers to `Rate`."""
    yield from Rates(driver.engine).answer(requests)
