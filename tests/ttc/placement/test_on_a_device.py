"""Policies and placements where device and host are two processors that do not take each other's tensors.

The device is a pretended one (see `tests.helpers.pretended`). `Streamed` is left out: it swaps the memory of weights,
which PyTorch allows between a CPU and CUDA, but not with a device of this kind.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from experiments.bench import architectures, small_models
from tests.helpers.engines import GREEDY
from tests.helpers.exactness import assert_like_plain, grow
from tests.helpers.models import build
from tests.helpers.pretended import pretended_devices
from tests.helpers.tokenizers import Letters
from ttc import BeamGroups, Capture, Engine, Headwise, Layerwise, Paged, Split
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


APART = ["bloom", "falcon: alibi", "gemma3n_text: shared KV", "gpt_neo", "mllama", "mpt", "nemotron_h", "zamba"]
"""Biases and tables of positions, norms of embeddings, KV of other layers, layers that don't run or keep nothing, and
weights that both sides need."""


@pytest.mark.parametrize("case", APART)
def test_what_a_layer_computes_with_lies_where_it_runs(case: str) -> None:
    plain, (device, _) = small_models.build(case), pretended_devices()
    model = copy.deepcopy(plain)
    engine = Engine(model, Letters(), prefill_tokens=16, runner=Split(k=3).place(model, device))
    branches = engine.fork(engine.root(small_models.tokens(1, 20)), 2)
    engine.extend(branches, [[3, 4, 5], [6]])
    engine.generate(branches, [4, 2], sampling=GREEDY)
    recurrent = engine.runner.recurrent
    worst, allowed = architectures.difference(plain, branches, bool(recurrent and recurrent.knows_opening))
    assert worst <= allowed
    homes = [device.split(":")[0] in str(weight.device) for weight in model.parameters()]
    assert any(homes) and not all(homes)


def test_keys_and_values_are_generated_on_the_device_for_its_layers() -> None:
    plain, (device, _) = build("opt"), pretended_devices()
    model, memory = copy.deepcopy(plain), Capture(budget_gib=SMALL, act_share=0.5, block_tokens=8)
    engine = Engine(model, Letters(), runner=Split(k=2, kv_offload=True).place(model, device), memory=memory)
    for branch in grow(engine):
        assert_like_plain(plain, branch)
    assert engine.memory.link.to_device_bytes["act"] > 0
    assert {layer for kv in engine.memory.live for layer in kv.acts} == {1}
