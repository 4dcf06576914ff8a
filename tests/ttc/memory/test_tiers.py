"""Tiers, link and stream: what they hold, what they count, and what happens when something fails."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.engines import GREEDY, make_engine
from tests.helpers.links import failing_at, late
from tests.helpers.models import deep, prompt
from tests.helpers.tokenizers import Letters
from ttc import BeamGroups, Engine, Headwise, InvalidInput, Layerwise, OutOfMemory, Paged, Resident
from ttc.memory.link import contiguous_parts
from ttc.memory.manager import KV, Tier
from ttc.residency.base import Residency, balanced_sizes, to_bytes
from ttc.residency.beam_groups import schedule_beams
from ttc.trace import Trace
from ttc.tree.branch import Branch

KIB = 1 / 2**20
OFFLOADING = [
    Layerwise(8 * KIB),
    BeamGroups(7.5 * KIB, block_tokens=8),
    Paged(4 * KIB, block_tokens=8),
    Headwise(8 * KIB),
]
"""Policies that have to move KV for eight branches of the tiny model, whose token takes 128 bytes."""


def changed(policy: Any, **settings: Any) -> Any:
    other = copy.copy(policy)
    vars(other).update(settings)
    return other


def eight(engine: Engine) -> list[Branch]:
    root = engine.root(list(range(1, 41)))
    branches = engine.fork(root, 8)
    engine.release([root])
    return branches


# ---------------------------------------------------------------- grouping


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


# ---------------------------------------------------------------- bytes


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


def test_layerwise_moves_what_the_paper_says() -> None:
    """LBS Eq. 2 for each token, two layers being buffers: (layers - resident) x one layer's KV of all branches."""
    model = deep(layers=8, heads=1, context=256)
    engine = Engine(model, Letters(), memory=Layerwise(24 * KIB, shared=False))
    branches = engine.fork(engine.root(prompt(1, 33)), 4)
    before = engine.memory.link.to_device_bytes["stream"]
    engine.generate(branches, 8)
    layer_token = 2 * 8 * 4  # K and V, 8 wide, float32
    resident = 24 * 1024 // (4 * (32 + 8) * layer_token) - 2
    assert resident == 0
    expected = sum((8 - resident) * 4 * (32 + filled) * layer_token for filled in range(8))
    ahead = 4 * (32 + 8) * layer_token  # the first layer of a pass that did not come
    assert engine.memory.link.to_device_bytes["stream"] - before == expected + ahead


def test_usage_is_charged_with_what_moved() -> None:
    engine = make_engine(memory=Paged(4 * KIB, block_tokens=8))
    branches = eight(engine)
    engine.generate(branches, 4)
    usage, link = branches[0].usage, engine.memory.link
    assert usage.host_to_device_bytes == link.to_device_bytes.total() > 0
    assert usage.device_to_host_bytes == link.to_host_bytes.total() > 0


def test_headwise_holds_two_head_groups_and_the_tails() -> None:
    """HeadInfer Eq. 8: a 1 / (layers x heads) share of the KV, twice for ping-pong."""
    model, tokens, new = deep(layers=6, heads=4, context=1024), 801, 2
    plain = Engine(model, Letters())
    expected = plain.root(prompt(3, tokens))
    plain.generate([expected], new, sampling=GREEDY)
    engine = Engine(model, Letters(), memory=Headwise(head_group=1))
    branch = engine.root(prompt(3, tokens))
    engine.generate([branch], new, sampling=GREEDY)
    total = (tokens - 1) * engine.memory.bytes_per_token
    tails = new * engine.memory.bytes_per_token
    assert engine.memory.device.peak_bytes == 2 * total // (6 * 4) + tails
    assert branch.tokens == expected.tokens and branch.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


@pytest.mark.parametrize(("budget", "size"), [(1, 4), (2 * 2.5, 2), (2 * 1.3, 1)])
def test_headwise_adapts_its_group_to_the_budget(budget: float, size: int) -> None:
    """400 tokens of one head of one layer take 25 KiB: 16 numbers of float32."""
    policy = Headwise(None if budget == 1 else budget * 25 * KIB).bind(
        Engine(deep(2, 4, 64), Letters()).memory.shapes, torch.float32, torch.device("cpu")
    )
    assert policy.group_size(0, 400) == size


def test_pages_leave_oldest_first_at_the_watermark() -> None:
    engine = make_engine(memory=Paged(4 * KIB, block_tokens=8, watermark=0.5), prefill_tokens=8)
    engine.root(list(range(1, 34)))  # four pages of 1 KiB
    pages = [s.storage for s in sorted(engine.tree.segments(), key=lambda s: s.start)]
    assert [None not in kv.host for kv in pages] == [True, True, False, False]
    assert all(map(engine.memory.is_resident, pages))  # until their room is needed
    engine.root(list(range(60, 69)))
    assert [engine.memory.is_resident(kv) for kv in pages] == [False, True, True, True]
    assert [None not in kv.host for kv in pages] == [True, True, True, False]


def test_the_watermark_makes_room_without_waiting() -> None:
    memory = Paged(8 * KIB, block_tokens=8, watermark=0.5, link_gbps=1e-4)  # 10 ms a page
    engine = make_engine(memory=memory, prefill_tokens=8)
    link = engine.memory.link
    root = engine.root(list(range(1, 50)))  # six pages
    assert link.to_host_bytes.total() == 2 * 1024 and link.exposed_s == 0
    assert all(map(engine.memory.is_resident, engine.memory.live))
    for kv in engine.memory.live:
        link.complete(kv.written)  # as if computing had taken that long
    waited = link.exposed_s
    engine.generate([root], 12, sampling=GREEDY)
    engine.root(list(range(60, 77)))  # two pages more than fit
    assert link.exposed_s == waited and link.to_host_bytes.total() > 2 * 1024
    assert sum(map(engine.memory.is_resident, engine.memory.live)) < len(engine.memory.live)
    plain = make_engine()
    expected = plain.root(list(range(1, 50)))
    plain.generate([expected], 12, sampling=GREEDY)
    assert root.tokens == expected.tokens and root.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


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


def test_pruning_does_not_wait_for_the_link() -> None:
    engine = make_engine(memory=Headwise(48 * KIB, link_gbps=1e-4))
    branch = engine.root(list(range(1, 41)))
    waited = engine.memory.link.exposed_s
    engine.release([branch])
    assert engine.memory.link.exposed_s == waited
    assert engine.kv_bytes() == 0


def test_a_host_copy_is_given_up_before_anything_is_refused() -> None:
    engine = make_engine(memory=Paged(16 * KIB, host_budget_gib=2 * KIB, block_tokens=8))
    branch = engine.root(list(range(1, 34)))  # four pages of 1 KiB
    memory, (first, second, third, _) = engine.memory, list(engine.memory.live)
    expected = engine.score([branch], [[[5, 6]]])
    for kv in (first, second):
        memory.write_back(kv, "test")
    memory.evict(second, "test")
    memory.evict(third, "test")
    assert [None not in kv.host for kv in (first, second, third)] == [False, True, True]
    assert memory.host.used_bytes == 2 * 1024
    with pytest.raises(OutOfMemory, match="host KV budget of 2,048 bytes"):
        memory.evict(first, "test")
    assert memory.is_resident(first)
    assert engine.score([branch], [[[5, 6]]])[0][0] == pytest.approx(expected[0][0], abs=1e-4)


@pytest.mark.parametrize("block_tokens", [4, 8, 16])
@pytest.mark.parametrize("prefetch", [True, False])
def test_pages_that_leave_for_buffers_are_read_from_the_host(block_tokens: int, prefetch: bool) -> None:
    """Also when they leave in vain, because the room does not do for two buffers."""

    def run(memory: Residency) -> list[float]:
        engine = Engine(model, Letters(), prefill_tokens=5, memory=memory)
        root = engine.root(prompt(1, 18))
        branches = [root, *engine.fork(root, 1)]
        engine.generate(branches, 3)
        assert memory.budget_gib is None or engine.memory.device.peak_bytes <= memory.budget_gib * 2**30
        return [logprob for branch in branches for logprob in branch.logprobs]

    model = deep(layers=3, heads=2, context=64)
    expected, served = run(Resident()), 0
    for budget in range(1400, 6000, 200):
        try:
            found = run(Paged(budget / 2**30, block_tokens=block_tokens, prefetch=prefetch))
        except OutOfMemory:
            continue
        assert found == pytest.approx(expected, abs=1e-4)
        served += 1
    assert served > 5


@pytest.mark.slow
def test_64k_tokens_under_a_hundredth_of_their_kv() -> None:
    model, tokens = deep(layers=4, heads=1, context=2**17), prompt(5, 65_537)
    plain = Engine(model, Letters(), prefill_tokens=2048)
    expected = plain.root(tokens)
    plain.generate([expected], 3, sampling=GREEDY)
    total = 65_536 * plain.memory.bytes_per_token
    plain.release([expected])
    engine = Engine(model, Letters(), prefill_tokens=2048, memory=Paged(total / 100 / 2**30))
    branch = engine.root(tokens)
    engine.generate([branch], 3, sampling=GREEDY)
    assert engine.memory.device.peak_bytes < total / 100
    assert branch.tokens == expected.tokens and branch.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


# ---------------------------------------------------------------- time


def test_a_fetch_overlaps_computing(tmp_path: Path) -> None:
    model = deep(layers=4, heads=2, context=2048, width=64)
    engine = Engine(model, Letters(), memory=Layerwise(1536 * KIB, link_gbps=0.2))
    engine.memory.link.trace = Trace()
    engine.generate([engine.root(prompt(1, 1025))], 3)
    engine.memory.link.trace.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    copies = [e for e in events if e["tid"] == "host to device"]
    passes = [e for e in events if e["tid"] == "compute"]
    assert copies and any(p["ts"] < c["ts"] + c["dur"] and c["ts"] < p["ts"] + p["dur"] for c in copies for p in passes)
    for one, following in pairwise(copies):
        assert one["ts"] + one["dur"] <= following["ts"] + 1  # one queue: microseconds of rounding
    for span in copies:
        assert span["dur"] >= span["args"]["bytes"] / 0.2e9 * 1e6 * 0.99


# ---------------------------------------------------------------- order of copies


def ragged(engine: Engine) -> list[Branch]:
    """Eight branches, each another, that leave their group one after the other."""
    branches = eight(engine)
    for limits in ([3, 1, 4, 1, 5, 2, 6, 5], [5, 6, 2, 5, 1, 4, 1, 3]):
        engine.generate(branches, limits)
    return branches


@pytest.mark.parametrize("policy", OFFLOADING)
def test_copies_may_come_as_late_as_they_are_waited_for(policy: Any) -> None:
    expected = ragged(make_engine())
    for one, other in zip(expected, ragged(late(make_engine(memory=policy))), strict=True):
        assert one.tokens == other.tokens and one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_a_prefetch_that_no_step_waited_for_arrives_before_it_is_read() -> None:
    """A step that breaks off leaves its prefetches under way."""
    engine = late(make_engine(memory=BeamGroups(block_tokens=8)))
    branch = engine.root(list(range(1, 41)))
    expected = engine.score([branch], [[[5, 6]]])[0]
    for kv in engine.memory.live:
        engine.memory.evict(kv, "test")
        engine.memory.fetch(kv, "prefetch")
    assert engine.score([branch], [[[5, 6]]])[0] == [pytest.approx(expected[0], abs=1e-4)]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
@settings(max_examples=50, deadline=None, derandomize=True)
def test_a_copy_falls_into_parts_that_are_contiguous_on_the_host(shape: list[int], data: Any) -> None:
    ends = [data.draw(st.integers(1, n)) for n in shape]
    host = torch.zeros(shape)[tuple(slice(data.draw(st.integers(0, end - 1)), end) for end in ends)]
    device = torch.rand(host.shape)
    for side, pair in enumerate([(host, device), (torch.zeros(host.shape), host)]):
        parts = list(contiguous_parts([pair], side))
        assert all(part[side].is_contiguous() for part in parts)
        assert len(parts) == 1 or not host.is_contiguous()
        for destination, source in parts:
            destination.copy_(source)
        assert (pair[0] == device).all()


# ---------------------------------------------------------------- compaction


@pytest.mark.parametrize(("kind", "room"), [(Resident, 8), (BeamGroups, 5), (Paged, 5)])
def test_a_full_device_still_compacts(kind: Any, room: int) -> None:
    """A step takes 4 tokens for its tails, and 4 more where they are frozen on the device; that, at 16 layers, is room
    for one layer of the longest chain, but far from room for all of them."""

    def run(memory: Residency) -> tuple[Engine, Branch, list[int]]:
        engine = Engine(deep(layers=16, heads=1, context=256), Letters(), memory=memory)
        branch, segments = engine.root(prompt(1, 33)), []
        for _ in range(10):
            engine.generate([branch], 4, sampling=GREEDY)
            segments.append(len(engine.tree.segments()))
        return engine, branch, segments

    plain, expected, segments = run(Resident())
    budget = (32 + 9 * 4 + room) * plain.memory.bytes_per_token
    engine, branch, found = run(kind(budget / 2**30))
    assert found == segments and max(segments) <= 3
    assert engine.memory.device.peak_bytes <= budget
    assert branch.tokens == expected.tokens and branch.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


# ---------------------------------------------------------------- failure


@pytest.mark.parametrize(
    "policy", [Layerwise(1 * KIB), BeamGroups(2 * KIB), Paged(0.5 * KIB, block_tokens=8), Headwise(0.5 * KIB)]
)
def test_a_budget_below_one_branch_is_refused_with_one_that_would_do(policy: Residency) -> None:
    def run(gib: float) -> Engine:
        policy.budget_gib = gib
        engine = make_engine(memory=policy)
        engine.generate(eight(engine), 6)
        return engine

    assert policy.budget_gib is not None
    budget = policy.budget_gib
    for _ in range(3):  # the prompt and the step each have their limit
        try:
            engine = run(budget)
            break
        except OutOfMemory as refused:
            assert "device KV budget" in str(refused)
            named = int(str(refused).split("a budget of ")[1].split(" bytes")[0].replace(",", ""))
            assert named / 2**30 > budget
            budget = named / 2**30
    assert budget > policy.budget_gib or engine.memory.device.peak_bytes <= budget * 2**30
    assert engine.memory.device.peak_bytes <= budget * 2**30


@pytest.mark.parametrize("policy", OFFLOADING)
def test_a_host_too_small_is_refused_and_leaves_the_tree_whole(policy: Any) -> None:
    engine = make_engine(memory=changed(policy, host_budget_gib=8 * KIB))
    branches = eight(engine)
    before = engine.kv_bytes()
    with pytest.raises(OutOfMemory, match="host KV budget of 8,192 bytes"):
        engine.generate(branches, 11)
    assert not any(branch.generated for branch in branches)  # refused up front
    assert_whole(engine, branches, before)


def test_layerwise_keeps_its_buffers_while_rows_freeze() -> None:
    """Rows that end early freeze beside the tails, and the others go on streaming."""

    def run(memory: Residency) -> tuple[Engine, list[Branch]]:
        engine = Engine(deep(layers=8, heads=1, context=256), Letters(), memory=memory)
        branches = engine.fork(engine.root(prompt(1, 33)), 4)
        engine.generate(branches, [28, 28, 28, 32])
        return engine, branches

    expected = run(Resident())[1]
    engine, branches = run(Layerwise(60 * KIB))
    assert engine.memory.device.peak_bytes <= 60 * 1024
    for one, other in zip(expected, branches, strict=True):
        assert one.tokens == other.tokens and one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_layerwise_makes_room_for_idle_branches_too() -> None:
    """Whole layers are resident, so they hold the KV of branches that the step leaves out."""
    engine = Engine(deep(layers=8, heads=1, context=256), Letters(), memory=Layerwise(60 * KIB, shared=False))
    branches = engine.roots([[10 * salt + 9 + i % 7 for i in range(41)] for salt in range(8)])
    assert sum(kv.tokens for kv in engine.memory.live) == 8 * 40
    engine.generate(branches[:1], 4)
    assert len(branches[0].generated) == 4
    assert engine.memory.device.peak_bytes <= 60 * 1024


def test_a_long_step_freezes_into_blocks() -> None:
    for policy in (Paged(block_tokens=8), BeamGroups(block_tokens=8), Layerwise(block_tokens=8)):
        engine = make_engine(memory=policy)
        branch = engine.root([1, 2, 3, 4])
        engine.generate([branch], 21, sampling=GREEDY)
        assert [len(s.tokens) for s in engine.leaf(branch).path()] == [3, 8, 8, 5]
        assert branch.step_ends == [25]
        engine.generate([branch], 2, sampling=GREEDY)
        plain = make_engine()
        expected = plain.root([1, 2, 3, 4])
        plain.generate([expected], 23, sampling=GREEDY)
        assert branch.tokens == expected.tokens


def test_a_split_page_keeps_its_age() -> None:
    engine = make_engine(memory=Paged(block_tokens=16))
    engine.roots([[*range(1, 17)], [*range(40, 56)]])
    second = list(engine.memory.live)[1]
    other = engine.root([*range(1, 11), 99, 98])
    upper, lower = (
        segment.storage for segment in (engine.leaf(other).path()[0], engine.tree.trunk.children[0].children[0])
    )
    assert list(engine.memory.live)[:3] == [upper, lower, second]


@pytest.mark.parametrize("nbytes", [1, 999, 8_640, 2**30, 2**30 + 1, 7_654_321_987, 3 * 2**43 + 5])
def test_the_gib_that_a_message_names_are_enough(nbytes: int) -> None:
    with pytest.raises(OutOfMemory) as refused:
        Tier("device", 0).require(nbytes)
    named = str(refused.value).split(" GiB)")[0].split("(")[-1]
    enough = to_bytes(float(named))
    assert enough is not None and nbytes <= enough <= 1.001 * nbytes + 1


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("[...] can't allocate")])
def test_an_allocator_that_fails_is_named(error: RuntimeError, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert_whole(engine, [branch])


def assert_whole(engine: Engine, branches: Sequence[Branch], kv_bytes: int | None = None) -> None:
    """Exactly the referenced segments hold KV, in budgets that add up."""
    segments = engine.tree.segments()
    assert set(engine.memory.live) == {s.storage for s in segments}
    sums = [sum(sizes) for sizes in zip(*(engine.memory.tier_bytes(s.storage) for s in segments), strict=True)]
    assert [engine.memory.device.used_bytes, engine.memory.host.used_bytes] == (sums or [0, 0])
    for branch in branches:
        assert [t for s in engine.leaf(branch).path() for t in s.tokens] == branch.tokens[:-1]
    assert kv_bytes is None or engine.kv_bytes() == kv_bytes
    engine.release(branches)
    assert engine.kv_bytes() == 0 and not engine.memory.live


@pytest.mark.parametrize("link_gbps", [None, 1.0])
@pytest.mark.parametrize("policy", OFFLOADING)
@pytest.mark.parametrize("failing", range(1, 21))
def test_a_copy_that_fails_stops_the_step_and_leaks_nothing(policy: Any, link_gbps: float | None, failing: int) -> None:
    engine = make_engine(memory=changed(policy, link_gbps=link_gbps))
    branches = eight(engine)
    for queue in (engine.memory.link._in, engine.memory.link._out):
        queue._copy = failing_at(failing, queue._copy)  # type: ignore[method-assign]
    with pytest.raises(OSError, match="the link is down"):
        for _ in range(4):
            engine.generate(branches, 2)
    for queue in (engine.memory.link._in, engine.memory.link._out):
        del queue._copy
    assert_whole(engine, branches)


@pytest.mark.parametrize("link_gbps", [None, 1.0])
def test_a_failed_fetch_is_not_forgotten_when_the_next_one_works(link_gbps: float | None) -> None:
    engine = make_engine(memory=Paged(block_tokens=8, link_gbps=link_gbps))
    branch = engine.root([1, 2, 3, 4, 5])
    memory, (kv,) = engine.memory, engine.memory.live
    memory.evict(kv, "test")
    memory.link._in._copy = failing_at(1, memory.link._in._copy)  # type: ignore[method-assign]
    for layer in (0, 1):
        memory.fetch(kv, "test", [layer])
    with pytest.raises(OSError, match="the link is down"):
        memory.settle(kv)
    engine.release([branch])
    assert engine.kv_bytes() == 0


@pytest.mark.parametrize("policy", OFFLOADING)
def test_a_cancelled_step_keeps_what_it_has(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(memory=policy)
    branches = eight(engine)
    forward, calls = engine.forward, iter(range(100))

    def cancelled(*arguments: Any) -> torch.Tensor:
        if next(calls) == 4:
            raise KeyboardInterrupt
        return forward(*arguments)

    monkeypatch.setattr(engine, "forward", cancelled)
    with pytest.raises(KeyboardInterrupt):
        for _ in range(4):
            engine.generate(branches, 3)
    assert_whole(engine, branches)


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


def test_two_engines_share_a_policy_but_no_memory() -> None:
    policy = Paged(4 * KIB)
    first, second = make_engine(memory=policy), make_engine(memory=policy)
    first.root([1, 2, 3])
    assert first.memory is not second.memory and second.kv_bytes() == 0
