"""Log-probabilities of given continuations, each shared part computed once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttc.errors import InvalidInput
from ttc.model.limits import ModelLimits
from ttc.passes.chunks import chunks
from ttc.passes.runtime import Runtime
from ttc.tree.branch import Branch
from ttc.tree.segment import Segment, common_prefix
from ttc.usage import Usage

Scores = list[list[list[float]]]
Pairs = list[list[list[tuple[float, float]]]]
"""The log-probability of each token, and of the likeliest one in its place."""


def score(
    runtime: Runtime,
    branches: Sequence[Branch],
    given: Sequence[list[int]],
    continuations: Sequence[Sequence[list[int]]],
    likeliest: Scores | None = None,
) -> Scores:
    """See `Engine.score`. Two passes: what all continuations of a branch share, then what is left of each."""
    leaves = [b.leaf for b in branches]
    usages = [b.usage for b in branches]
    shared = [_shared(group) for group in continuations]
    heads = [
        [b.tokens[-1], *more, *group[0][:n]]
        for b, more, group, n in zip(branches, given, continuations, shared, strict=True)
    ]
    openings = [runtime.opening(b, len(more)) for b, more in zip(branches, given, strict=True)]
    held: list[Segment] = []
    try:
        left = [(i, j) for i, group in enumerate(continuations) for j, c in enumerate(group) if len(c) > shared[i] + 1]
        runs = [continuations[i][j][shared[i] : -1] for i, j in left]
        runtime.residency.require(sum(map(len, heads)) + sum(map(len, runs)))  # both passes, before either
        targets = [[c[: n + 1] for c in group] for group, n in zip(continuations, shared, strict=True)]
        pairs = _score_runs(runtime, leaves, heads, targets, usages, openings, held, [len(more) for more in given])
        targets = [[continuations[i][j][shared[i] + 1 :]] for i, j in left]
        places = [i for i, _ in left]
        above, meters = [held[i] for i in places], [usages[i] for i in places]
        rest = _score_runs(runtime, above, runs, targets, meters, [openings[i] for i in places], held)
        for (i, j), (tail,) in zip(left, rest, strict=True):
            pairs[i][j] += tail
    finally:
        for segment in reversed(held):
            runtime.tree.drop(segment)
    if likeliest is not None:
        likeliest += [[[best for _, best in row] for row in group] for group in pairs]
    return [[[own for own, _ in row] for row in group] for group in pairs]


def checked_continuations(
    limits: ModelLimits,
    branches: Sequence[Branch],
    continuations: Sequence[Sequence[Sequence[int]]],
    given: Sequence[Sequence[int]] | None,
    singles: bool,
) -> tuple[list[list[int]], list[list[list[int]]]]:
    """The arguments of `Engine.score` as lists: what is given, and the continuations. singles: refuse longer ones."""
    if len(continuations) != len(branches):
        raise InvalidInput(f"{len(branches)} branches came with {len(continuations)} lists of continuations")
    if given is not None and len(given) != len(branches):
        raise InvalidInput(f"{len(branches)} branches came with {len(given)} lists of given tokens; give one each")
    checked = limits.checked
    between = [checked(g, "list of given tokens") if g else [] for g in given or [[]] * len(branches)]
    wanted = [[checked(c, "continuation") for c in group] for group in continuations]
    for branch, group, tokens in zip(branches, wanted, between, strict=True):
        if not group:
            raise InvalidInput("a branch came with no continuation to score")
        longest = max(map(len, group))
        limits.check_context(len(branch.tokens) + len(tokens) + longest - 1)  # the last token is not fed
        if singles and longest > 1:
            raise InvalidInput(
                f"a continuation has {longest} tokens; with an early exit only single tokens can be scored, so put "
                "what comes before them into `given`"
            )
    return between, wanted


def _shared(group: Sequence[list[int]]) -> int:
    """How many tokens all continuations share, the last token of the shortest left out."""
    first = group[0]
    return min(len(first) - 1, *(common_prefix(first, c[:-1]) for c in group))


def _score_runs(
    runtime: Runtime,
    leaves: Sequence[Segment],
    runs: Sequence[list[int]],
    targets: Sequence[Sequence[list[int]]],
    usages: Sequence[Usage],
    openings: Sequence[int],
    held: list[Segment],
    skipped: Sequence[int] | None = None,
) -> Pairs:
    """Feed `runs[i]` after `leaves[i]`; row t gives the log-probability of token t of each of `targets[i]`, the first
    `skipped[i]` rows left out.

    The runs' segments are attached to the tree and appended to `held`, one reference each.
    """
    pairs: Pairs = [[[] for _ in group] for group in targets]
    skipped = skipped or [0] * len(runs)
    for chunk in chunks(runtime, leaves, runs, usages, held, openings=openings):
        wanted: list[tuple[int, int, range]] = []  # (run, the first of its targets' tokens, rows)
        for i, first, piece in zip(chunk.runs, chunk.firsts, chunk.plan.pieces, strict=True):
            skip = max(0, skipped[i] - first)
            if left := range(piece.rows.start + skip, piece.rows.stop):
                wanted.append((i, first + skip - skipped[i], left))
        keep = [row for _, _, left in wanted for row in left]
        with chunk.plan:
            logits = runtime.runner.forward(chunk.tokens, chunk.plan, keep or [len(chunk.tokens) - 1])
        parts = logits.split([len(left) for _, _, left in wanted]) if wanted else ()
        for (i, first, _), part in zip(wanted, parts, strict=True):
            logprobs = part.log_softmax(-1, dtype=torch.promote_types(part.dtype, torch.float32))
            best = logprobs.amax(-1).tolist()
            for found, target in zip(pairs[i], targets[i], strict=True):
                tokens = target[first : first + len(logprobs)]
                found += [(float(logprobs[row, token]), best[row]) for row, token in enumerate(tokens)]
    for usage, run in zip(usages, runs, strict=True):
        usage.verifier_tokens += len(run)
    return pairs
