"""New tokens computed: prompts, given tokens, KV that was evicted."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttc.passes.chunks import chunks
from ttc.passes.runtime import Runtime
from ttc.protocols import Purpose
from ttc.tree.branch import Branch
from ttc.tree.segment import Segment, worth_sharing


@torch.inference_mode()
def prefill(runtime: Runtime, branches: Sequence[Branch], targets: Sequence[Sequence[int]], purpose: Purpose) -> None:
    """Bring the KV of each branch up to all of its target tokens but the last.

    A prefix that stands in the tree already is shared; of new prefixes that several targets share, the first
    computes and the others wait a round.
    """
    tree = runtime.tree
    waiting, shared = list(zip(branches, targets, strict=True)), runtime.sharing.rule != "none"
    while waiting:
        chosen: list[tuple[Branch, list[int]]] = []
        deferred = []
        for branch, target in waiting:
            leaf = before = branch.leaf
            if shared:
                leaf = tree.move(branch, tree.descend(before, target[before.end : -1]))
            branch.usage.shared_tokens += leaf.end - before.end
            missing = list(target[leaf.end : -1])
            if shared and any(b.leaf is leaf and worth_sharing(m, missing) for b, m in chosen):
                deferred.append((branch, target))
            elif missing:
                chosen.append((branch, missing))
        with runtime.metered([branch for branch, _ in chosen]):
            _compute(runtime, chosen, purpose)
        waiting = deferred


def _compute(runtime: Runtime, work: Sequence[tuple[Branch, list[int]]], purpose: Purpose) -> None:
    held: list[Segment] = []
    leaves, runs = [branch.leaf for branch, _ in work], [missing for _, missing in work]
    try:
        for chunk in chunks(runtime, leaves, runs, [branch.usage for branch, _ in work], held):
            with chunk.plan:
                runtime.runner.forward(chunk.tokens, chunk.plan, [len(chunk.tokens) - 1])
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
