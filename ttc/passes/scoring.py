"""Log-probabilities of given continuations, each shared part computed once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ttc.passes.prefill import prefill_passes
from ttc.tree.branch import Branch
from ttc.tree.tree import Segment, common_prefix
from ttc.usage import Usage

if TYPE_CHECKING:
    from ttc.engine import Engine

Scores = list[list[list[float]]]


def score(
    engine: Engine,
    branches: Sequence[Branch],
    given: Sequence[list[int]],
    continuations: Sequence[Sequence[list[int]]],
) -> Scores:
    """See `Engine.score`. Two passes: what all continuations of a branch share, then what is left of each."""
    leaves = [engine.leaf(b) for b in branches]
    usages = [b.usage for b in branches]
    shared = [_shared(group) for group in continuations]
    heads = [
        [b.tokens[-1], *more, *group[0][:n]]
        for b, more, group, n in zip(branches, given, continuations, shared, strict=True)
    ]
    held: list[Segment] = []
    try:
        left = [(i, j) for i, group in enumerate(continuations) for j, c in enumerate(group) if len(c) > shared[i] + 1]
        runs = [continuations[i][j][shared[i] : -1] for i, j in left]
        engine.residency.require(sum(map(len, heads)) + sum(map(len, runs)))  # both passes, before either
        targets = [[c[: n + 1] for c in group] for group, n in zip(continuations, shared, strict=True)]
        scores = _score_runs(engine, leaves, heads, targets, usages, held, [len(more) for more in given])
        targets = [[continuations[i][j][shared[i] + 1 :]] for i, j in left]
        rest = _score_runs(engine, [held[i] for i, _ in left], runs, targets, [usages[i] for i, _ in left], held)
        for (i, j), (tail,) in zip(left, rest, strict=True):
            scores[i][j] += tail
    finally:
        for segment in reversed(held):
            engine.tree.drop(segment)
    return scores


def _shared(group: Sequence[list[int]]) -> int:
    """How many tokens all continuations share, the last token of the shortest left out."""
    first = group[0]
    return min(len(first) - 1, *(common_prefix(first, c[:-1]) for c in group))


def _score_runs(
    engine: Engine,
    leaves: Sequence[Segment],
    runs: Sequence[list[int]],
    targets: Sequence[Sequence[list[int]]],
    usages: Sequence[Usage],
    held: list[Segment],
    skipped: Sequence[int] | None = None,
) -> Scores:
    """Feed `runs[i]` after `leaves[i]`; row t gives the log-probability of token t of each of `targets[i]`, the first
    `skipped[i]` rows left out.

    The runs' segments are attached to the tree and appended to `held`, one reference each.
    """
    scores: Scores = [[[] for _ in group] for group in targets]
    skipped = skipped or [0] * len(runs)
    for part in prefill_passes(engine, leaves, runs, usages, held, scored=skipped):
        for i, start, logits in part:
            logprobs, first = logits.log_softmax(-1), start - skipped[i]
            for found, target in zip(scores[i], targets[i], strict=True):
                tokens = target[first : first + len(logprobs)]
                found += [float(logprobs[row, token]) for row, token in enumerate(tokens)]
    for usage, run in zip(usages, runs, strict=True):
        usage.verifier_tokens += len(run)
    return scores
