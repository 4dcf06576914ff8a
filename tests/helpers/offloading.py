"""Policies that have to move KV, and eight branches for them."""

from __future__ import annotations

import copy
from typing import Any

from ttc import BeamGroups, Engine, Headwise, Layerwise, Paged
from ttc.branch import Branch

KIB = 1 / 2**20
OFFLOADING = [
    Layerwise(8 * KIB),
    BeamGroups(7.5 * KIB, block_tokens=8),
    Paged(4 * KIB, block_tokens=8),
    Headwise(8 * KIB),
]
"""Policies that have to move KV for eight branches of the tiny model, whose token takes 128
bytes."""


def changed(policy: Any, **settings: Any) -> Any:
    other = copy.copy(policy)
    vars(other).update(settings)
    return other


def eight(engine: Engine) -> list[Branch]:
    root = engine.root(list(range(1, 41)))
    branches = engine.fork(root, 8)
    engine.release([root])
    return branches
