"""What the device may hold when no budget is given."""

from __future__ import annotations

import pytest
import torch

from tests.helpers.engines import GREEDY, make_engine
from tests.helpers.placements import deeper, placed
from ttc import BeamGroups, Engine, Headwise, Layerwise, Paged, Split
from ttc.residency.base import free_device_bytes
from ttc.residency.offloading import Offloading
from ttc.step import Step

KIB = 1024


def with_free(total: int, engine: Engine, patch: pytest.MonkeyPatch) -> None:
    """As if the engine's device had `total` bytes for KV, used or not."""
    device = engine.memory.device
    for module in ("base", "offloading"):
        patch.setattr(
            f"ttc.residency.{module}.free_device_bytes", lambda _: total - device.used_bytes
        )


def test_a_cuda_device_holds_nine_tenths_of_what_it_has_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What PyTorch keeps for itself and does not use is free too."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (6000, 10_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 3000)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 1000)
    assert free_device_bytes(torch.device("cuda")) == 7200
    assert free_device_bytes(torch.device("cpu")) is None


@pytest.mark.parametrize("given_gib", [None, 1])
@pytest.mark.parametrize("kind", [BeamGroups, Paged, Headwise, Layerwise])
def test_the_capacity_is_read_at_every_prompt_and_step_unless_it_is_given(
    kind: type[Offloading], given_gib: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(memory=kind(given_gib))
    given = given_gib and given_gib * 2**30
    with_free(64 * KIB, engine, monkeypatch)
    branch = engine.root([1, 2, 3])
    assert engine.memory.device.budget_bytes == (given or 64 * KIB)
    with_free(32 * KIB, engine, monkeypatch)
    engine.generate([branch], 2)
    assert engine.memory.device.budget_bytes == (given or 32 * KIB)


@pytest.mark.few
@pytest.mark.parametrize("policy", [BeamGroups(), Paged(), Headwise(), Layerwise()])
def test_what_a_split_leaves_to_kv_is_not_exceeded(
    policy: Offloading, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = placed(deeper("llama"), Split(k=2, budget_gib=2**-9, kv_offload=False), memory=policy)
    left = engine.memory.device.ceiling_bytes
    assert 0 < left < 2**21
    for free, expected in ((2 * left, left), (left // 2, left // 2), (2 * left, left)):
        with_free(free, engine, monkeypatch)
        engine.generate([engine.root([1, 2, 3])], 2)
        assert engine.memory.device.budget_bytes == expected


def test_pages_leave_at_four_fifths_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """HELM section 4.2.2, with no budget given."""
    engine = make_engine(memory=Paged(block_tokens=8), prefill_tokens=8)
    with_free(5 * KIB, engine, monkeypatch)
    engine.root(list(range(1, 42)))  # five pages of 1 KiB, of which the last crosses four fifths
    pages = [s.storage for s in sorted(engine.tree.segments(), key=lambda s: s.start)]
    assert [None not in kv.host for kv in pages] == [True, False, False, False, False]
    engine.root(list(range(60, 69)))
    assert [kv.is_resident for kv in pages] == [False, True, True, True, True]


def test_without_a_budget_branches_that_the_machine_has_no_room_for_take_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine()
    room = 3 * 20 * engine.memory.bytes_per_token
    monkeypatch.setattr("ttc.residency.base.machine_bytes", lambda: room)
    branches = engine.fork(engine.root([1, 2, 3]), 6)
    batch = engine.running_batch()
    batch.add(branches, Step(20), GREEDY)
    at_once = list[int]()
    while len(batch):
        batch.step()
        at_once.append(len(batch.rows))
    assert 0 < max(at_once) < 6
    alone = make_engine()
    branch = alone.root([1, 2, 3])
    alone.generate([branch], 20, sampling=GREEDY)
    assert [b.tokens for b in branches] == [branch.tokens] * 6
