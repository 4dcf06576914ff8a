"""Log-probabilities of given continuations, each shared part computed once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ttc.branch import Branch
from ttc.passes.new_tokens import Target, compute
from ttc.passes.runtime import Runtime
from ttc.task import Passes
from ttc.tree.segment import common_prefix
from ttc.tree.tree import Path

Logprobs = list[list[list[float]]]
LogprobPairs = list[list[list[tuple[float, float]]]]
"""The log-probability of each token, and of the likeliest one in its place."""


def score(
    runtime: Runtime,
    branches: Sequence[Branch],
    contexts: Sequence[list[int]],
    continuations: Sequence[Sequence[list[int]]],
) -> Passes[tuple[Logprobs, Logprobs]]:
    """The log-probabilities of `Engine.score`, and of the likeliest token in each place. What all
    continuations of a branch share is computed once, then what is left of each."""
    tree = runtime.tree
    pairs: LogprobPairs = [[[] for _ in group] for group in continuations]
    scored: dict[Target, list[tuple[list[tuple[float, float]], Sequence[int]]]] = {}
    rests: list[Target] = []
    try:
        for branch, more, group, rows in zip(branches, contexts, continuations, pairs, strict=True):
            if branch.released:
                continue
            prefix = [*branch.tokens, *more]
            n = _shared(group)
            whole = [*prefix, *group[0][:n]]
            head = Target(branch, whole, Path(tree.hold(branch.leaf)), shared=False)
            head.opening = runtime.opening(branch, len(more))
            head.kept = any(len(continuation) > n + 1 for continuation in group)
            head.output_places.update(range(len(prefix) - 1, len(whole)))
            scored[head] = [
                (row, [*prefix, *continuation[: n + 1]])
                for row, continuation in zip(rows, group, strict=True)
            ]
            for row, continuation in zip(rows, group, strict=True):
                if len(continuation) > n + 1:
                    longer = [*prefix, *continuation]
                    rest = Target(branch, longer[:-1], None, shared=False, after=head)
                    rest.opening, rest.kept = head.opening, False
                    rest.output_places.update(range(len(whole), len(longer) - 1))
                    scored[rest] = [(row, longer)]
                    rests.append(rest)
        heads = [target for target in scored if target.after is None]

        def take(target: Target, places: Sequence[int], logits: Tensor) -> None:
            _score(logits, places, scored[target])

        yield from compute(runtime, [*heads, *rests], "verifier", take)
        yield  # a verifier may score again, and others come between
    finally:
        for target in reversed(scored):
            if target.holder is not None:
                tree.drop(target.holder.leaf)
    return _column(pairs, 0), _column(pairs, 1)


def _score(
    logits: Tensor,
    places: Sequence[int],
    texts: Sequence[tuple[list[tuple[float, float]], Sequence[int]]],
) -> None:
    """Append to the scores of each text what the logits (places, vocab) say of what follows."""
    logprobs = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    best = logprobs.amax(-1).tolist()
    for scores, text in texts:
        tokens = [text[place + 1] for place in places]
        scores += [(float(logprobs[row, token]), best[row]) for row, token in enumerate(tokens)]


def _column(pairs: LogprobPairs, place: int) -> Logprobs:
    return [[[pair[place] for pair in row] for row in group] for group in pairs]


def _shared(group: Sequence[list[int]]) -> int:
    first = group[0]
    return min(len(first) - 1, *(common_prefix(first, c[:-1]) for c in group))
