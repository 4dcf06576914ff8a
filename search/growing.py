"""What step-wise searches share: candidates that grow by some steps, and ratings that look
ahead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from search.base import Requests, SearchSteps, drop_gated, expand
from ttc.branch import Branch
from ttc.errors import BudgetExceeded
from ttc.protocols import Aggregation, Expand, Rate, Release
from ttc.sampling import GREEDY, Sampling
from ttc.step import Step


def steps_to(count: int, step: Step, finish_tokens: int) -> list[Step]:
    """`count` steps alike; with `finish_tokens` above 0 the last one runs to the answer's end, in
    so many tokens and without delimiter (the last iteration of search-and-learn's searches)."""
    last = step
    if finish_tokens:
        thinking = None if step.thinking is None else replace(step.thinking, step=None)
        last = replace(step, max_tokens=finish_tokens, delimiter=None, thinking=thinking)
    return [step] * (count - 1) + [last]


def grow(
    parents: Sequence[Branch], width: int, steps: Sequence[Step], sampling: Sampling
) -> SearchSteps:
    """`width` children of each parent, which go on by themselves until they have made all of
    `steps`. The parents are released.

    Steps after the first one are not rated: the granularity of verification (Chen et al., 2025,
    VG-Search).
    """
    children = yield from expand(parents, width, steps[0], sampling)
    yield Release(parents)
    for step in steps[1:]:
        going = [child for child in children if not child.finished]
        if not going:
            break
        after = by_parent((yield Expand(going, 1, step, sampling)))
        yield Release(list(after))
        children = yield from drop_gated([after.get(child, child) for child in children])
    return children


def rate_ahead(
    candidates: Sequence[Branch], lookahead: int, step: Step, aggregation: Aggregation
) -> Requests[None]:
    """Rate each candidate by where `lookahead` more steps at temperature 0 lead (Snell et al.,
    2025).

    The score at the rollout's end becomes the candidate's, and the rollout is dropped. With
    `lookahead=0`, and for a finished candidate, that is its own score.
    """
    ends = {candidate: candidate for candidate in candidates}
    try:
        for _ in range(lookahead):
            going = {end: candidate for candidate, end in ends.items() if not end.finished}
            if not going:
                break
            longer = by_parent((yield Expand(list(going), 1, step, GREEDY)))
            ends |= {going[end]: after for end, after in longer.items()}
            yield Release([end for end in longer if end not in ends])
        yield Rate(list(ends.values()), aggregation)
    except BudgetExceeded:
        yield Release([end for end in ends.values() if end not in ends])
        raise
    for candidate, end in ends.items():
        candidate.score, candidate.step_scores = end.score, end.step_scores
    yield Release([end for end in ends.values() if end not in ends])


def drop_repeated(branches: Sequence[Branch]) -> SearchSteps:
    """Let go of branches whose text is exactly that of one before them.

    One that can go on and one that is finished are not the same, whatever their text.
    """
    first: dict[tuple[str, bool], Branch] = {}
    for branch in branches:
        first.setdefault((branch.text, branch.finished), branch)
    kept = [branch for branch in branches if first[branch.text, branch.finished] is branch]
    yield Release([branch for branch in branches if branch not in kept])
    return kept


def by_parent(children: Iterable[Branch]) -> dict[Branch, Branch]:
    return {child.parent: child for child in children if child.parent is not None}
