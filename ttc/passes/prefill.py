"""New tokens computed: prompts, given tokens, KV that was evicted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ttc.backend import Purpose
from ttc.passes.chunks import Chunk, Cutter
from ttc.passes.runtime import Runtime
from ttc.passes.segment_writer import NewRun
from ttc.task import Passes
from ttc.tree.branch import Branch
from ttc.tree.segment import Segment, common_prefix, worth_sharing
from ttc.usage import Usage


@dataclass(frozen=True)
class Outputs:
    """The outputs of a model (logits, or what another head gives) at places of some sequences.

    places[i]: places in sequence i, counted from its first token. computed[i]: the output (width,)
    at each of them that was computed; what stands in the tree already is missing.
    """

    places: list[set[int]]
    computed: list[dict[int, Tensor]]

    @classmethod
    def at(cls, places: Iterable[Iterable[int]]) -> Outputs:
        sets = [set(numbers) for numbers in places]
        return cls(sets, [{} for _ in sets])

    def of(self, indices: Sequence[int]) -> Outputs:
        """The same for some of the sequences."""
        return Outputs([self.places[i] for i in indices], [self.computed[i] for i in indices])

    def rows(self, chunk: Chunk, starts: Sequence[int]) -> list[tuple[int, int, int]]:
        """(sequence, place, row of the pass) of what a chunk computes. starts[i]: the place of run
        i's first token."""
        rows = []
        for run, first, piece in zip(chunk.runs, chunk.firsts, chunk.plan.pieces, strict=True):
            start = starts[run] + first - piece.rows.start  # the place of the pass's row 0
            places = range(start + piece.rows.start, start + piece.rows.stop)
            rows += [
                (run, place, place - start)
                for place in sorted(self.places[run].intersection(places))
            ]
        return rows


@torch.inference_mode()
def prefill(
    runtime: Runtime,
    branches: Sequence[Branch],
    targets: Sequence[Sequence[int]],
    purpose: Purpose,
    outputs: Outputs | None = None,
) -> Passes[None]:
    """Bring the KV of each branch up to all of its target tokens but the last, pass by pass.

    Between two passes others may use the tree. A branch that is released there is left out from
    then on. A prefix that stands in the tree already is shared; of new prefixes that several
    targets share, the first computes and the others wait a round. outputs: takes what the model
    gives at chosen places of the targets.
    """
    outputs = outputs or Outputs.at([()] * len(branches))
    waiting = [
        Target(index, branch, target, runtime.opening(branch, len(target) - len(branch.tokens)))
        for index, (branch, target) in enumerate(zip(branches, targets, strict=True))
    ]
    while waiting:
        chosen, waiting = _round(
            runtime, [target for target in waiting if not target.branch.released]
        )
        yield from _compute(
            runtime, chosen, purpose, outputs.of([target.index for target in chosen])
        )
        if waiting:
            yield


@dataclass
class Target:
    """A branch that is to have the KV of all of `tokens` but the last.

    index: its number in the call. opening: see `Segment`.
    missing: the tokens whose KV the tree does not have.
    cuts: places in `missing` at which other branches go on.
    """

    index: int
    branch: Branch
    tokens: Sequence[int]
    opening: int
    missing: list[int] = field(default_factory=list)
    cuts: set[int] = field(default_factory=set)

    def waits_for(self, other: Target) -> bool:
        same_place = other.branch.leaf is self.branch.leaf and other.opening == self.opening
        return same_place and worth_sharing(other.missing, self.missing)


def _round(runtime: Runtime, waiting: Sequence[Target]) -> tuple[list[Target], list[Target]]:
    """The targets that are computed now, and those that wait for a prefix of these."""
    tree = runtime.tree
    shared = runtime.sharing.rule != "none"
    chosen: list[Target] = []
    deferred: list[Target] = []
    for target in waiting:
        branch = target.branch
        before = branch.leaf
        known = target.tokens[before.end : -1] if shared else []
        leaf = tree.move(branch, tree.descend(before, known, target.opening))
        branch.usage.shared_tokens += max(0, leaf.end - before.end)
        target.missing = list(target.tokens[leaf.end : -1])
        first = (
            next((other for other in chosen if target.waits_for(other)), None) if shared else None
        )
        if first is not None:
            first.cuts.add(common_prefix(first.missing, target.missing))
            deferred.append(target)
        elif target.missing:
            chosen.append(target)
    return chosen, deferred


def _compute(
    runtime: Runtime, targets: Sequence[Target], purpose: Purpose, outputs: Outputs
) -> Passes[None]:
    held: list[Segment] = []
    runs = [NewRun(t.branch.leaf, t.missing, t.branch.usage, t.opening, t.cuts) for t in targets]
    starts = [run.leaf.end for run in runs]
    branches = [target.branch for target in targets]
    cutter: Cutter | None = None
    try:
        with runtime.metered(branches):
            cutter = Cutter(runtime, runs, held)
        while cutter.left:
            with runtime.metered(branches), cutter.chunk(runtime.prefill_tokens) as chunk:
                _run(runtime, chunk, outputs, starts)
            for i, tokens in chunk.counts.items():
                _count(runs[i].usage, tokens, purpose)
            if cutter.left:
                yield
            cutter.leave_out_released(branches)
        for branch, segment in zip(branches, held, strict=True):
            if not branch.released:
                runtime.tree.move(branch, segment)
    finally:
        if cutter is not None:
            cutter.close()
        for segment in held:
            runtime.tree.drop(segment)


def _run(runtime: Runtime, chunk: Chunk, outputs: Outputs, starts: Sequence[int]) -> None:
    rows = outputs.rows(chunk, starts)
    kept = [row for _, _, row in rows] or [len(chunk.tokens) - 1]
    given = runtime.runner.forward(chunk.tokens, chunk.plan, kept)
    for (number, place, _), output in zip(rows, given, strict=False):
        outputs.computed[number][place] = output


def _count(usage: Usage, tokens: int, purpose: Purpose) -> None:
    if purpose == "verifier":
        usage.verifier_tokens += tokens
    elif purpose == "recompute":
        usage.recomputed_tokens += tokens
    else:
        usage.prompt_tokens += tokens
