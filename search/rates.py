"""Answers to `Rate`: the verifier's scores, where the budget pays for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from search.active_search import ActiveSearch
from search.rating import aggregate
from search.under_way import PassEvents, UnderWay
from ttc.backend import Backend
from ttc.errors import VerifierError
from ttc.protocols import Rate
from ttc.task import Interrupted, Passes, interruptible

RateRequests = Sequence[tuple[ActiveSearch, Rate]]
"""Ratings, each with the search that asks for it."""

StepScores = list[list[float]]
"""The step scores of each branch of one request."""


def rate(run: UnderWay, requests: RateRequests) -> PassEvents:
    """Answers to `Rate`: scores for all that one verifier rates, in one call where none of them
    fails."""
    alike: dict[int, list[tuple[ActiveSearch, Rate]]] = defaultdict(list)
    for active, request in requests:
        alike[id(active.config.rater.verifier)].append((active, request))
    for together in alike.values():
        yield from _rate(run.engine, together)


def price(engine: Backend, active: ActiveSearch, request: Rate) -> int:
    """The most tokens that a rating reads."""
    return active.config.rater.price(request.branches, active.question, engine)


def _rate(engine: Backend, requests: RateRequests) -> PassEvents:
    paid = [(a, r) for a, r in requests if not a.over and _pays(engine, a, r)]
    try:
        results = yield from _scores(engine, paid)
    except Interrupted:
        yield None  # the next step ends those who are overdue
        yield from _rate(engine, paid)
        return
    for (active, request), scores in zip(paid, results, strict=True):
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


def _pays(engine: Backend, active: ActiveSearch, request: Rate) -> bool:
    """Whether the budget has room for a rating; else the search is told, or has failed."""
    left = active.spending.tokens_left.get("max_tokens")
    try:
        if left is None or price(engine, active, request) <= left:
            return True
    except VerifierError as error:
        active.fail(error)
    else:
        active.run_out("max_tokens")
    return False


def _scores(engine: Backend, requests: RateRequests) -> Passes[list[StepScores | VerifierError]]:
    """The step scores of each problem's branches, or why there are none. All have one verifier."""
    if not requests:
        return []
    branches = [branch for _, request in requests for branch in request.branches]
    questions = [a.question for a, request in requests for _ in request.branches]
    meters = [(a, m, replace(m)) for a, _ in requests for m in a.spending.meters.values()]

    def forget() -> None:
        """Those who go on do not pay for a rating that is made again."""
        for active, meter, before in meters:
            if not active.overdue:
                vars(meter).update(vars(before))

    def look() -> None:
        if any(active.overdue for active, _ in requests):
            forget()
            raise Interrupted

    rating = requests[0][0].config.rater.rating(branches, questions, engine)
    try:
        while True:
            with interruptible(look):
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
    forget()
    alone = list[StepScores | VerifierError]()
    for active, request in requests:
        ended = VerifierError("the problem has ended meanwhile")
        scores = [ended] if active.over else (yield from _scores(engine, [(active, request)]))
        alone += scores
    return alone


def _keep(active: ActiveSearch, request: Rate, scores: StepScores) -> None:
    if request.aggregation == "product":
        active.config.rater.check_product(scores)
    for branch, step_scores in zip(request.branches, scores, strict=True):
        branch.step_scores = step_scores
        branch.score = aggregate(step_scores, request.aggregation)
        active.tree.rated(branch)
