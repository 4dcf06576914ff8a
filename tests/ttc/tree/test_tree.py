"""The KV tree alone: cutting, walking and joining segments keeps tokens, KV bytes and references
right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ttc.memory.recut import can_recut

from tests.helpers.tiers import examples
from ttc import OutOfMemory, Paged
from ttc.memory.kv import LayerShape
from ttc.memory.manager import KVMemory
from ttc.residency.base import Residency
from ttc.residency.resident import Resident
from ttc.tree.segment import MERGE_RATIO, MIN_SHARED_TOKENS, Segment, worth_sharing
from ttc.tree.tree import Tree

LARGEST = 56
"""Bytes that a token takes in the larger of the two layers; in both it takes 72."""


def make_tree(budget_tokens: int | None = None, policy: type[Residency] = Resident) -> Tree:
    shapes = (LayerShape(2, 4, 3), LayerShape(1, 2, 2))
    budget = None if budget_tokens is None else 72 * budget_tokens / 2**30
    bound = policy(budget).bind(shapes, torch.float32, torch.device("cpu"))
    return Tree(bound.memory, bound.block_tokens)


def tensors(segment: Segment) -> list[torch.Tensor]:
    copies = [*segment.storage.device, *segment.storage.host]
    return [part for copy in copies if copy is not None for part in copy.both]


def grow(tree: Tree, parent: Segment, tokens: list[int]) -> Segment:
    """A held segment whose KV at each token is that token, in every layer and head."""
    segment = tree.hold(tree.attach(parent, tokens, tree.memory.allocate(len(tokens))))
    for part in tensors(segment):
        part.copy_(torch.tensor(tokens, dtype=torch.float32)[:, None].expand_as(part))
    return segment


def check(tree: Tree) -> None:
    """Every copy of every segment holds its tokens, and the tiers count exactly what there is."""
    memory, segments = tree.memory, tree.segments()
    assert set(memory.live) == {s.storage for s in segments}
    sizes = [memory.tier_bytes(s.storage) for s in segments]
    assert (memory.device.used_bytes, memory.host.used_bytes) == (
        sum(d for d, _ in sizes),
        sum(h for _, h in sizes),
    )
    for tier in (memory.device, memory.host):
        assert tier.budget_bytes is None or tier.peak_bytes <= tier.budget_bytes
    for segment in segments:
        assert segment.parent is not None and segment.start == segment.parent.end
        assert all(
            segment.storage.device[layer] or segment.storage.host[layer] for layer in range(2)
        )
        for part in tensors(segment):
            assert (part == torch.tensor(segment.tokens)[:, None]).all()


def lengths(segment: Segment) -> list[int]:
    return [len(s.tokens) for s in segment.path()]


def test_a_split_keeps_the_lower_part_and_all_kv() -> None:
    tree = make_tree()
    segment = grow(tree, tree.trunk, list(range(20)))
    child = grow(tree, segment, [50, 51])
    upper = tree.split(segment, 12)
    assert (upper.tokens, segment.tokens) == (list(range(12)), list(range(12, 20)))
    assert (upper.start, segment.start, child.start) == (0, 12, 20)
    assert (upper.refs, segment.refs, child.refs) == (1, 2, 1)
    assert (tree.trunk.children, upper.children, segment.children) == ([upper], [segment], [child])
    check(tree)
    for held in (segment, child):
        tree.drop(held)
    assert tree.memory.device.used_bytes == 0 and tree.segments() == [] and tree.trunk.refs == 0


@pytest.mark.parametrize(
    ("tokens", "path"),
    [
        ([*range(20), 50, 51, 9], [20, 2]),  # through both segments, past the end
        (list(range(20)), [20]),
        ([*range(20), 50, 99], [20]),  # one token into a child: too little to cut it for
        (list(range(MIN_SHARED_TOKENS)), [MIN_SHARED_TOKENS]),
        ([*range(15), 99], [15]),
        (list(range(MIN_SHARED_TOKENS - 1)), []),
        ([99], []),
        ([], []),
    ],
)
def test_descend_finds_or_cuts_the_longest_worthwhile_prefix(
    tokens: list[int], path: list[int]
) -> None:
    tree = make_tree()
    first = grow(tree, tree.trunk, list(range(20)))
    grow(tree, first, [50, 51])
    found = tree.descend(tree.trunk, tokens)
    assert lengths(found) == path
    assert [t for s in found.path() for t in s.tokens] == tokens[: sum(path)]
    check(tree)


def test_a_run_is_worth_sharing_whole_or_from_eight_tokens_on() -> None:
    run = list(range(20))
    assert worth_sharing(run, run[:MIN_SHARED_TOKENS]) and not worth_sharing(
        run, run[: MIN_SHARED_TOKENS - 1]
    )
    assert worth_sharing([5], [5, 6]) and not worth_sharing([5], [6]) and not worth_sharing([], [5])


def test_a_private_chain_is_joined_up_to_what_others_need() -> None:
    tree = make_tree()
    shared = grow(tree, tree.trunk, [1, 2, 3])
    a = grow(tree, shared, [4, 5, 6, 7])
    other = grow(tree, shared, [9])
    b = grow(tree, a, [8, 10])
    leaf = grow(tree, b, [11])
    for inner in (a, b):
        tree.drop(inner)
    tree.compact(leaf)
    assert (leaf.tokens, leaf.start, leaf.parent) == ([4, 5, 6, 7, 8, 10, 11], 3, shared)
    assert sorted(shared.children, key=lambda s: s.serial) == [other, leaf] and shared.refs == 3
    check(tree)
    for held in (shared, other, leaf):
        tree.drop(held)
    assert tree.memory.device.used_bytes == 0 and tree.segments() == []


def test_a_long_parent_is_not_copied_for_a_short_child() -> None:
    tree = make_tree()
    parent = grow(tree, tree.trunk, list(range(MERGE_RATIO + 1)))
    leaf = grow(tree, parent, [90])
    tree.drop(parent)
    tree.compact(leaf)
    assert lengths(leaf) == [MERGE_RATIO + 1, 1]
    check(tree)


def test_joining_waits_until_one_layer_of_the_copy_has_room() -> None:
    tree = make_tree(budget_tokens=4)
    parent = grow(tree, tree.trunk, [1, 2])
    leaf = grow(tree, parent, [3, 4])
    tree.drop(parent)
    tree.memory.device.budget_bytes = 4 * (72 + LARGEST) - 1
    tree.compact(leaf)
    assert lengths(leaf) == [2, 2]
    check(tree)
    tree.memory.device.budget_bytes += 1
    tree.compact(leaf)
    assert lengths(leaf) == [4] and tree.memory.device.peak_bytes == 4 * (72 + LARGEST)
    check(tree)


@pytest.mark.parametrize("room", [0, 11, 12, 15])
def test_a_split_without_room_leaves_the_tree_as_it_was(room: int) -> None:
    tree = make_tree(budget_tokens=20 + room)
    segment = grow(tree, tree.trunk, list(range(20)))
    with pytest.raises(OutOfMemory, match=f"a budget of {20 * (72 + LARGEST):,} bytes"):
        tree.split(segment, 12)
    assert tree.segments() == [segment] and tree.trunk.children == [segment]
    check(tree)
    tree.memory.device.budget_bytes = 20 * (72 + LARGEST)
    assert lengths(tree.split(segment, 12)) == [12]
    check(tree)


@pytest.mark.parametrize("failing", range(1, 7))
@pytest.mark.parametrize("change", ["compact", "split"])
def test_memory_that_runs_out_half_way_leaves_the_tree_whole(
    change: str, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An allocator may fail within the budget: a device is not ours alone."""
    tree = make_tree(policy=Paged)
    parent = grow(tree, tree.trunk, list(range(20)))
    leaf = grow(tree, parent, list(range(50, 60)))
    for segment in (parent, leaf):
        tree.memory.write_back(segment.storage, "test")
    tree.drop(parent)
    allocate, calls = KVMemory.buffer, iter(range(1, 100))

    def buffer(*arguments: Any, **options: Any) -> Any:
        if next(calls) == failing:
            raise torch.OutOfMemoryError("no memory")
        return allocate(*arguments, **options)

    def run() -> None:
        if change == "split":
            tree.split(parent, 12)
        else:
            tree.compact(leaf)

    monkeypatch.setattr(KVMemory, "buffer", buffer)
    buffers = {"compact": 4, "split": 8}[change]  # of two layers in two tiers
    if failing <= buffers:
        with pytest.raises(torch.OutOfMemoryError):
            run()
        assert lengths(leaf) == [20, 10]
        check(tree)
    run()
    assert lengths(leaf) == ([12, 8, 10] if change == "split" else [30])
    check(tree)
    tree.drop(leaf)
    assert (
        tree.memory.device.used_bytes == tree.memory.host.used_bytes == 0 and not tree.memory.live
    )


@given(st.data())
@settings(max_examples=examples(150))
def test_joining_and_cutting_keep_kv_in_whatever_tier_it_lies(data: Any) -> None:
    tree = make_tree(policy=Paged)
    memory = tree.memory
    parent = grow(tree, tree.trunk, list(range(data.draw(st.integers(2, 12)))))
    leaf = grow(tree, parent, list(range(50, 50 + data.draw(st.integers(3, 9)))))
    tree.drop(parent)
    for segment in (parent, leaf):
        for layer in range(2):
            place = data.draw(st.sampled_from(["device", "host", "both"]))
            if place != "device":
                memory.write_back(segment.storage, "test", [layer])
            if place == "host":
                memory.evict(segment.storage, "test", [layer])
    split = data.draw(st.booleans())
    cut = [parent] if split else [parent, leaf]
    were = [[(s.storage.device[layer], s.storage.host[layer]) for s in cut] for layer in range(2)]
    for tier in (memory.device, memory.host):
        tier.peak_bytes = tier.used_bytes
        tier.budget_bytes = tier.used_bytes + 8 * data.draw(st.integers(0, 300))
    fits = can_recut(memory, [s.storage for s in cut])
    before = lengths(leaf)
    if split:
        at = data.draw(st.integers(1, before[0] - 1))
        try:
            tree.split(parent, at)
            after, found = [at, before[0] - at, before[1]], [leaf.path()[0].storage, parent.storage]
        except OutOfMemory:
            assert not fits
            after, found = before, [parent.storage]
    else:
        tree.compact(leaf)
        after, found = (
            ([sum(before)] if fits and before[0] <= MERGE_RATIO * before[1] else before),
            [],
        )
        found = [leaf.storage] if len(after) == 1 else []
    assert lengths(leaf) == after
    check(tree)
    for kv in found if fits else []:
        for layer, copies in enumerate(were):
            on_device = all(device for device, _ in copies)
            assert (kv.device[layer] is not None) == on_device
            assert (kv.host[layer] is not None) == (
                not on_device or all(host for _, host in copies)
            )
    tree.drop(leaf)
    assert memory.device.used_bytes == memory.host.used_bytes == 0 and not memory.live
