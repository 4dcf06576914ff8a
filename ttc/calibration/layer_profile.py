"""What each layer of a model says of a branch, were it the last (RKSC, appendix G)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from ttc.approximate.early_exit import EarlyExit, ExitReport, entropy, positive_share
from ttc.branch import Branch
from ttc.engine import Engine
from ttc.model.packed_linear import PackedLinear


@dataclass(frozen=True)
class BranchProfile:
    """One branch in a scoring pass; index l - 1 holds layer l.

    entropy: H of the lens at the branch's last row, in nats. raw_entropy: the same by the paper's
    lens, the head without the final norm (RKSC, Eq. 5); NaN where the head does not take a layer's
    states. p: P of its continuations (see `EarlyExit`). rows: that each layer computed for it.
    """

    entropy: list[float]
    raw_entropy: list[float]
    p: list[float]
    rows: int


def layer_profile(
    engine: Engine,
    branches: Sequence[Branch],
    contexts: Sequence[Sequence[int]],
    tokens: Sequence[Sequence[int]],
    positive: int,
) -> list[BranchProfile]:
    """A profile of each branch, from a pass that goes through all layers and looks after each.

    contexts: what stands after a branch. tokens: its single-token continuations, of which the first
    `positive` count for P. Counted, and refused, as `Engine.score` does with an exit.
    """
    profiles = [BranchProfile([], [], [], 1 + len(more)) for more in contexts]
    head = engine.model.get_output_embeddings()

    def watch(places: Sequence[int], depth: int, states: Tensor, logits: Tensor) -> None:
        raw = [math.nan] * len(places)
        if head.in_features == states.shape[-1]:
            raw = entropy(head(states).to(logits.dtype)).tolist()
        entropies = entropy(logits).tolist()
        for place, h, raw_h, row in zip(places, entropies, raw, logits, strict=True):
            profiles[place].entropy.append(h)
            profiles[place].raw_entropy.append(raw_h)
            profiles[place].p.append(positive_share(row, tokens[place], positive))

    never = EarlyExit(l_min=1, theta=0.0)
    singles = [[[token] for token in group] for group in tokens]
    engine.score(
        branches, singles, given=contexts, exit=never, report=ExitReport(watch=watch)
    ).result()
    return profiles


def look_layers(engine: Engine, rows: float) -> float:
    """What one look costs, in layers of a branch with this many rows.

    By the weights that a row is multiplied with: the head's for a look's single row, a layer's for
    each of its rows. A mixture's experts all count.
    """
    head = weight_count(engine.model.get_output_embeddings())
    layers = [weight_count(layer) for layer in engine.lens.layers]
    return head * len(layers) / (rows * sum(layers))


def weight_count(module: nn.Module) -> int:
    """How many weights a module multiplies with, packed ones too."""
    packed = [m for m in module.modules() if isinstance(m, PackedLinear)]
    unpacked = sum(p.numel() for p in module.parameters())
    return unpacked + sum(m.in_features * m.out_features for m in packed)
