"""ASKS (RKSC, section 2.2): variants of a prompt that are close enough to it stand on its KV. Approximate."""

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

from ttc.attention.plan import ExtendPlan
from ttc.errors import InvalidInput, UnsupportedModel
from ttc.model.lens import rows_of
from ttc.passes.chunks import Chunk, batches, one_chunk
from ttc.passes.runtime import Runtime
from ttc.passes.segment_writer import NewRun
from ttc.passes.shrinking import ShrinkingPass
from ttc.tree.branch import Branch, Substitution
from ttc.tree.segment import common_prefix
from ttc.tree.sharing import Pooling

CONTEXT = 8
"""Tokens on each side of what differs that are compared with it: one changed word is little, among them."""


@torch.inference_mode()
def share_similar(runtime: Runtime, root: Branch, children: Sequence[Branch]) -> None:
    """Put the root's tokens in place of those of `children`, which stand on the trunk, where the two are similar.

    The probe is the beginning of the prefill that it may save: all variants run through the first layers, and those
    that are refused run on. A similar one is moved to the root's leaf and says so in `substituted`.
    Raises UnsupportedModel for a model with recurrent layers: prompts that run on would lack states at their ends.
    """
    if runtime.runner.recurrent is not None:
        raise UnsupportedModel(
            f"{type(runtime.runner.model).__name__} has recurrent layers, whose states are not kept of a pass that "
            "similar prompts leave early; use sharing=exact"
        )
    first: dict[tuple[int, ...], Branch] = {}
    for child in children:
        first.setdefault(tuple(child.tokens), child)
    others = [child for child in first.values() if not _is_prefix(child.tokens[:-1], root.tokens[:-1])]
    if runtime.sharing.same_numbers:
        others = [child for child in others if _numbers(runtime, child) == _numbers(runtime, root)]
    for child, similarity in _probe(runtime, root, others):
        same = [c for c in children if c.tokens == child.tokens]
        child.usage.substituted_tokens += len(same) * (len(child.tokens) - 1 - child.leaf.end)
        for c in same:
            c.substituted = Substitution(c.tokens, similarity)
            c.tokens = root.tokens[:]
            runtime.tree.move(c, root.leaf)


def differing(a: Sequence[int], b: Sequence[int]) -> tuple[slice, slice]:
    """The tokens of each from the first difference to the last; none where the other one only has more."""
    start = common_prefix(a, b)
    end = common_prefix(a[start:][::-1], b[start:][::-1])
    return slice(start, len(a) - end), slice(start, len(b) - end)


def compared(root: Sequence[int], own: Sequence[int], pooling: Pooling) -> tuple[slice, slice]:
    """The tokens of each prompt whose states are compared: the last ones, or what differs with `CONTEXT` around it."""
    ends = len(root), len(own)
    if pooling == "last":
        return slice(ends[0] - 1, ends[0]), slice(ends[1] - 1, ends[1])
    changed = differing(root, own)
    return _widened(changed[0], ends[0]), _widened(changed[1], ends[1])


def layer_weights(layers: int, total: int, alpha: float) -> list[float]:
    """w_1 to w_layers of RKSC's Eq. 2, proportional to exp(alpha l / total), with a sum of 1."""
    raw = [math.exp(alpha * depth / total) for depth in range(1, layers + 1)]
    return [w / sum(raw) for w in raw]


def similarity(a: Tensor, b: Tensor, pooling: Pooling) -> float:
    """How alike two prompts' states in one layer are, (tokens, width) each, at most 1. See `Sharing`."""
    a, b = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (a, b))
    if pooling == "matched":
        centre = b.mean(0)  # what all states have in common would make any two alike
        cosines = normalize(a - centre, dim=-1) @ normalize(b - centre, dim=-1).T
        return float(cosines.amax(1).mean() + cosines.amax(0).mean()) / 2
    one, other = (x.mean(0) if pooling == "mean" else x[-1] for x in (a, b))
    return float(torch.cosine_similarity(one, other, dim=0))


def _is_prefix(tokens: Sequence[int], of: Sequence[int]) -> bool:
    """Whether all of it stands under the root already, exactly: nothing is left to save."""
    return common_prefix(tokens, of) == len(tokens)


def _numbers(runtime: Runtime, branch: Branch) -> Counter[str]:
    return Counter(re.findall(r"-?\d+(?:[.,]\d+)*", runtime.decode(branch.tokens)))


@dataclass(frozen=True)
class _Window:
    """What is compared of a variant: tokens `root` of the root's prompt, and of the variant's own prompt `own`, which
    has the same KV as the root up to `run`, where its own rows begin."""

    root: slice
    own: slice
    run: int

    @classmethod
    def of(cls, root: Sequence[int], own: Sequence[int], run: int, pooling: Pooling) -> _Window:
        return cls(*compared(root, own, pooling), run)

    def similarity(self, rows: Tensor, root: Tensor, offset: int, pooling: Pooling) -> float:
        """rows: the variant's own states. root: the root's, from its token `offset` on."""
        shared = root[self.own.start - offset : max(0, self.run - offset)] if self.own.start < self.run else root[:0]
        own = torch.cat([shared, rows[max(0, self.own.start - self.run) : self.own.stop - self.run]])
        return similarity(own, root[self.root.start - offset : self.root.stop - offset], pooling)


def _widened(region: slice, end: int) -> slice:
    return slice(max(0, region.start - CONTEXT), min(end, region.stop + CONTEXT))


def _probe(runtime: Runtime, root: Branch, others: Sequence[Branch]) -> list[tuple[Branch, float]]:
    """Those of `others` that are similar to the root, and how much. What stands in the tree for other prompts decides
    nothing: a refused one has its prompt's KV afterwards, or finds more of it there."""
    sharing, layers = runtime.sharing, len(runtime.lens.layers)
    if sharing.probe_layers >= layers:
        raise InvalidInput(
            f"sharing.probe_layers={sharing.probe_layers} leaves nothing to save of {layers} layers; use less"
        )
    if not others or len(root.tokens) < 2:
        return []
    probed = list(others)
    windows: list[_Window] = []
    known: set[int] = set()  # places of those that more of stands in the tree of: they leave after the probe as well
    for place, child in enumerate(probed):
        common = common_prefix(root.tokens, child.tokens[:-1])
        leaf = runtime.tree.descend(runtime.tree.trunk, child.tokens[:common])
        runtime.tree.move(child, leaf)
        child.usage.shared_tokens += leaf.end
        if runtime.tree.descend(leaf, child.tokens[leaf.end : -1]) is not leaf:
            known.add(place)
        # the last token is not computed in a prefill, so it is not compared either
        windows.append(_Window.of(root.tokens[:-1], child.tokens[:-1], leaf.end, sharing.pooling))
    offset, reference = _reference(runtime, root, windows)
    runs = [child.tokens[child.leaf.end : -1] for child in probed]
    similar: list[tuple[Branch, float]] = []
    for chosen in batches(runtime, probed, runs, together=False):
        also = {n for n, i in enumerate(chosen) if i in known}
        seen = [windows[i] for i in chosen]
        new = [NewRun(probed[i].leaf, runs[i], probed[i].usage) for i in chosen]
        with one_chunk(runtime, new) as (chunk, held):
            sigmas = _compare(runtime, chunk, seen, reference, offset, also)
            for i, sigma, segment in zip(chosen, sigmas, held, strict=True):
                if sigma >= sharing.tau:
                    similar.append((probed[i], sigma))
                if sigma >= sharing.tau or i in known:
                    probed[i].usage.probe_layer_rows += len(runs[i]) * sharing.probe_layers
                else:
                    runtime.tree.move(probed[i], segment)
                    probed[i].usage.prompt_tokens += len(runs[i])
    return similar


def _reference(runtime: Runtime, root: Branch, windows: Sequence[_Window]) -> tuple[int, list[Tensor]]:
    """The root's states (tokens, width) after each layer of the probe, and the token that they start with."""
    start = min(min(window.root.start, window.own.start) for window in windows)
    leaf = runtime.tree.descend(runtime.tree.trunk, root.tokens[:start])
    run = root.tokens[leaf.end : max(max(window.root.stop, window.run) for window in windows)]
    states: list[Tensor] = []
    with one_chunk(runtime, [NewRun(leaf, run, root.usage)]) as (chunk, _):
        probe = _ProbePass(runtime, chunk.plan, lambda _, pieces: states.append(pieces[0]), lambda: {0})
        probe.run(runtime.runner, chunk.tokens)
    root.usage.probe_layer_rows += len(run) * runtime.sharing.probe_layers
    return leaf.end, states


def _compare(
    runtime: Runtime,
    chunk: Chunk,
    windows: Sequence[_Window],
    reference: Sequence[Tensor],
    offset: int,
    also: set[int],
) -> list[float]:
    """sigma of each run of the chunk; those below tau and not in `also` run through all layers."""
    sharing = runtime.sharing
    shares = layer_weights(sharing.probe_layers, len(runtime.lens.layers), sharing.alpha)
    sigma = [0.0] * len(windows)

    def look(depth: int, pieces: Sequence[Tensor]) -> None:
        for i, (rows, window) in enumerate(zip(pieces, windows, strict=True)):
            sigma[i] += shares[depth - 1] * window.similarity(rows, reference[depth - 1], offset, sharing.pooling)

    def leaving() -> set[int]:
        return also | {i for i, s in enumerate(sigma) if s >= sharing.tau}

    _ProbePass(runtime, chunk.plan, look, leaving).run(runtime.runner, chunk.tokens)
    return sigma


Look = Callable[[int, Sequence[Tensor]], Any]
"""(layers computed, the states (rows, width) of each run)"""


class _ProbePass(ShrinkingPass):
    """A pass that the probe's layers are looked at in, and that `leaving` leave after them."""

    def __init__(self, runtime: Runtime, plan: ExtendPlan, look: Look, leaving: Callable[[], set[int]]):
        super().__init__(runtime.lens, plan, lambda *_: set(), first_look=1)
        self.probe_layers, self.look, self.leaving = runtime.sharing.probe_layers, look, leaving

    def _look(self, depth: int, output: Any) -> Any:
        if depth > self.probe_layers:
            return output
        states = rows_of(output)
        self.look(depth, [states[piece.rows] for piece in self.plan.pieces])
        return output if depth < self.probe_layers else self.without(self.leaving(), depth, output)
