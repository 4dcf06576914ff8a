"""Every residency policy gives what plain transformers gives, within its budget, and leaves nothing
behind."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from experiments.runs.schema import classes
from tests.helpers.engines import make_engine
from tests.helpers.exactness import assert_like_plain, grow
from tests.helpers.models import FEW, build
from tests.helpers.ownership import Ownership
from tests.helpers.tiers import examples, some_quick
from tests.helpers.tokenizers import Letters
from ttc import Engine
from ttc.residency.beam_groups import BeamGroups
from ttc.residency.capture import Capture
from ttc.residency.headwise import Headwise
from ttc.residency.layerwise import Layerwise
from ttc.residency.offloading import Offloading
from ttc.residency.paged import Paged

POLICIES: dict[str, tuple[type[Offloading], dict[str, Any], float]] = {
    # options, and the budget as a share of what the tree takes resident; of new policies these
    **{
        name: (kind, {"block_tokens": 8}, 0.7)
        for name, kind in classes("ttc.residency").items()
        if issubclass(kind, Offloading) and kind is not Capture
    },
    "layerwise": (Layerwise, {}, 0.75),
    "layerwise, one buffer": (Layerwise, {"prefetch": False}, 0.55),
    "layerwise, private": (Layerwise, {"shared": False}, 1.2),
    "beam_groups": (BeamGroups, {"block_tokens": 8}, 0.7),
    "beam_groups, private": (BeamGroups, {"block_tokens": 8, "shared": False}, 0.8),
    "beam_groups, no prefetch": (BeamGroups, {"block_tokens": 8, "prefetch": False}, 0.7),
    "paged": (Paged, {"block_tokens": 8}, 0.4),
    "headwise": (Headwise, {"block_tokens": 8}, 0.5),
    "headwise, one head": (Headwise, {"head_group": 1}, 0.5),
}


@cache
def peak_gib(family: str) -> float:
    engine = Engine(build(family), Letters(), prefill_tokens=5)
    grow(engine)
    return engine.memory.device.peak_bytes / 2**30


KINDS = [*FEW, "mistral", "opt", "gpt_oss"]
"""Families that differ in what KV is: windows, shared heads, widths of keys and values, sinks."""
CASES = [
    (family, policy)
    for family in KINDS
    for policy in POLICIES
    if family == "llama" or "," not in policy
]
QUICK = [(family, policy) for family, policy in CASES if family in FEW]


@pytest.mark.few(5)
@pytest.mark.parametrize(("family", "policy"), some_quick(CASES, QUICK))
def test_offloaded_equals_plain_transformers(family: str, policy: str) -> None:
    plain = build(family)
    kind, options, share = POLICIES[policy]
    memory = kind(budget_gib=share * peak_gib(family), **options)
    engine = Engine(copy.deepcopy(plain), Letters(), prefill_tokens=5, memory=memory)
    branches = grow(engine)
    for branch in branches:
        assert_like_plain(plain, branch)
    link, device = engine.memory.link, engine.memory.device
    assert sum(link.to_device_bytes.values()) > 0 and sum(link.to_host_bytes.values()) > 0
    assert device.budget_bytes is not None and device.peak_bytes <= device.budget_bytes
    engine.release(branches)
    assert engine.kv_bytes() == 0
    assert not engine.memory.live


def asleep_first(copy_all: Any) -> Any:
    """Copies whose stream sleeps about a millisecond before each: whoever does not wait reads what
    was there."""

    def late(copies: Any) -> None:
        torch.cuda._sleep(2_000_000)
        copy_all(copies)

    return late


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("policy", POLICIES)
def test_a_gpu_reads_nothing_before_it_arrives(policy: str) -> None:
    plain = build("llama")
    kind, options, share = POLICIES[policy]
    memory = kind(budget_gib=share * peak_gib("llama"), **options)
    engine = Engine(copy.deepcopy(plain).cuda(), Letters(), prefill_tokens=5, memory=memory)
    for queue in (engine.memory.link.to_device, engine.memory.link.to_host):
        queue.copy = asleep_first(queue.copy)  # type: ignore[method-assign]
    for branch in grow(engine):
        assert_like_plain(plain, branch)
    assert engine.memory.link.to_device_bytes.total() > 0


class Offloaded(Ownership):
    """The same invariants under a budget that forces everything to move."""

    policy: Offloading

    def __init__(self) -> None:
        super().__init__()
        self.engine = make_engine(memory=self.policy)

    @rule(data=st.data())
    def evict(self, data: Any) -> None:
        """Some segment leaves the device, as when others need its room."""
        if segments := self.engine.tree.segments():
            index = data.draw(st.integers(0, len(segments) - 1))
            self.engine.memory.evict(segments[index].storage, "test")
            assert not any(segments[index].storage.device)

    @invariant()
    def stays_within_the_budget(self) -> None:
        device = self.engine.memory.device
        assert device.budget_bytes is not None and device.peak_bytes <= device.budget_bytes


KIB = 1 / 2**20
"""A token of the tiny model takes 128 bytes."""


def machine(policy: Offloading) -> Any:
    case = type("Case", (Offloaded,), {"policy": policy}).TestCase
    case.settings = settings(max_examples=examples(12), stateful_step_count=20)
    return case


TestLayerwise = machine(Layerwise(24 * KIB))
TestBeamGroups = machine(BeamGroups(10 * KIB, block_tokens=8))
TestPrivateBeamGroups = machine(BeamGroups(10 * KIB, block_tokens=8, shared=False))
TestPaged = machine(Paged(8 * KIB, block_tokens=8))
TestHeadwise = machine(Headwise(48 * KIB))
