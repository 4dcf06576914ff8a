"""The engine against plain transformers, branch by branch, on small random models of every
supported family."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import ttc.attention.pieces
import ttc.attention.plan
import ttc.model.check.model_check
import ttc.residency.base
from tests.helpers.exactness import assert_like_plain, grow
from tests.helpers.models import FAMILIES, build
from tests.helpers.tokenizers import Letters
from ttc import Engine
from ttc.attention.fused import SWITCH


@pytest.mark.few(4)
@pytest.mark.parametrize("family", FAMILIES)
def test_tree_equals_plain_transformers(family: str) -> None:
    plain = build(family)
    engine = Engine(copy.deepcopy(plain), Letters(), prefill_tokens=5)
    branches = grow(engine)
    assert sorted(len(b.generated) for b in branches) == [9, 9, 18, 18]
    for branch in branches:
        assert_like_plain(plain, branch)
    engine.release(branches)
    assert engine.kv_bytes() == 0
    assert engine.tree.segments() == []


@pytest.mark.parametrize("family", ["llama", "qwen3", "opt"])  # others compute in float32 within
def test_double_precision(family: str) -> None:
    plain = build(family, torch.float64)
    for branch in grow(Engine(copy.deepcopy(plain), Letters())):
        assert_like_plain(plain, branch, bound=1e-9)


def wrong_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ttc.attention.plan.Plan.__init__

    def shifted(self: Any, pieces: Any, positions: list[int], runs: Any, *rest: Any) -> None:
        decodes = len(runs) == len(positions)  # all of them a token further would change nothing
        original(self, pieces, [p + decodes for p in positions], runs, *rest)

    monkeypatch.setattr(ttc.attention.plan.Plan, "__init__", shifted)


def wrong_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    def halves(out: Any, lse: Any, part_out: Any, part_lse: Any) -> None:
        out.lerp_(part_out.to(out.dtype), 0.5)

    monkeypatch.setattr(ttc.attention.plan, "merge_", halves)
    monkeypatch.setenv(SWITCH, "0")  # the fused kernel merges by itself


def lost_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ttc.attention.pieces.pieces
    monkeypatch.setattr(ttc.residency.base, "pieces", lambda *a: original(*a)[1:])


@pytest.mark.parametrize("mistake", [wrong_positions, wrong_merge, lost_piece])
def test_a_planted_mistake_is_noticed(mistake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = build("llama")
    engine = Engine(copy.deepcopy(plain), Letters())
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        for branch in grow(engine):
            assert_like_plain(plain, branch)
