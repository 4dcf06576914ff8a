"""Layer-wise offloading: what it moves, and room for its buffers."""

from __future__ import annotations

import pytest

from tests.helpers.models import deep, prompt
from tests.helpers.offloading import KIB
from tests.helpers.tokenizers import Letters
from ttc import Engine, Layerwise


@pytest.mark.parametrize("kib", [3, 7])
def test_prompts_in_parts_leave_room_for_what_comes_of_them_yet(kib: int) -> None:
    memory = Layerwise(kib * KIB, block_tokens=32)
    model = deep(layers=4, heads=1, context=256)
    engine = Engine(model, Letters(), memory=memory, prefill_tokens=8)
    engine.roots([prompt(1, 41), prompt(2, 41)]).result()
    assert engine.memory.device.peak_bytes <= kib * 1024


def test_last_layers_leave_whole_as_their_kv_grows_and_none_comes_back() -> None:
    model = deep(layers=4, heads=1, context=256)
    engine = Engine(model, Letters(), memory=Layerwise(12 * KIB, block_tokens=8))
    policy, branch = engine.residency, engine.root(prompt(1, 33))
    assert isinstance(policy, Layerwise)
    stays = [policy.resident]
    assert policy.leaving(2**40)[0] == []
    for _ in range(10):
        engine.generate([branch], 4)
        stays.append(policy.resident)
    assert stays == sorted(stays, reverse=True) and len({*stays}) > 2
    assert not engine.memory.link.to_device_bytes["resident"]


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
