"""New tokens computed in chunks: prompts, given tokens, KV that was evicted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ttc.attention.plan import Entry, ExtendPlan, Piece, depth_first, shared_entries
from ttc.memory.kv import KV
from ttc.protocols import Purpose
from ttc.tree.branch import Branch
from ttc.tree.tree import Segment, worth_sharing
from ttc.usage import Usage

if TYPE_CHECKING:
    from ttc.engine import Engine


@torch.inference_mode()
def feed(engine: Engine, branches: Sequence[Branch], targets: Sequence[Sequence[int]], purpose: Purpose) -> None:
    """Bring the KV of each branch up to all of its target tokens but the last.

    A prefix that stands in the tree already is shared; of new prefixes that several targets share, the first
    computes and the others wait a round.
    """
    waiting, shared = list(zip(branches, targets, strict=True)), engine.sharing.rule != "none"
    while waiting:
        chosen: list[tuple[Branch, list[int]]] = []
        deferred = []
        for branch, target in waiting:
            leaf = before = engine.leaf(branch)
            if shared:
                leaf = engine.move(branch, engine.tree.descend(before, target[before.end : -1]))
            branch.usage.shared_tokens += leaf.end - before.end
            missing = list(target[leaf.end : -1])
            if shared and any(b.leaf is leaf and worth_sharing(m, missing) for b, m in chosen):
                deferred.append((branch, target))
            elif missing:
                chosen.append((branch, missing))
        with engine.metered([branch for branch, _ in chosen]):
            _prefill(engine, chosen, purpose)
        waiting = deferred


def _prefill(engine: Engine, work: Sequence[tuple[Branch, list[int]]], purpose: Purpose) -> None:
    held: list[Segment] = []
    leaves, runs = [engine.leaf(branch) for branch, _ in work], [missing for _, missing in work]
    try:
        for _ in prefill_passes(engine, leaves, runs, [branch.usage for branch, _ in work], held):
            pass
        for (branch, missing), segment in zip(work, held, strict=True):
            engine.move(branch, segment)
            if purpose == "verifier":
                branch.usage.verifier_tokens += len(missing)
            elif purpose == "recompute":
                branch.usage.recomputed_tokens += len(missing)
            else:
                branch.usage.prompt_tokens += len(missing)
    finally:
        for segment in held:
            engine.tree.drop(segment)


def prefill_passes(
    engine: Engine,
    leaves: Sequence[Segment],
    runs: Sequence[list[int]],
    usages: Sequence[Usage],
    held: list[Segment],
    scored: Sequence[int] | None = None,
    *,
    limit: int | None = None,
    forward: Callable[[Sequence[int], ExtendPlan], None] | None = None,
) -> Iterator[list[tuple[int, int, Tensor]]]:
    """Compute the KV of `runs[i]` after `leaves[i]`, at most `limit` (else `prefill_tokens`) rows a pass.

    The new segments are appended to `held` at once, with one reference each. scored[i]: the first token of run i
    whose logits are wanted, None for no logits. Yields per pass (run, first token, logits (tokens, vocab)) of each
    run that it computed wanted ones of.
    forward: takes each pass's tokens and plan instead of the model; nothing is yielded then.
    """
    engine.residency.require(sum(map(len, runs)))
    paths = [leaf.path() for leaf in leaves]
    order = depth_first(paths)
    needed = {segment.storage for path in paths for segment in path}
    growing = [_Growing(engine, leaf, run, needed, held) for leaf, run in zip(leaves, runs, strict=True)]
    while any(run.left for run in growing):
        rows: list[int] = []
        positions: list[int] = []
        taken: list[int] = []
        pieces: list[Piece] = []
        own: list[Entry] = []
        firsts: list[int] = []
        for i in order:
            run = growing[i]
            part = run.left[: (limit or engine.prefill_tokens) - len(rows)]
            if part:
                span = slice(len(rows), len(rows) + len(part))
                own += run.entries(span)
                taken.append(i)
                firsts.append(run.done)
                positions += range(leaves[i].end + run.done, leaves[i].end + run.done + len(part))
                pieces.append(Piece(span, run.grow(len(part))))
                rows += part
        entries = shared_entries([paths[i] for i in taken], [p.rows.stop - p.rows.start for p in pieces]) + own
        stream = engine.residency.stream(entries, positions, None, repeat=False)
        plan = ExtendPlan(entries, positions, pieces, engine.memory, stream)
        wanted: list[tuple[int, int, range]] = []
        for i, first, piece in zip(taken, firsts, pieces, strict=True):
            skip = len(rows) if scored is None else max(0, scored[i] - first)
            if left := range(piece.rows.start + skip, piece.rows.stop):
                wanted.append((i, first + skip, left))
        keep = [row for _, _, left in wanted for row in left]
        try:
            logits = forward(rows, plan) if forward else engine.forward(rows, plan, keep or [len(rows) - 1])
        finally:
            plan.close()
        engine.count_pass(usages[i] for i in taken)
        if logits is None or not keep:
            yield []
        else:
            parts = logits.split([len(left) for _, _, left in wanted])
            yield [(i, first, part) for (i, first, _), part in zip(wanted, parts, strict=True)]


class _Growing:
    """A run of new tokens on its way into the tree, block by block; its end is in `held`, with one reference."""

    def __init__(self, engine: Engine, leaf: Segment, tokens: list[int], needed: set[KV], held: list[Segment]):
        self.engine, self.tokens, self.needed = engine, tokens, needed
        self.held, self.index = held, len(held)
        held.append(engine.tree.hold(leaf))
        self.blocks: list[Segment] = []
        self.done = 0
        self.filled = 0  # tokens of the last block that are there

    @property
    def left(self) -> list[int]:
        return self.tokens[self.done :]

    def entries(self, rows: slice) -> list[Entry]:
        """What earlier passes left: attended in full by the rows of the next one."""
        lengths = [len(block.tokens) for block in self.blocks[:-1]] + [self.filled] * bool(self.blocks)
        return [Entry(b.storage, b.start, n, rows) for b, n in zip(self.blocks, lengths, strict=True)]

    def grow(self, count: int) -> list[tuple[KV, int, int]]:
        """Make place for the next `count` tokens: (KV, first token to fill, how many), in order."""
        places, size = [], self.engine.residency.block_tokens or len(self.tokens)
        while count:
            if not self.blocks or self.filled == len(self.blocks[-1].tokens):
                tokens = self.left[:size]
                kv = self.engine.residency.allocate(len(tokens), self.needed)
                self.needed.add(kv)
                tree, above = self.engine.tree, self.held[self.index]
                self.held[self.index] = tree.hold(tree.attach(above, tokens, kv))
                tree.drop(above)
                self.blocks.append(self.held[self.index])
                self.filled = 0
            block = self.blocks[-1]
            taken = min(count, len(block.tokens) - self.filled)
            places.append((block.storage, self.filled, taken))
            self.filled += taken
            self.done += taken
            count -= taken
        return places
