"""Beam groups: which blocks move for them, when, and what leaves first. (LBS, section 4)"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.helpers.engines import GREEDY, make_engine
from tests.helpers.exactness import assert_like_plain, assert_same
from tests.helpers.links import late
from tests.helpers.models import build, prompt
from tests.helpers.offloading import KIB, eight
from tests.helpers.ownership import assert_nothing_left
from tests.helpers.tokenizers import Letters
from ttc import BeamGroups, Engine
from ttc.branch import Branch
from ttc.memory.link import DryLink


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
    assert 0 < engine.residency.needed_bytes <= moved <= 1.25 * engine.residency.needed_bytes


def test_what_leaves_for_a_group_is_written_back_while_the_one_before_it_decodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine(memory=BeamGroups(20 * KIB, block_tokens=8))
    # 2 KiB each, all there
    branches = engine.roots([[10 * salt + i for i in range(17)] for salt in range(1, 9)]).result()
    assert isinstance(engine.residency, BeamGroups) and not engine.memory.host.used_bytes
    enter, written = BeamGroups.enter, list[list[bool]]()

    def watched(policy: BeamGroups, paths: Any) -> None:
        if isinstance(policy.memory.link, DryLink):  # the step is tried first
            return enter(policy, paths)
        before = [(kv, None not in kv.host) for kv in engine.memory.live if kv.is_resident]
        enter(policy, paths)
        written.append([there for kv, there in before if not kv.is_resident])
        return None

    monkeypatch.setattr(BeamGroups, "enter", watched)
    engine.generate(branches, 16)
    first, second = written
    assert first and not any(first)  # nothing came before
    assert second and all(second)


def separate(engine: Engine, count: int) -> list[Branch]:
    """Branches that share nothing, in depth-first order: 16 tokens each, in two blocks."""
    return engine.roots(
        [[10 * salt + i for i in range(17)] for salt in range(1, count + 1)]
    ).result()


@pytest.mark.parametrize("prefetch", [True, False])
def test_the_next_groups_blocks_are_fetched_while_one_decodes(
    prefetch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(memory=BeamGroups(20 * KIB, block_tokens=8, prefetch=prefetch))
    # 2 KiB each, and tails of 1 KiB: two at a time when all are on the host
    branches = separate(engine, 5)
    memory = engine.memory
    memory.device.budget_bytes = 7 * 1024
    for kv in memory.live:
        memory.evict(kv, "test")
    enter, missing = BeamGroups.enter, list[int]()

    def watched(policy: BeamGroups, paths: Any) -> None:
        if not isinstance(policy.memory.link, DryLink):  # the step is tried first
            missing.append(sum(not s.storage.is_resident for path in paths for s in path))
        enter(policy, paths)

    monkeypatch.setattr(BeamGroups, "enter", watched)
    engine.generate(branches, 8)
    first, *others = missing
    assert first > 0 and len(others) == 2
    # room for two blocks is left beside the first group, of one branch
    assert (sum(others) < 6) == prefetch
    assert (memory.link.to_device_bytes["prefetch"] > 0) == prefetch
    assert memory.link.to_device_bytes.total() == 5 * 2 * 1024  # each once


@pytest.mark.parametrize("prefetch", [True, False])
def test_private_copies_of_the_next_group_are_fetched_while_one_decodes(prefetch: bool) -> None:
    """LBS Figure 12 adds prefetching before it shares blocks."""
    plain = make_engine()
    expected = eight(plain)
    plain.generate(expected, 6, sampling=GREEDY)
    engine = make_engine(
        memory=BeamGroups(22 * KIB, block_tokens=8, shared=False, prefetch=prefetch)
    )
    branches = eight(engine)
    engine.generate(branches, 6, sampling=GREEDY)
    moved = engine.memory.link.to_device_bytes
    assert (moved["prefetch"] > 0) == prefetch
    # a copy for each, once
    assert moved["prefetch"] + moved["group"] == 8 * 39 * engine.memory.bytes_per_token
    assert_same(branches, expected)
    assert engine.memory.device.peak_bytes <= 22 * 1024
    assert_nothing_left(engine, branches)


def test_a_private_copy_is_of_no_use_to_who_sees_more_layers_of_it() -> None:
    """A long branch has a copy without the layer whose window hides it; a short one sees all."""
    plain = build("gemma2")
    memory = BeamGroups(20 * KIB, block_tokens=8, shared=False)
    engine = Engine(copy.deepcopy(plain), Letters(), memory=memory)
    root = engine.root(prompt(1, 13))
    branches = engine.fork(root, 3)
    engine.extend(branches[:2], [prompt(2, 14), prompt(3, 15)]).result()
    engine.generate([*branches, root], 6, sampling=GREEDY)
    for branch in branches:
        assert_like_plain(plain, branch)


def test_a_step_that_breaks_off_leaves_no_copies_for_the_next_group() -> None:
    engine = make_engine(memory=BeamGroups(22 * KIB, block_tokens=8, shared=False, prefetch=True))
    branches = eight(engine)

    def cancelled(*_: Any, **__: Any) -> Any:
        assert engine.memory.link.to_device_bytes["prefetch"] > 0
        raise KeyboardInterrupt

    engine.runner.forward = cancelled  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        engine.generate(branches, 6)
    assert_nothing_left(engine, branches)


def test_what_a_step_reads_last_leaves_first() -> None:
    engine = make_engine(memory=BeamGroups(20 * KIB, block_tokens=8))
    branches = separate(engine, 3)
    paths = [branch.leaf.path() for branch in branches]
    memory, residency = engine.memory, engine.residency
    memory.device.budget_bytes = 3 * 1024
    chosen = residency.groups(paths, 8)
    assert [len(group) for group in chosen] == [1, 1, 1]
    by_group = [[segment.storage for segment in paths[beam]] for (beam,) in chosen]
    memory.device.budget_bytes = None
    assert isinstance(residency, BeamGroups)
    assert residency.order() == [*by_group[2], *by_group[1], *by_group[0]]
    residency.enter([paths[i] for i in chosen[0]])
    memory.device.budget_bytes = memory.device.used_bytes
    assert residency.fits_beside(2 * 1024) and not residency.fits_beside(2 * 1024 + 1)
    assert [kv.is_resident for group in by_group for kv in group] == [True] * 4 + [False] * 2
    residency.enter([paths[i] for i in chosen[1]])
    # the first is read no more, and what is at work stays
    assert residency.order() == [*by_group[0], *by_group[2]]


def test_what_a_group_makes_is_written_back_while_it_decodes_where_another_one_follows() -> None:
    """Eight tokens at a time; what the last group makes stays where it is."""
    for budget, written in ((20, True), (64, False)):
        engine = make_engine(memory=BeamGroups(budget * KIB, block_tokens=16))
        branches = separate(engine, 6)
        engine.generate(branches, 16, sampling=GREEDY)
        assert (engine.memory.link.to_host_bytes["write-back"] > 0) == written
        engine.release(branches)
        assert not engine.memory.live


def test_algorithm_1_stays_where_it_makes_fewer_groups_than_balanced_grouping() -> None:
    """2, 3, 2 and 1 blocks of 1 KiB and tails of as much, with room for 6. What is on the device
    begins: the first and the third, then the others. Neighbours would make three groups."""
    engine = make_engine(memory=BeamGroups(20 * KIB, block_tokens=8, prefetch=True))
    lengths = (17, 25, 17, 9)
    branches = engine.roots(
        [[30 * n + i for i in range(m)] for n, m in enumerate(lengths)]
    ).result()
    paths = [branch.leaf.path() for branch in branches]
    engine.memory.device.budget_bytes = 6 * 1024
    for beam in (1, 3):
        for segment in paths[beam]:
            engine.memory.evict(segment.storage, "test")
    assert engine.residency.groups(paths, 8) == [[0, 2], [1, 3]]


def test_balanced_grouping_is_taken_where_it_needs_no_more_groups() -> None:
    """Seven beams, and room for three."""
    for prefetch, sizes in ((True, [2, 2, 3]), (False, [1, 3, 3])):
        engine = make_engine(memory=BeamGroups(22 * KIB, block_tokens=8, prefetch=prefetch))
        paths = [branch.leaf.path() for branch in separate(engine, 7)]
        engine.memory.device.budget_bytes = 9 * 1024
        assert sorted(len(group) for group in engine.residency.groups(paths, 8)) == sizes


def test_a_prefetch_that_no_step_waited_for_arrives_before_it_is_read() -> None:
    """A step that breaks off leaves its prefetches under way."""
    engine = late(make_engine(memory=BeamGroups(block_tokens=8)))
    branch = engine.root(list(range(1, 41)))
    expected = engine.score([branch], [[[5, 6]]]).result()[0]
    for kv in engine.memory.live:
        engine.memory.evict(kv, "test")
        engine.memory.fetch(kv, "prefetch")
    assert engine.score([branch], [[[5, 6]]]).result()[0] == [pytest.approx(expected[0], abs=1e-4)]


def test_layers_that_its_window_hides_leave_where_a_group_needs_the_room() -> None:
    plain = build("gemma2")
    engine = Engine(copy.deepcopy(plain), Letters(), memory=BeamGroups(10 * KIB, block_tokens=8))
    branch = engine.root(prompt(1, 40))
    for _ in range(3):
        engine.generate([branch], 8, sampling=GREEDY)
    assert_like_plain(plain, branch)


def test_groups_fetch_no_layer_that_its_window_hides() -> None:
    """Once a branch is far longer than the window, only the other layers of its old blocks come to
    the device."""
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
            expected += (
                0 if hidden or segment.start >= 48 else memory.piece_bytes(segment.storage, layer)
            )
    assert memory.link.to_device_bytes == {"group": expected}
    assert expected < 48 * memory.bytes_per_token
    assert_like_plain(plain, branch)
