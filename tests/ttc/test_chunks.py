"""Chunked attention (Llama 4) against plain transformers: a token sees those of its own chunk
alone."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch

import ttc.attention.hf_hook
import ttc.attention.kernels
import ttc.model.extra_arguments
from experiments.standins import small_models
from tests.helpers.exactness import assert_like_plain, grow
from tests.helpers.tokenizers import Letters
from ttc import BeamGroups, Capture, Engine, Headwise, Layerwise, Paged, UnsupportedModel
from ttc.attention.fused import SWITCH
from ttc.attention.kernels import Layer
from ttc.attention.pieces import Piece
from ttc.attention.reader import Reads
from ttc.memory.kv import LayerShape, first_seen

CHUNK = 16
CHUNKS = [CHUNK, CHUNK, CHUNK, None]
"""Of the layers. The fourth one changes its scores every 16 positions instead (attention
temperature)."""
POLICIES = {
    "layerwise": lambda gib: Layerwise(0.75 * gib),
    "beam_groups": lambda gib: BeamGroups(0.5 * gib, block_tokens=8),
    "paged": lambda gib: Paged(0.4 * gib, block_tokens=8),
    "headwise": lambda gib: Headwise(0.5 * gib, block_tokens=8),
    "capture": lambda gib: Capture(act_share=0.5),
}


@cache
def plain() -> Any:
    return small_models.build("llama4_text", CHUNK)


def grown(model: Any, **options: Any) -> Engine:
    """An engine with a tree of branches over two to four chunks, each of which is as plain
    transformers has it."""
    engine = Engine(copy.deepcopy(model), Letters(), prefill_tokens=5, **options)
    branches = grow(engine)
    for branch in branches:
        assert len(branch.tokens) > 2 * CHUNK
        # rotations are float32
        assert_like_plain(model, branch, 1e-6 if model.dtype == torch.float64 else None)
    engine.release(branches)
    assert engine.kv_bytes() == 0
    return engine


def test_a_token_sees_its_window_and_its_chunk() -> None:
    assert [first_seen(p, None, 4) for p in range(9)] == [0, 0, 0, 0, 4, 4, 4, 4, 8]
    assert [first_seen(p, 3, None) for p in range(6)] == [0, 0, 0, 1, 2, 3]
    assert [first_seen(p, 3, 4) for p in range(8)] == [0, 0, 0, 1, 4, 4, 4, 5]
    positions, keys = torch.arange(8), torch.arange(8)
    sees = Layer(0, 1.0, window=3, chunk=4).sees(positions, keys) & (keys <= positions[:, None])
    assert [row.nonzero()[0].item() for row in sees] == [first_seen(p, 3, 4) for p in range(8)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", ["1", "0"])
def test_tree_equals_plain_transformers(
    dtype: torch.dtype, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, kernel)
    model = copy.deepcopy(plain()).to(dtype)
    model.set_experts_implementation("eager")  # the grouped products have no float64
    engine = grown(model)
    assert [shape.chunk for shape in engine.runner.shapes] == CHUNKS
    assert all(shape.window is None for shape in engine.runner.shapes)


@pytest.mark.few
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_equals_plain_transformers(policy: str) -> None:
    whole = Engine(copy.deepcopy(plain()), Letters(), prefill_tokens=5)
    grow(whole)
    memory: Any = POLICIES[policy](whole.memory.device.peak_bytes / 2**30)
    grown(plain(), memory=memory)


def test_policies_leave_out_what_chunks_hide() -> None:
    policy = Paged(block_tokens=8).bind(
        [LayerShape(2, 8, 8, chunk=16), LayerShape(2, 8, 8)], torch.float32, torch.device("cpu")
    )
    pieces = []
    for i in range(4):
        storage = policy.memory.begin(8 * i, 8)
        storage.filled = 8
        policy.memory.evict(storage, "evict")
        pieces.append(Piece(storage, 0, 8, slice(0, 2)))

    def read(layer: int, *positions: int) -> list[int]:
        units = policy.units(Reads(pieces, positions))
        return [number for unit in units if unit.layer == layer for number in unit.pieces]

    assert [read(0, 32, p) for p in (16, 31, 32)] == [[2, 3], [2, 3], []]
    assert read(1, 32, 33) == [0, 1, 2, 3]


def test_positions_counted_by_place_are_noticed_at_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ttc.model.extra_arguments, "asks_for_length", lambda module: False)
    with pytest.raises(UnsupportedModel, match="query of layer 3"):
        Engine(copy.deepcopy(plain()), Letters())
