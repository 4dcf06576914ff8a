"""Layers on host and device: the same tokens and logits, KV with its layer, and one tensor across
in each pass."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from experiments.standins import small_models
from tests.helpers.engines import GREEDY
from tests.helpers.exactness import assert_like_plain, grow
from tests.helpers.models import prompt
from tests.helpers.placements import LAYERS, deeper, placed, save_without_weights, write_profile
from ttc import (
    BeamGroups,
    Capture,
    Engine,
    Headwise,
    InvalidInput,
    Layerwise,
    OutOfMemory,
    Paged,
    Resident,
    Split,
    UnsupportedModel,
)  # fmt: skip
from ttc.cost_model.capture import Line
from ttc.cost_model.device_profile import DeviceProfile, LinkProfile
from ttc.cost_model.unit import held_bytes
from ttc.memory.link import Link, Transfer
from ttc.model.loading.partition import partition
from ttc.model.running.capture_times import MeasuredTimes
from ttc.placement.split import Crossing

KIB = 1 / 2**20
STEP: dict[str, Any] = {"prompt_tokens": 16, "output_tokens": 8, "branches": 2}
LAYER_BYTES = 4 * 2 * (32 * 32 + 32 * 16) + 4 * 3 * 32 * 48 + 4 * 2 * 32
"""Weights of a layer of the Llama of `deeper`, and its KV per token."""
KV_BYTES = 4 * 2 * 16


def split(plain: Any, memory: Any = None, **options: Any) -> Engine:
    return placed(plain, Split(**({"k": 3} | options)), memory=memory)


@pytest.mark.few(1)
@pytest.mark.parametrize("k", [0, 1, LAYERS])
def test_every_split_gives_the_same(k: int) -> None:
    plain = deeper("gpt2")
    for branch in grow(split(plain, k=k)):
        assert_like_plain(plain, branch)


POLICIES = {
    "layerwise": Layerwise(20 * KIB),
    "beam_groups": BeamGroups(14 * KIB, block_tokens=8),
    "beam_groups, late": BeamGroups(14 * KIB, block_tokens=8, link_gbps=0.05),
    "paged": Paged(12 * KIB, block_tokens=16),
    "headwise": Headwise(12 * KIB, block_tokens=16),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("policy", POLICIES)
def test_the_devices_layers_keep_kv_under_any_policy(policy: str) -> None:
    plain = deeper("qwen3")
    engine = split(plain, POLICIES[policy])
    branches = grow(engine)
    for branch in branches:
        assert_like_plain(plain, branch)
    memory = engine.memory
    assert (
        memory.device.budget_bytes is not None
        and memory.device.peak_bytes <= memory.device.budget_bytes
    )
    moved = memory.link.to_device_bytes
    assert moved.total() > moved["activations"] + moved["positions"], (
        "KV of the device's layers moves"
    )
    engine.release(branches)
    assert engine.kv_bytes() == 0 == memory.fixed.used_bytes
    assert not memory.live


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 3])
def test_the_devices_layers_keep_activations_and_the_hosts_keep_kv(k: int) -> None:
    plain = deeper("opt")
    resident = split(plain, k=k)
    grow(resident)
    budget = 0.7 * resident.memory.device.peak_bytes
    engine = split(plain, Capture(budget / 2**30, act_share=0.5, block_tokens=8), k=k)
    branches = grow(engine)
    for branch in branches:
        assert_like_plain(plain, branch)
    memory, on_host = engine.memory, k - 1
    assert memory.device.peak_bytes <= budget
    assert memory.link.to_device_bytes["act"] > 0 and memory.link.to_device_bytes["kv"] > 0
    assert {layer for kv in memory.live for layer in kv.acts} == {*range(on_host, LAYERS)}
    tokens = sum(kv.room for kv in memory.live)
    assert memory.fixed.used_bytes == tokens * 4 * sum(
        shape.elements for shape in memory.shapes[:on_host]
    )
    engine.release(branches)
    assert (
        engine.kv_bytes()
        == memory.fixed.used_bytes
        == memory.device.used_bytes
        == memory.host.used_bytes
        == 0
    )


def test_the_times_that_decide_on_activations_are_those_of_the_devices_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timed = list[int]()
    measure = MeasuredTimes.measure_generating

    def watched(self: MeasuredTimes, layer: int, blocks: int) -> Line:
        timed.append(layer)
        return measure(self, layer, blocks)

    monkeypatch.setattr(MeasuredTimes, "measure_generating", watched)
    engine = split(deeper("opt"), Capture(40 * KIB, block_tokens=8))
    engine.generate([engine.root(prompt(1, 20))], 3, sampling=GREEDY)
    assert {*timed} == {2} and engine.residency.times.kv_gen.slope > 0


def test_kv_lies_with_its_layer_and_counts_there() -> None:
    engine = split(deeper("llama"), k=2)  # the embedding and one layer on the host
    engine.root(prompt(1, 11))
    assert (engine.memory.fixed.used_bytes, engine.memory.device.used_bytes) == (
        10 * KV_BYTES,
        10 * 3 * KV_BYTES,
    )
    assert engine.kv_bytes() == 10 * LAYERS * KV_BYTES


def test_one_tensor_of_activations_crosses_in_each_pass() -> None:
    engine = split(deeper("llama"))
    branches = engine.fork(engine.root(prompt(1, 11)), 3)
    moved = engine.memory.link.to_device_bytes
    before = moved["activations"]
    engine.generate(branches, 4, sampling=GREEDY)
    assert moved["activations"] - before == 4 * 3 * 32 * 4  # passes, rows, width, bytes
    assert set(moved) == {"activations", "positions"}


def test_a_pass_crosses_in_one_transfer_and_is_looked_through_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = split(deeper("llama"), k=2)  # three layers on the device
    branches = engine.fork(engine.root(prompt(1, 11)), 3)
    link, flatten = engine.memory.link, pytree.tree_flatten
    sent, looked_at = list[int](), list[Any]()
    fetch = link.fetch_together

    def fetched(copies: Any) -> Transfer:
        sent.append(sum(map(len, copies.values())))
        return fetch(copies)

    def flattened(values: Any) -> Any:
        leaves, structure = flatten(values)
        looked_at.extend(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        return leaves, structure

    monkeypatch.setattr(link, "fetch_together", fetched)
    monkeypatch.setattr("ttc.placement.split.pytree.tree_flatten", flattened)
    engine.generate(branches, 2, sampling=GREEDY)
    of_a_pass = ["states", "cos", "sin", "position_ids"]
    assert sent == [len(of_a_pass)] * 2
    assert len(looked_at) == 2 * len(of_a_pass)


def test_what_may_change_between_layers_is_looked_at_in_each() -> None:
    crossing = Crossing(Link(torch.device("cpu")), torch.device("cpu"))
    first, second = torch.zeros(2), torch.ones(2)
    values = [first]
    fixed = (first, (second,))
    copied, (copy, _), flag = crossing.bring([values, fixed, True])
    assert copied[0] is copy is not first and torch.equal(copy, first) and flag is True
    values[0] = second
    again, same, there = crossing.bring([values, fixed, first], there=first)
    assert torch.equal(again[0], second) and again[0] is same[1][0]
    assert same[0] is copy is there
    assert crossing.link.to_device_bytes == {"positions": 16}


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_output_projection_gets_a_copy_on_the_device(
    tied: bool, tmp_path: Path, letters: None
) -> None:
    plain = deeper("qwen3", tie_word_embeddings=tied)
    plain.save_pretrained(tmp_path)
    engine = Engine.from_pretrained(tmp_path, device="cpu", dtype="float32", placement=Split(k=2))
    table, head = engine.model.model.embed_tokens.weight, engine.model.lm_head.weight
    assert table.data_ptr() != head.data_ptr()
    assert torch.equal(table, head) == tied
    branch = engine.root(prompt(1, 9))
    engine.generate([branch], 5, sampling=GREEDY)
    assert_like_plain(plain, branch)


# -------------------------------------------------------------------- which split


@pytest.fixture
def profile(tmp_path: Path) -> str:
    """A made-up profile of this machine, on which the one device is both."""
    device = DeviceProfile(
        name="cpu float32", bandwidth=40e9, flops={1: 20e9}, pass_overhead_s=1e-3
    )
    link = LinkProfile(to_device_bandwidth=16e9, to_host_bandwidth=16e9, simulated=True)
    return write_profile(tmp_path / "profile.json", [device], link)


HEAD_BYTES = 4 * (128 * 32 + 32)
"""The output projection and the final norm."""
STEP_TOKENS = 16 + 2 * 8


@pytest.mark.parametrize(("fitting", "k"), [(3, 2), (2, 3), (1, 4)])
def test_auto_puts_as_much_on_the_device_as_fits_with_the_steps_kv(
    profile: str, fitting: int, k: int
) -> None:
    budget = HEAD_BYTES + fitting * (LAYER_BYTES + STEP_TOKENS * KV_BYTES)
    plain = deeper("llama")
    engine = split(plain, k="auto", profile=profile, budget_gib=budget / 2**30, **STEP)
    assert (engine.runner.k, engine.runner.device_bytes) == (k, HEAD_BYTES + fitting * LAYER_BYTES)
    assert engine.memory.device.budget_bytes == fitting * STEP_TOKENS * KV_BYTES
    branch = engine.root(prompt(1, 9))
    engine.generate([branch], 4, sampling=GREEDY)
    assert_like_plain(plain, branch)


def test_a_policys_own_budget_comes_before_what_the_weights_leave() -> None:
    engine = split(deeper("llama"), Resident(4 * KIB), budget_gib=200 * KIB, **STEP)
    assert engine.memory.device.budget_bytes == 4 * 1024


@pytest.mark.parametrize("k", ["auto", 4, 2])
def test_a_split_without_room_for_a_step_is_refused_before_a_weight_is_read(
    k: Any, profile: str, tmp_path: Path, letters: None
) -> None:
    save_without_weights(tmp_path)
    placement = Split(k=k, profile=profile, **STEP)
    layers = LAYERS - (1 if k == 2 else 3)
    needed = HEAD_BYTES + layers * (LAYER_BYTES + STEP_TOKENS * KV_BYTES)

    def load(placement: Split) -> None:
        Engine.from_pretrained(tmp_path, device="cpu", dtype="float32", placement=placement)

    with pytest.raises(
        OutOfMemory,
        match=rf"needs {needed:,} there: .* KV of 2 branches .*budget_gib of {needed:,}",
    ):
        load(replace(placement, budget_gib=(needed - 1) / 2**30))
    with pytest.raises(OutOfMemory, match=r"host"):
        load(replace(placement, host_budget_gib=1 * KIB, budget_gib=needed / 2**30))


def test_what_cannot_be_split_is_refused(profile: str) -> None:
    model = deeper("llama")
    with pytest.raises(
        InvalidInput, match=r"placement.k=5 leaves no layer on the device; of 6 units at most 4"
    ):
        Split(k=5).place(model, "cpu")
    with pytest.raises(InvalidInput, match=r"placement.k='most' is unknown; use one of auto"):
        Split(k="most")
    with pytest.raises(InvalidInput, match=r"k=auto needs a profile of this machine"):
        Split()
    record = json.loads(Path(profile).read_text())
    Path(profile).write_text(json.dumps(record | {"machine": record["machine"] | {"threads": 999}}))
    with pytest.raises(InvalidInput, match=r"a profile of another machine \(threads 999 there"):
        Split(profile=profile).place(model, "cpu")
    Path(profile).write_text(json.dumps(record | {"devices": []}))
    with pytest.raises(InvalidInput, match=r"no 'cpu float32'"):
        Split(profile=profile).place(model, "cpu")


def test_layers_that_do_not_run_one_after_the_other_or_are_partly_one_are_refused() -> None:
    with pytest.raises(
        UnsupportedModel, match="no list of its 8 decoder layers, one of which runs after the other"
    ):
        Split(k=2).place(small_models.build("hrm_text"), "cpu")
    model = deeper("llama")
    model.model.layers[2].mlp = model.model.layers[0].mlp
    with pytest.raises(
        UnsupportedModel, match="layers 0 and 2 of LlamaForCausalLM are partly the same modules"
    ):
        Split(k=2).place(model, "cpu")


def test_weights_that_layers_of_both_sides_have_in_common_are_copied() -> None:
    plain = small_models.build("zamba")  # layers 1 and 3 attend by the same weights
    model = copy.deepcopy(plain)
    runner = Split(k=3).place(model, "cpu")
    one, other = (model.model.layers[n].shared_transf.self_attn.q_proj.weight for n in (1, 3))
    assert torch.equal(one, other) and one.data_ptr() != other.data_ptr()
    units = partition(plain.config, torch.float32, type(plain)).units
    assert (runner.host_bytes, runner.device_bytes) == (
        held_bytes(units[:3]),
        held_bytes(units[3:]),
    )
