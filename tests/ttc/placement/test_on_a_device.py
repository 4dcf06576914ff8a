"""Policies and placements where device and host are two processors that do not take each other's
tensors.

The device is a pretended one (see `experiments.standins.pretended`).
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from experiments.standins import small_models, small_trees
from experiments.standins.pretended import pretended_devices
from tests.helpers.engines import GREEDY
from tests.helpers.exactness import assert_like_plain, grow
from tests.helpers.models import build, prompt
from tests.helpers.placements import deeper
from tests.helpers.tiers import slow, some_quick
from tests.helpers.tokenizers import Letters
from tests.ttc.model.loading.test_loading import save_tokenizer
from ttc import BeamGroups, Capture, Engine, Paged, Split, Streamed
from ttc.placement.base import Placement
from ttc.residency.base import Residency

SMALL = 2e-5
"""GiB: a part of what the tree needs."""


def devices(copies: Any) -> set[str]:
    return {str(copy.keys.device) for copy in copies if copy is not None}


@pytest.mark.slow
@pytest.mark.parametrize("policy", [Paged, BeamGroups])
def test_kv_that_moves_between_a_device_and_the_host_gives_plain_results(policy: type[Any]) -> None:
    plain, (device, _) = build("llama"), pretended_devices()
    engine = Engine(copy.deepcopy(plain).to(device), Letters(), memory=policy(budget_gib=SMALL))
    for branch in grow(engine):
        assert_like_plain(plain, branch)
    assert engine.memory.link.to_device_bytes.total() > 0
    for kv in engine.memory.live:
        assert devices(kv.device) <= {device} and devices(kv.host) <= {"cpu"}


@pytest.mark.parametrize("memory", [slow(None), Paged(budget_gib=SMALL)])
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


APART = ["gemma3n_text: shared KV", "mllama", "nemotron_h", "zamba"]
"""KV of other layers, layers that don't run or keep nothing, and weights that both sides need."""
STREAMED = ["gpt_oss", "gemma3n_text: shared KV", "mllama", "nemotron_h", "zamba"]
PLACED = [*((Split(k=3), case) for case in APART), *((Streamed(), case) for case in STREAMED)]
"""Weights that attention itself uses, and of the above what layers keep for others, or do not
run."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("placement", "case"),
    some_quick(PLACED, [PLACED[0], PLACED[-1]]),
)
def test_what_a_layer_computes_with_lies_where_it_runs(placement: Placement, case: str) -> None:
    plain, (device, _) = small_models.build(case), pretended_devices()
    model = copy.deepcopy(plain)
    engine = Engine(model, Letters(), prefill_tokens=16, runner=placement.place(model, device))
    branches = engine.fork(engine.root(small_models.tokens(1, 20)), 2)
    engine.extend(branches, [[3, 4, 5], [6]]).result()
    engine.generate(branches, [4, 2], sampling=GREEDY)
    for logits_of in small_trees.references(engine).values():
        worst, allowed = small_trees.difference(plain, branches, logits_of)
        assert worst <= allowed
    homes = [device.split(":")[0] in str(weight.device) for weight in model.parameters()]
    assert any(homes) and not all(homes)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [None, BeamGroups(budget_gib=2 * SMALL)])
def test_weights_that_stream_come_from_the_host_to_the_device(memory: Residency | None) -> None:
    plain, (device, _) = deeper("llama"), pretended_devices()
    model = copy.deepcopy(plain)
    engine = Engine(
        model, Letters(), prefill_tokens=5, runner=Streamed().place(model, device), memory=memory
    )
    layers, computed_on = model.model.layers, set[str]()
    for layer in layers:
        inside = layer.mlp.down_proj
        inside.register_forward_pre_hook(
            lambda module, _: computed_on.add(str(module.weight.device))
        )
    for branch in grow(engine):
        assert_like_plain(plain, branch)
    assert computed_on == {device}
    assert {str(weight.device) for weight in layers.parameters()} == {"cpu"}
    assert {
        str(weight.device) for weight in (model.model.embed_tokens.weight, model.lm_head.weight)
    } == {device}
    assert engine.memory.link.to_device_bytes["weights"] > 0
    for kv in engine.memory.live:
        assert devices(kv.device) <= {device} and devices(kv.host) <= {"cpu"}


@pytest.mark.slow
def test_a_streamed_model_is_read_to_where_its_weights_stay(tmp_path: Path) -> None:
    plain, (device, _) = deeper("qwen3", tie_word_embeddings=True), pretended_devices()
    plain.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    outer = 4 * sum(w.numel() for name, w in plain.named_parameters() if ".layers." not in name)
    layer = 4 * sum(w.numel() for w in plain.model.layers[0].parameters())
    # two buffers, and one layer that stays
    budget = Streamed(budget_gib=(outer + 3.5 * layer) / 2**30)
    engine = Engine.from_pretrained(tmp_path, device=device, dtype="float32", placement=budget)
    found = [{str(w.device) for w in layer.parameters()} for layer in engine.model.model.layers]
    assert found == [{device}, {"cpu"}, {"cpu"}, {"cpu"}]
    root = engine.root(prompt(1, 9))
    engine.generate([root], 4, sampling=GREEDY)
    assert_like_plain(plain, root)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("placement", "layers"), [(Split(k=2, kv_offload=True), {1}), (Streamed(), {0, 1})]
)
def test_keys_and_values_are_generated_on_the_device_for_its_layers(
    placement: Placement, layers: set[int]
) -> None:
    plain, (device, _) = build("opt"), pretended_devices()
    model, memory = copy.deepcopy(plain), Capture(budget_gib=SMALL, act_share=0.5, block_tokens=8)
    engine = Engine(model, Letters(), runner=placement.place(model, device), memory=memory)
    for branch in grow(engine):
        assert_like_plain(plain, branch)
    assert engine.memory.link.to_device_bytes["act"] > 0
    assert {layer for kv in engine.memory.live for layer in kv.acts} == layers
