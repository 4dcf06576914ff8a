"""A step's copies, its tails and what it is charged, under every policy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.engines import GREEDY, make_engine
from tests.helpers.exactness import assert_same
from tests.helpers.models import deep, prompt
from tests.helpers.offloading import KIB, eight
from tests.helpers.tiers import slow
from tests.helpers.tokenizers import Letters
from ttc import BeamGroups, Engine, Layerwise, Paged, Resident
from ttc.branch import Branch
from ttc.residency.base import Residency
from ttc.step import Step


def test_usage_is_charged_with_what_moved() -> None:
    engine = make_engine(memory=Paged(4 * KIB, block_tokens=8))
    branches = eight(engine)
    engine.generate(branches, 4)
    usage, link = branches[0].usage, engine.memory.link
    assert usage.host_to_device_bytes == link.to_device_bytes.total() > 0
    assert usage.device_to_host_bytes == link.to_host_bytes.total() > 0


@pytest.mark.parametrize(("kind", "room"), [slow((Resident, 4)), slow((BeamGroups, 4)), (Paged, 4)])
def test_a_full_device_is_enough(kind: Any, room: int) -> None:
    """A step writes 4 tokens, and nothing is copied when it is over."""

    def run(memory: Residency) -> tuple[Engine, Branch]:
        engine = Engine(deep(layers=4, heads=1, context=256), Letters(), memory=memory)
        branch = engine.root(prompt(1, 33))
        for _ in range(10):
            engine.generate([branch], 4, sampling=GREEDY)
        return engine, branch

    plain, expected = run(Resident())
    budget = (32 + 9 * 4 + room) * plain.memory.bytes_per_token
    engine, branch = run(kind(budget / 2**30))
    assert engine.memory.device.peak_bytes <= budget
    assert_same([branch], [expected])


def test_a_step_needs_no_room_beside_what_is_left_where_it_goes_on() -> None:
    token_bytes = make_engine().memory.bytes_per_token
    engine = make_engine(memory=Resident((16 + 8) * token_bytes / 2**30))
    branch = engine.root(list(range(1, 18)))
    batch = engine.running_batch()
    batch.add([branch], Step(8), GREEDY)
    for _ in range(4):
        batch.step()
    batch.close()
    engine.generate([branch], 4, sampling=GREEDY)
    assert len(branch.generated) == 8 and branch.usage.recomputed_tokens == 0


def test_a_long_step_freezes_into_blocks() -> None:
    for policy in (Paged(block_tokens=8), BeamGroups(block_tokens=8), Layerwise(block_tokens=8)):
        engine = make_engine(memory=policy)
        branch = engine.root([1, 2, 3, 4])
        engine.generate([branch], 21, sampling=GREEDY)
        assert [len(s.tokens) for s in branch.leaf.path()] == [3, 8, 8, 5]
        assert branch.step_ends == [25]
        engine.generate([branch], 2, sampling=GREEDY)
        plain = make_engine()
        expected = plain.root([1, 2, 3, 4])
        plain.generate([expected], 23, sampling=GREEDY)
        assert branch.tokens == expected.tokens
