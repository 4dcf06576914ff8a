"""ASKS (RKSC, section 2.2): variants of a prompt that are close enough to it stand on its KV.
Approximate."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ttc.attention.plan import Plan
from ttc.branch import Branch
from ttc.errors import InvalidInput, UnsupportedModel
from ttc.model.running.lens import rows_of
from ttc.passes.new_tokens import Packed, batches, one_pass
from ttc.passes.runtime import Runtime
from ttc.passes.shrinking import ShrinkingPass
from ttc.tree.branch import Substitution
from ttc.tree.segment import common_prefix
from ttc.tree.sharing import Pooling
from ttc.tree.tree import Path
from ttc.usage import count_pass

CONTEXT = 8
"""Tokens on each side of what differs that are compared with it."""


@torch.inference_mode()
def share_similar(runtime: Runtime, root: Branch, children: Sequence[Branch]) -> None:
    """Put the root's tokens in place of those of `children`, which stand on the trunk, where they
    are similar. All variants run through the first layers, and those that are refused run on.
    Raises UnsupportedModel for a model with recurrent layers.
    """
    if runtime.runner.recurrent is not None:
        name = type(runtime.runner.model).__name__
        raise UnsupportedModel(
            f"{name} has recurrent layers, which similar prompts cannot leave; use sharing=exact"
        )
    first: dict[tuple[int, ...], Branch] = {}
    for child in children:
        first.setdefault(tuple(child.tokens), child)
    others = [
        child
        for child in first.values()  # what stands under the root already is shared exactly
        if common_prefix(child.tokens[:-1], root.tokens[:-1]) < len(child.tokens) - 1
    ]
    if runtime.sharing.same_numbers:
        numbers = _numbers(runtime, root)
        others = [child for child in others if _numbers(runtime, child) == numbers]
    for child, similarity in _probe(runtime, root, others):
        same = [c for c in children if c.tokens == child.tokens]
        child.usage.substituted_tokens += len(same) * (len(child.tokens) - 1 - child.leaf.end)
        for c in same:
            c.substituted = Substitution(c.tokens, similarity)
            c.tokens = root.tokens[:]
            runtime.tree.move(c, root.leaf)


def differing(a: Sequence[int], b: Sequence[int]) -> tuple[slice, slice]:
    """The tokens of each from the first difference to the last; none where one begins the other."""
    start = common_prefix(a, b)
    end = common_prefix(a[start:][::-1], b[start:][::-1])
    return slice(start, len(a) - end), slice(start, len(b) - end)


def compared(root: Sequence[int], variant: Sequence[int], pooling: Pooling) -> tuple[slice, slice]:
    """The tokens of each prompt whose states are compared: the last, or what differs with
    `CONTEXT`."""
    if pooling == "last":
        return slice(len(root) - 1, len(root)), slice(len(variant) - 1, len(variant))
    one, other = (
        slice(max(0, changed.start - CONTEXT), min(len(prompt), changed.stop + CONTEXT))
        for changed, prompt in zip(differing(root, variant), (root, variant), strict=True)
    )
    return one, other


def layer_weights(layers: int, total: int, alpha: float) -> list[float]:
    """w_1 to w_layers of RKSC's Eq. 2, proportional to exp(alpha l / total), with a sum of 1."""
    raw = [math.exp(alpha * depth / total) for depth in range(1, layers + 1)]
    return [w / sum(raw) for w in raw]


def similarity(a: Tensor, b: Tensor, pooling: Pooling) -> float:
    """How alike two prompts' states in one layer are, (tokens, width) each, at most 1. See
    `Sharing`."""
    a, b = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (a, b))
    if pooling == "matched":
        centre = b.mean(0)  # what all states have in common would make any two alike
        cosines = normalize(a - centre, dim=-1) @ normalize(b - centre, dim=-1).T
        return float(cosines.amax(1).mean() + cosines.amax(0).mean()) / 2
    one, other = (x.mean(0) if pooling == "mean" else x[-1] for x in (a, b))
    return float(torch.cosine_similarity(one, other, dim=0))


def _numbers(runtime: Runtime, branch: Branch) -> Counter[str]:
    return Counter(re.findall(r"-?\d+(?:[.,]\d+)*", runtime.decode(branch.tokens)))


@dataclass(frozen=True)
class _Window:
    """The tokens that are compared, of the root's prompt and of a variant's, whose rows begin at
    `run`: before that it has the root's KV."""

    root: slice
    variant: slice
    run: int

    def similarity(self, rows: Tensor, root: Tensor, offset: int, pooling: Pooling) -> float:
        """rows: the variant's states. root: the root's, from its token `offset` on."""
        start = self.variant.start
        new = rows[max(0, start - self.run) : self.variant.stop - self.run]
        shared = root[:0]
        if start < self.run:
            shared = root[start - offset : max(0, self.run - offset)]
        of_root = root[self.root.start - offset : self.root.stop - offset]
        return similarity(torch.cat([shared, new]), of_root, pooling)


def _probe(runtime: Runtime, root: Branch, others: Sequence[Branch]) -> list[tuple[Branch, float]]:
    """Those of `others` that are similar to the root, and how much. What else stands in the tree
    decides nothing."""
    sharing = runtime.sharing
    layers = len(runtime.lens.layers)
    if sharing.probe_layers >= layers:
        raise InvalidInput(
            f"sharing.probe_layers={sharing.probe_layers} leaves none of {layers} layers to save; "
            "use less"
        )
    if not others or len(root.tokens) < 2:
        return []
    windows: list[_Window] = []
    # places of those that more stands in the tree of: they leave after the probe
    longer = set[int]()
    for place, child in enumerate(others):
        common = common_prefix(root.tokens, child.tokens[:-1])
        leaf = runtime.tree.find(runtime.tree.trunk, child.tokens[:common])
        runtime.tree.move(child, leaf)
        child.usage.shared_tokens += leaf.end
        if runtime.tree.find(leaf, child.tokens[leaf.end : -1]) is not leaf:
            longer.add(place)
        # the last token is not computed in a prefill, so it is not compared either
        slices = compared(root.tokens[:-1], child.tokens[:-1], sharing.pooling)
        windows.append(_Window(*slices, leaf.end))
    offset, reference = _reference(runtime, root, windows)
    runs = [child.tokens[child.leaf.end : -1] for child in others]
    similar: list[tuple[Branch, float]] = []
    for chosen in batches(runtime, others, runs, together=False):
        also = {n for n, i in enumerate(chosen) if i in longer}
        of = [others[i] for i in chosen]
        with one_pass(runtime, of, [runs[i] for i in chosen]) as (packed, paths):
            of_pass = [windows[chosen[n]] for n in packed.order]
            leaving = {place for place, n in enumerate(packed.order) if n in also}
            sigmas = _compare(runtime, packed, of_pass, reference, offset, leaving)
            count_pass(child.usage for child in of)
            for n, sigma in zip(packed.order, sigmas, strict=True):
                i = chosen[n]
                child = others[i]
                if sigma >= sharing.tau:
                    similar.append((child, sigma))
                if sigma >= sharing.tau or i in longer:
                    child.usage.probe_layer_rows += len(runs[i]) * sharing.probe_layers
                else:
                    runtime.tree.move(child, paths[n].leaf)
                    child.usage.prompt_tokens += len(runs[i])
    return similar


def _reference(
    runtime: Runtime, root: Branch, windows: Sequence[_Window]
) -> tuple[int, list[Tensor]]:
    """The token that the root's states start with, and these (tokens, width) after each layer."""
    start = min(min(window.root.start, window.variant.start) for window in windows)
    end = max(max(window.root.stop, window.run) for window in windows)
    path = Path(runtime.tree.find(runtime.tree.trunk, root.tokens[:start]))
    run = root.tokens[path.leaf.end : end]
    states: list[Tensor] = []

    def look(depth: int, pieces: Sequence[Tensor]) -> None:
        states.append(pieces[0])

    with one_pass(runtime, [path], [run]) as (packed, _):
        _ProbePass(runtime, packed.plan, look, lambda: {0}).run(runtime.runner, packed.tokens)
    count_pass([root.usage])
    root.usage.probe_layer_rows += len(run) * runtime.sharing.probe_layers
    return path.leaf.end, states


def _compare(
    runtime: Runtime,
    packed: Packed,
    windows: Sequence[_Window],
    reference: Sequence[Tensor],
    offset: int,
    also: set[int],
) -> list[float]:
    """sigma of each run of the pass; those below tau and not in `also` run through all layers."""
    sharing = runtime.sharing
    shares = layer_weights(sharing.probe_layers, len(runtime.lens.layers), sharing.alpha)
    sigma = [0.0] * len(windows)

    def look(depth: int, pieces: Sequence[Tensor]) -> None:
        of_root = reference[depth - 1]
        for i, (rows, window) in enumerate(zip(pieces, windows, strict=True)):
            alike = window.similarity(rows, of_root, offset, sharing.pooling)
            sigma[i] += shares[depth - 1] * alike

    def leaving() -> set[int]:
        return also | {i for i, s in enumerate(sigma) if s >= sharing.tau}

    _ProbePass(runtime, packed.plan, look, leaving).run(runtime.runner, packed.tokens)
    return sigma


Look = Callable[[int, Sequence[Tensor]], Any]
"""(layers computed, the states (rows, width) of each run)"""


class _ProbePass(ShrinkingPass):
    """A pass that the probe's layers are looked at in, and that `leaving` leave after them."""

    def __init__(self, runtime: Runtime, plan: Plan, look: Look, leaving: Callable[[], set[int]]):
        super().__init__(runtime.lens, plan, lambda *_: set(), first_look=1)
        self.probe_layers = runtime.sharing.probe_layers
        self.look = look
        self.leaving = leaving

    def _look(self, depth: int, output: Any) -> Any:
        if depth > self.probe_layers:
            return output
        states = rows_of(output)
        self.look(depth, [states[run.rows] for run in self.plan.runs])
        return output if depth < self.probe_layers else self.without(self.leaving(), depth, output)
