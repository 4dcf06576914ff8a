"""Beam groups: which beams meet in one, and which blocks move for them. (LBS, Algorithm 1)"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.engines import GREEDY, make_engine
from tests.helpers.exactness import assert_like_plain
from tests.helpers.links import late
from tests.helpers.models import build, prompt
from tests.helpers.offloading import KIB, eight
from tests.helpers.tokenizers import Letters
from ttc import BeamGroups, Engine, OutOfMemory
from ttc.memory.kv import KV
from ttc.residency.base import balanced_sizes
from ttc.residency.beam_groups import schedule_beams


def blocks(*sizes: int) -> list[KV]:
    return [KV(1, size) for size in sizes]


def overlap(kv: KV) -> int:
    return kv.tokens


def test_balanced_grouping_is_the_papers() -> None:
    assert balanced_sizes(16, 3) == [5, 5, 6]
    shared, *own = blocks(1, *[1] * 16)
    paths = [[shared, kv] for kv in own]
    greedy = schedule_beams(paths, overlap, 0, 8)
    assert [len(g) for g in greedy] == [7, 7, 2]
    assert [len(g) for g in schedule_beams(paths, overlap, 0, 8, limits=balanced_sizes(16, 3))] == [5, 5, 6]


def test_beams_that_share_blocks_meet_in_a_group() -> None:
    a, b, *own = blocks(10, 10, *[1] * 6)
    paths = [[a, own[0]], [b, own[1]], [a, own[2]], [b, own[3]], [a, own[4]], [b, own[5]]]
    assert schedule_beams(paths, overlap, 0, 13) == [[0, 2, 4], [1, 3, 5]]
    assert schedule_beams(paths, overlap, 0, 13, resident=lambda kv: kv is b) == [[1, 3, 5], [0, 2, 4]]
    assert [len(g) for g in schedule_beams(paths, overlap, 0, 33, shared=False)] == [3, 3]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_groups_hold_every_beam_once_within_the_budget(data: Any) -> None:
    pool = blocks(*data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=8)))
    paths = data.draw(st.lists(st.lists(st.sampled_from(pool), min_size=1, unique=True), min_size=1, max_size=9))
    tail, budget = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 40))
    largest = max(sum(kv.tokens for kv in path) for path in paths) + tail
    if largest > budget:
        with pytest.raises(OutOfMemory, match="would do"):
            schedule_beams(paths, overlap, tail, budget)
        return
    groups = schedule_beams(paths, overlap, tail, budget)
    assert sorted(beam for group in groups for beam in group) == list(range(len(paths)))
    for group in groups:
        union = {kv for beam in group for kv in paths[beam]}
        assert sum(kv.tokens for kv in union) + tail * len(group) <= budget


def test_groups_move_each_missing_block_once_and_nothing_when_all_fits() -> None:
    engine = make_engine(memory=BeamGroups(1, block_tokens=8))
    engine.generate(eight(engine), 6)
    assert not engine.memory.link.to_device_bytes and not engine.memory.link.to_host_bytes
    engine = make_engine(memory=BeamGroups(7.5 * KIB, block_tokens=8, shared=True))
    branches = eight(engine)
    engine.generate(branches, 6)
    engine.generate(branches, 6)
    moved = engine.memory.link.to_device_bytes.total()
    assert isinstance(engine.residency, BeamGroups)
    assert 0 < engine.residency.needed_bytes <= moved <= 1.1 * engine.residency.needed_bytes


def test_what_leaves_for_a_group_is_written_back_while_the_one_before_it_decodes() -> None:
    engine = make_engine(memory=BeamGroups(20 * KIB, block_tokens=8))
    branches = engine.roots([[10 * salt + i for i in range(17)] for salt in range(1, 9)])  # 2 KiB each, all there
    assert isinstance(engine.residency, BeamGroups) and not engine.memory.host.used_bytes
    residency, enter, written = engine.residency, engine.residency.enter, list[list[bool]]()

    def watched(*arguments: Any) -> KV:
        before = [(kv, None not in kv.host) for kv in engine.memory.live if engine.memory.is_resident(kv)]
        tails = enter(*arguments)
        written.append([there for kv, there in before if not engine.memory.is_resident(kv)])
        return tails

    residency.enter = watched  # type: ignore[method-assign]
    engine.generate(branches, 16)
    first, second = written
    assert first and not any(first)  # nothing came before
    assert second and all(second)


def test_a_prefetch_that_no_step_waited_for_arrives_before_it_is_read() -> None:
    """A step that breaks off leaves its prefetches under way."""
    engine = late(make_engine(memory=BeamGroups(block_tokens=8)))
    branch = engine.root(list(range(1, 41)))
    expected = engine.score([branch], [[[5, 6]]])[0]
    for kv in engine.memory.live:
        engine.memory.evict(kv, "test")
        engine.memory.fetch(kv, "prefetch")
    assert engine.score([branch], [[[5, 6]]])[0] == [pytest.approx(expected[0], abs=1e-4)]


def test_groups_fetch_no_layer_that_its_window_hides() -> None:
    """Once a branch is far longer than the window, only the other layers of its old blocks come to the device."""
    plain = build("gemma3")
    engine = Engine(copy.deepcopy(plain), Letters(), memory=BeamGroups(block_tokens=8))
    branch = engine.root(prompt(1, 49))
    memory = engine.memory
    for kv in memory.live:
        memory.evict(kv, "test")
    engine.generate([branch], 2, sampling=GREEDY)
    windows = [shape.window for shape in memory.shapes]
    assert any(windows)
    expected = 0
    for segment in branch.leaf.path():
        for layer, window in enumerate(windows):
            hidden = window is not None and segment.end - 1 <= 48 - window
            assert segment.start >= 48 or hidden == (segment.storage.device[layer] is None)
            expected += 0 if hidden or segment.start >= 48 else memory.layer_bytes(segment.storage, layer)
    assert memory.link.to_device_bytes == {"group": expected}
    assert expected < 48 * memory.bytes_per_token
    assert_like_plain(plain, branch)
