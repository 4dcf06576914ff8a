"""Policies and placements where device and host are two processors that do not take each other's tensors.

The device is a pretended one (see `tests.helpers.pretended`). `Streamed` is left out: it swaps the memory of weights,
which PyTorch allows between a CPU and CUDA, but not with a device of this kind.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.helpers.exactness import assert_like_plain, grow
from tests.helpers.models import build
from tests.helpers.pretended import pretended_devices
from tests.helpers.tokenizers import Letters
from ttc import BeamGroups, Engine, Headwise, Layerwise, Paged, Split
from ttc.residency.base import Residency

SMALL = 2e-5
"""GiB: a part of what the tree needs."""


def devices(copies: Any) -> set[str]:
    return {str(copy.keys.device) for copy in copies if copy is not None}


@pytest.mark.parametrize("policy", [Paged, Headwise, BeamGroups, Layerwise])
def test_kv_that_moves_between_a_device_and_the_host_gives_plain_results(policy: type[Any]) -> None:
    plain, (device, _) = build("llama"), pretended_devices()
    engine = Engine(copy.deepcopy(plain).to(device), Letters(), memory=policy(budget_gib=SMALL))
    for branch in grow(engine):
        assert_like_plain(plain, branch)
    assert engine.memory.link.to_device_bytes.total() > 0
    for kv in engine.memory.live:
        assert devices(kv.device) <= {device} and devices(kv.host) <= {"cpu"}


@pytest.mark.parametrize("memory", [None, Paged(budget_gib=SMALL)])
def test_a_split_model_runs_on_both_with_kv_beside_its_layer(memory: Residency | None) -> None:
    plain, (device, _) = build("llama"), pretended_devices()
    model = copy.deepcopy(plain)
    runner = Split(k=2, kv_offload=memory is not None).place(model, device)
    engine = Engine(model, Letters(), runner=runner, memory=memory)
    for branch in grow(engine):
        assert_like_plain(plain, branch)
    for kv in engine.memory.live:
        assert devices(kv.device[:1]) == {"cpu"} and devices(kv.device[1:]) <= {device}
        assert devices(kv.host) <= {"cpu"}
