"""The two tiers: what they hold, what they refuse, and what their messages name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.helpers.engines import make_engine
from tests.helpers.offloading import KIB
from tests.helpers.ownership import assert_nothing_left
from ttc import OutOfMemory, Paged
from ttc.memory.tiers import Tier
from ttc.residency.base import to_bytes


def test_a_host_copy_is_given_up_before_anything_is_refused() -> None:
    engine = make_engine(memory=Paged(16 * KIB, host_budget_gib=2 * KIB, block_tokens=8))
    branch = engine.root(list(range(1, 34)))  # four pages of 1 KiB
    memory, (first, second, third, _) = engine.memory, list(engine.memory.live)
    expected = engine.score([branch], [[[5, 6]]]).result()
    for kv in (first, second):
        memory.write_back(kv, "test")
    memory.evict(second, "test")
    memory.evict(third, "test")
    assert [None not in kv.host for kv in (first, second, third)] == [False, True, True]
    assert memory.host.used_bytes == 2 * 1024
    with pytest.raises(OutOfMemory, match="host KV budget of 2,048 bytes"):
        memory.evict(first, "test")
    assert memory.is_resident(first)
    assert engine.score([branch], [[[5, 6]]]).result()[0][0] == pytest.approx(
        expected[0][0], abs=1e-4
    )


@pytest.mark.parametrize("nbytes", [1, 999, 8_640, 2**30, 2**30 + 1, 7_654_321_987, 3 * 2**43 + 5])
def test_the_gib_that_a_message_names_are_enough(nbytes: int) -> None:
    with pytest.raises(OutOfMemory) as refused:
        Tier("device", 0).require(nbytes)
    named = str(refused.value).split(" GiB)")[0].split("(")[-1]
    enough = to_bytes(float(named))
    assert enough is not None and nbytes <= enough <= 1.001 * nbytes + 1


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("[...] can't allocate")]
)
def test_an_allocator_that_fails_is_named(
    error: RuntimeError, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(memory=Paged(block_tokens=8))
    branch = engine.root([1, 2, 3, 4])

    def empty(*_: Any, **__: Any) -> torch.Tensor:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("ttc.memory.manager.torch.empty", empty)
        with pytest.raises(OutOfMemory, match="no room for 448 bytes of KV in the device tier"):
            engine.memory.allocate(7)
        with pytest.raises(OutOfMemory, match="no room for 40 bytes of KV in the device tier"):
            engine.memory.reserve(10)
    assert engine.memory.device.used_bytes == 3 * 128
    engine.generate([branch], 2)
    assert_nothing_left(engine, [branch])


def test_two_engines_share_a_policy_but_no_memory() -> None:
    policy = Paged(4 * KIB)
    first, second = make_engine(memory=policy), make_engine(memory=policy)
    first.root([1, 2, 3])
    assert first.memory is not second.memory and second.kv_bytes() == 0
