"""New tokens computed: prompts, given tokens, KV that was evicted."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttc.passes.chunks import chunks
from ttc.passes.outputs import Outputs
from ttc.passes.runtime import Runtime
from ttc.protocols import Purpose
from ttc.tree.branch import Branch
from ttc.tree.segment import Segment, common_prefix, worth_sharing


@torch.inference_mode()
def prefill(
    runtime: Runtime,
    branches: Sequence[Branch],
    targets: Sequence[Sequence[int]],
    purpose: Purpose,
    outputs: Outputs | None = None,
) -> None:
    """Bring the KV of each branch up to all of its target tokens but the last.

    A prefix that stands in the tree already is shared; of new prefixes that several targets share, the first
    computes and the others wait a round. outputs: takes what the model gives at chosen places of the targets.
    """
    tree, outputs = runtime.tree, outputs or Outputs.at([()] * len(branches))
    openings = [runtime.opening(b, len(t) - len(b.tokens)) for b, t in zip(branches, targets, strict=True)]
    waiting, shared = list(enumerate(zip(branches, targets, strict=True))), runtime.sharing.rule != "none"
    while waiting:
        chosen: list[tuple[Branch, list[int]]] = []
        cuts: list[set[int]] = []
        indices: list[int] = []
        deferred = []
        for index, (branch, target) in waiting:
            before = branch.leaf
            run = target[before.end : -1] if shared else []
            leaf = tree.move(branch, tree.descend(before, run, openings[index]))
            branch.usage.shared_tokens += max(0, leaf.end - before.end)
            missing = list(target[leaf.end : -1])
            alike = (
                n
                for n, (b, m) in enumerate(chosen)
                if b.leaf is leaf and openings[indices[n]] == openings[index] and worth_sharing(m, missing)
            )
            first = next(alike, None) if shared else None
            if first is not None:
                cuts[first].add(common_prefix(chosen[first][1], missing))
                deferred.append((index, (branch, target)))
            elif missing:
                chosen.append((branch, missing))
                cuts.append(set())
                indices.append(index)
        with runtime.metered([branch for branch, _ in chosen]):
            _compute(runtime, chosen, purpose, outputs.of(indices), cuts, [openings[i] for i in indices])
        waiting = deferred


def _compute(
    runtime: Runtime,
    work: Sequence[tuple[Branch, list[int]]],
    purpose: Purpose,
    outputs: Outputs,
    cuts: Sequence[set[int]],
    openings: Sequence[int],
) -> None:
    held: list[Segment] = []
    leaves, runs = [branch.leaf for branch, _ in work], [missing for _, missing in work]
    try:
        usages = [branch.usage for branch, _ in work]
        for chunk in chunks(runtime, leaves, runs, usages, held, cuts=cuts, openings=openings):
            wanted = outputs.rows(chunk, [leaf.end for leaf in leaves])
            with chunk.plan:
                kept = [row for _, _, row in wanted] or [len(chunk.tokens) - 1]
                given = runtime.runner.forward(chunk.tokens, chunk.plan, kept)
            for (run, place, _), output in zip(wanted, given, strict=False):
                outputs.found[run][place] = output
        for (branch, missing), segment in zip(work, held, strict=True):
            runtime.tree.move(branch, segment)
            if purpose == "verifier":
                branch.usage.verifier_tokens += len(missing)
            elif purpose == "recompute":
                branch.usage.recomputed_tokens += len(missing)
            else:
                branch.usage.prompt_tokens += len(missing)
    finally:
        for segment in held:
            runtime.tree.drop(segment)
