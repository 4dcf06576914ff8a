"""Votes on the calls of tools with which branches end, as its_hub's self-consistency has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Literal

from search.selection import C, Sample, Winner, score_weights, vote, whole
from ttc.protocols import Extract
from ttc.results import comparable
from ttc.tool_calls import ToolCall, call_text

ToolVote = Literal["none", "tool_name", "tool_args", "tool_hierarchical"]
"""What votes for calls count: nothing, the tools' names, the arguments, or first the names and
among those the arguments."""


def vote_on_calls(
    candidates: Sequence[C],
    extract: Extract,
    weighted: bool,
    how: ToolVote,
    excluded: Collection[str] = (),
) -> Winner[C]:
    """The best-scored candidate among those that call what most of them call; its answer is the
    calls as text. Where most candidates call nothing, the vote on the answers of those.

    Only calls that are left to the caller count. excluded: arguments that have no say.
    """
    left = whole(candidates)
    weights = dict(zip(left, _weights(left, weighted), strict=True))
    calling = _most(left, weights, lambda candidate: bool(_open(candidate)))
    if not calling or not _open(calling[0]):
        return vote(calling or candidates, extract, weighted)

    def names(candidate: C) -> Hashable:
        return tuple(call.name for call in _open(candidate))

    def arguments(candidate: C) -> Hashable:
        return tuple(
            call_text("", {name: v for name, v in call.arguments.items() if name not in excluded})
            for call in _open(candidate)
        )

    if how != "tool_args":
        calling = _most(calling, weights, names)
    if how != "tool_name":
        calling = _most(calling, weights, arguments)
    best = max(calling, key=lambda candidate: comparable(candidate.score))
    return best, "; ".join(call.key for call in _open(best))


def _open(candidate: C) -> list[ToolCall]:
    return [call for call in candidate.tool_calls if call.answer is None]


def _weights(candidates: Sequence[C], weighted: bool) -> list[float]:
    if not weighted:
        return [1.0] * len(candidates)
    return score_weights([Sample(None, candidate.score) for candidate in candidates])


def _most(
    candidates: Sequence[C], weights: dict[C, float], key: Callable[[C], Hashable]
) -> list[C]:
    totals: dict[Hashable, float] = defaultdict(float)
    for candidate in candidates:
        totals[key(candidate)] += weights[candidate]
    if not totals:
        return []
    winner = max(totals, key=lambda value: comparable(totals[value]))
    return [candidate for candidate in candidates if key(candidate) == winner]
