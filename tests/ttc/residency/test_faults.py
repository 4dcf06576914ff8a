"""Budgets that are too small, copies that fail and steps that are cancelled, under every policy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.engines import GREEDY, make_engine
from tests.helpers.exactness import assert_same
from tests.helpers.links import failing_at
from tests.helpers.offloading import KIB, OFFLOADING, changed, eight
from tests.helpers.ownership import assert_nothing_left
from ttc import BeamGroups, Headwise, InvalidInput, Layerwise, OutOfMemory, Paged, Resident


@pytest.mark.parametrize(
    ("policy", "host_kib"), [(Paged(4 * KIB, block_tokens=8), 3), (Headwise(8 * KIB), 6)]
)
def test_a_host_too_small_for_one_branch_is_refused_and_leaves_the_tree_whole(
    policy: Any, host_kib: float
) -> None:
    engine = make_engine(memory=changed(policy, host_budget_gib=host_kib * KIB))
    branches = eight(engine)
    before = engine.kv_bytes()
    with pytest.raises(OutOfMemory, match=f"host KV budget of {host_kib * 1024:,} bytes"):
        engine.generate(branches[:1], 24)
    assert not any(branch.generated for branch in branches)  # refused up front
    assert engine.kv_bytes() == before
    assert_nothing_left(engine, branches)


@pytest.mark.slow
@pytest.mark.parametrize("link_gbps", [None, 1.0])
@pytest.mark.parametrize("policy", OFFLOADING)
@pytest.mark.parametrize("failing", [1, 2, 5, 11])
def test_a_copy_that_fails_stops_the_step_and_leaks_nothing(
    policy: Any, link_gbps: float | None, failing: int
) -> None:
    engine = make_engine(memory=changed(policy, link_gbps=link_gbps))
    branches = eight(engine)
    for queue in (engine.memory.link.to_device, engine.memory.link.to_host):
        queue.copy = failing_at(failing, queue.copy)  # type: ignore[method-assign]
    with pytest.raises(OSError, match="the link is down"):
        for _ in range(6):
            engine.generate(branches, 2)
    for queue in (engine.memory.link.to_device, engine.memory.link.to_host):
        del queue.copy
    assert_nothing_left(engine, branches)


def test_what_is_written_over_goes_to_the_host_again() -> None:
    results = []
    for memory in (Resident(), Paged(block_tokens=32)):
        engine = make_engine(memory=memory)
        first = engine.root(list(range(1, 10)))
        engine.generate([first], 12, sampling=GREEDY)
        if isinstance(memory, Paged):
            for storage in engine.memory.live:
                engine.memory.write_back(storage, "test")
        (other,) = engine.fork(first, 1, keep=len(first.tokens) - 6)
        engine.release([first])
        engine.extend([other], [[9, 8, 7, 6]]).result()
        if isinstance(memory, Paged):
            assert len(engine.memory.live) == 2  # it goes on where the first has written
            for storage in engine.memory.live:
                engine.memory.evict(storage, "test")
        engine.generate([other], 6, sampling=GREEDY)
        results.append(other)
    assert_same(results[1:], results[:1])


def test_a_block_gives_up_no_copy_of_its_own_for_the_room_of_the_others() -> None:
    engine = make_engine(memory=Paged(block_tokens=16))
    branch = engine.root(list(range(1, 18)))
    memory = engine.memory
    (storage,) = memory.live
    memory.write_back(storage, "test", [0])
    memory.host.budget_bytes = memory.host.used_bytes
    with pytest.raises(OutOfMemory):
        memory.evict(storage, "test")
    assert storage.is_resident and storage.host[0] is not None
    assert isinstance(engine.residency, Paged)
    memory.device.budget_bytes = memory.device.used_bytes
    engine.residency.write_ahead(2**40)  # as far as there is room
    assert storage.is_resident
    assert_nothing_left(engine, [branch])


def test_what_the_next_pass_will_write_does_not_leave_before_it() -> None:
    engine = make_engine(memory=Paged(block_tokens=32))
    memory, policy = engine.memory, engine.residency
    assert isinstance(policy, Paged)
    storage = policy.begin(engine.tree.trunk, 32, one_each=False)
    storage.filled = 8
    policy.settled([storage])
    storage.filled = 12  # four have places, and no KV yet
    policy.evict(storage)
    assert memory.link.to_host_bytes.total() == 8 * memory.bytes_per_token
    assert (storage.on_host, storage.filled) == (8, 12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Resident(0), "budget_gib=0"),
        (lambda: Paged(1, watermark=0), "watermark=0"),
        (lambda: Paged(1, host_budget_gib=-1), "host_budget_gib=-1"),
        (lambda: BeamGroups(1, block_tokens=0), "block_tokens=0"),
        (lambda: Headwise(1, head_group=0), "head_group=0"),
        (lambda: Layerwise(1, link_gbps=0), "link_gbps=0"),
    ],
)
def test_bad_settings_are_named(make: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make()
