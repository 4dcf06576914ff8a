"""Log-probabilities of given continuations, each shared part computed once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttc.passes.chunks import Chunk, Cutter
from ttc.passes.runtime import Runtime
from ttc.passes.segment_writer import NewRun
from ttc.task import Passes
from ttc.tree.branch import Branch
from ttc.tree.segment import Segment, common_prefix

Logprobs = list[list[list[float]]]
LogprobPairs = list[list[list[tuple[float, float]]]]
"""The log-probability of each token, and of the likeliest one in its place."""


@torch.inference_mode()
def score(
    runtime: Runtime,
    branches: Sequence[Branch],
    given: Sequence[list[int]],
    continuations: Sequence[Sequence[list[int]]],
) -> Passes[tuple[Logprobs, Logprobs]]:
    """The log-probabilities of `Engine.score`, and of the likeliest token in each place. Two
    rounds: what all continuations of a branch share, then what is left of each. A branch that is
    released between two passes gets no more scores."""
    shared = [_shared(group) for group in continuations]
    heads = []
    for branch, more, group, n in zip(branches, given, continuations, shared, strict=True):
        tokens = [branch.tokens[-1], *more, *group[0][:n]]
        heads.append(NewRun(branch.leaf, tokens, branch.usage, runtime.opening(branch, len(more))))
    longer = [
        (i, j)
        for i, group in enumerate(continuations)
        for j, continuation in enumerate(group)
        if len(continuation) > shared[i] + 1
    ]
    rests = {(i, j): continuations[i][j][shared[i] : -1] for i, j in longer}
    held: list[Segment] = []
    try:
        both_rounds = sum(len(head.tokens) for head in heads) + sum(map(len, rests.values()))
        runtime.residency.require(both_rounds)  # before either of them
        first_targets = [
            [c[: n + 1] for c in group] for group, n in zip(continuations, shared, strict=True)
        ]
        skipped = [len(more) for more in given]
        pairs = yield from _score_runs(runtime, branches, heads, first_targets, held, skipped)
        longer = [(i, j) for i, j in longer if not branches[i].released]
        runs = [NewRun(held[i], rests[i, j], heads[i].usage, heads[i].opening) for i, j in longer]
        last_targets = [[continuations[i][j][shared[i] + 1 :]] for i, j in longer]
        of = [branches[i] for i, _ in longer]
        last_pairs = yield from _score_runs(runtime, of, runs, last_targets, held, [0] * len(runs))
        for (i, j), (rest_pairs,) in zip(longer, last_pairs, strict=True):
            pairs[i][j] += rest_pairs
    finally:
        for segment in reversed(held):
            runtime.tree.drop(segment)
    return _column(pairs, 0), _column(pairs, 1)


def _column(pairs: LogprobPairs, place: int) -> Logprobs:
    return [[[pair[place] for pair in row] for row in group] for group in pairs]


def _shared(group: Sequence[list[int]]) -> int:
    first = group[0]
    return min(len(first) - 1, *(common_prefix(first, c[:-1]) for c in group))


def _score_runs(
    runtime: Runtime,
    branches: Sequence[Branch],
    runs: Sequence[NewRun],
    targets: Sequence[Sequence[list[int]]],
    held: list[Segment],
    skipped: Sequence[int],
) -> Passes[LogprobPairs]:
    """Feed `runs[i]`, of `branches[i]`; row t gives the log-probability of token t of each of
    `targets[i]`, the first `skipped[i]` rows left out.

    The runs' segments are attached to the tree and appended to `held`, one reference each.
    """
    pairs: LogprobPairs = [[[] for _ in group] for group in targets]
    cutter: Cutter | None = None
    try:
        with runtime.metered(branches):
            cutter = Cutter(runtime, runs, held)
        while cutter.left:
            with runtime.metered(branches), cutter.chunk(runtime.prefill_tokens) as chunk:
                _score_chunk(runtime, chunk, targets, skipped, pairs)
            for i, tokens in chunk.counts.items():
                runs[i].usage.verifier_tokens += tokens
            yield
            cutter.leave_out_released(branches)
    finally:
        if cutter is not None:
            cutter.close()
    return pairs


def _score_chunk(
    runtime: Runtime,
    chunk: Chunk,
    targets: Sequence[Sequence[list[int]]],
    skipped: Sequence[int],
    pairs: LogprobPairs,
) -> None:
    scored = _scored_rows(chunk, skipped)
    keep = [row for _, _, rows in scored for row in rows]
    logits = runtime.runner.forward(chunk.tokens, chunk.plan, keep or [len(chunk.tokens) - 1])
    parts = logits.split([len(rows) for _, _, rows in scored]) if scored else ()
    for (i, first, _), part in zip(scored, parts, strict=True):
        logprobs = part.log_softmax(-1, dtype=torch.promote_types(part.dtype, torch.float32))
        best = logprobs.amax(-1).tolist()
        for scores, target in zip(pairs[i], targets[i], strict=True):
            tokens = target[first : first + len(logprobs)]
            scores += [(float(logprobs[row, token]), best[row]) for row, token in enumerate(tokens)]


def _scored_rows(chunk: Chunk, skipped: Sequence[int]) -> list[tuple[int, int, range]]:
    """(run, its first scored token's number, the rows of the pass that score)."""
    scored = []
    for i, first, piece in zip(chunk.runs, chunk.firsts, chunk.plan.pieces, strict=True):
        skip = max(0, skipped[i] - first)
        if rows := range(piece.rows.start + skip, piece.rows.stop):
            scored.append((i, first + skip - skipped[i], rows))
    return scored
