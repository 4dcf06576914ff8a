"""Layer-wise offloading: what it moves, and room for its buffers."""

from __future__ import annotations

from tests.helpers.exactness import assert_same
from tests.helpers.models import deep, prompt
from tests.helpers.offloading import KIB
from tests.helpers.tokenizers import Letters
from ttc import Engine, Layerwise, Resident
from ttc.branch import Branch
from ttc.residency.base import Residency


def test_layerwise_moves_what_the_paper_says() -> None:
    """LBS Eq. 2 for each token, two layers being buffers: (layers - resident) x one layer's KV of
    all branches, what they have written in the step too."""
    model = deep(layers=8, heads=1, context=256)
    engine = Engine(model, Letters(), memory=Layerwise(24 * KIB, shared=False))
    branches = engine.fork(engine.root(prompt(1, 33)), 4)
    before = engine.memory.link.to_device_bytes["stream"]
    engine.generate(branches, 8)
    layer_token = 2 * 8 * 4  # K and V, 8 wide, float32
    resident = 24 * 1024 // (4 * (32 + 8) * layer_token) - 2
    assert resident == 0
    expected = sum((8 - resident) * 4 * (32 + filled) * layer_token for filled in range(8))
    assert engine.memory.link.to_device_bytes["stream"] - before == expected


def test_layerwise_keeps_its_buffers_while_rows_freeze() -> None:
    """Rows that end early freeze beside the tails, and the others go on streaming."""

    def run(memory: Residency) -> tuple[Engine, list[Branch]]:
        engine = Engine(deep(layers=8, heads=1, context=256), Letters(), memory=memory)
        branches = engine.fork(engine.root(prompt(1, 33)), 4)
        engine.generate(branches, [28, 28, 28, 32])
        return engine, branches

    expected = run(Resident())[1]
    engine, branches = run(Layerwise(60 * KIB))
    assert engine.memory.device.peak_bytes <= 60 * 1024
    assert_same(expected, branches)


def test_layerwise_makes_room_for_idle_branches_too() -> None:
    """Whole layers are resident, so they hold the KV of branches that the step leaves out."""
    engine = Engine(
        deep(layers=8, heads=1, context=256), Letters(), memory=Layerwise(60 * KIB, shared=False)
    )
    branches = engine.roots(
        [[10 * salt + 9 + i % 7 for i in range(41)] for salt in range(8)]
    ).result()
    assert sum(kv.filled for kv in engine.memory.live) == 8 * 40
    engine.generate(branches[:1], 4)
    assert len(branches[0].generated) == 4
    assert engine.memory.device.peak_bytes <= 60 * 1024
