"""The KV tree alone: cutting, walking and joining segments keeps tokens, KV bytes and references right."""

from __future__ import annotations

import pytest
import torch

from ttc import OutOfMemory
from ttc.memory import LayerShape
from ttc.residency import Resident
from ttc.tree import MERGE_RATIO, MIN_SHARED_TOKENS, Segment, Tree, worth_sharing


def make_tree(budget_tokens: int | None = None) -> Tree:
    shapes = (LayerShape(2, 4, 3), LayerShape(1, 2, 2))  # 18 elements, 72 bytes a token
    budget = None if budget_tokens is None else 72 * budget_tokens / 2**30
    return Tree(Resident(budget).bind(shapes, torch.float32, torch.device("cpu")))


def tensors(segment: Segment) -> list[torch.Tensor]:
    return [part for layer in range(2) for part in segment.storage.on_device(layer).both]


def grow(tree: Tree, parent: Segment, tokens: list[int]) -> Segment:
    """A held segment whose KV at each token is that token, in every layer and head."""
    segment = tree.hold(tree.attach(parent, tokens, tree.memory.allocate(len(tokens))))
    for part in tensors(segment):
        part.copy_(torch.tensor(tokens, dtype=torch.float32)[:, None].expand_as(part))
    return segment


def check(tree: Tree) -> None:
    assert tree.memory.device.used_bytes == 72 * sum(len(s.tokens) for s in tree.segments())
    for segment in tree.segments():
        assert segment.parent is not None and segment.start == segment.parent.end
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
def test_descend_finds_or_cuts_the_longest_worthwhile_prefix(tokens: list[int], path: list[int]) -> None:
    tree = make_tree()
    first = grow(tree, tree.trunk, list(range(20)))
    grow(tree, first, [50, 51])
    found = tree.descend(tree.trunk, tokens)
    assert lengths(found) == path
    assert [t for s in found.path() for t in s.tokens] == tokens[: sum(path)]
    check(tree)


def test_a_run_is_worth_sharing_whole_or_from_eight_tokens_on() -> None:
    run = list(range(20))
    assert worth_sharing(run, run[:MIN_SHARED_TOKENS]) and not worth_sharing(run, run[: MIN_SHARED_TOKENS - 1])
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


def test_joining_waits_when_the_budget_has_no_room_for_the_copy() -> None:
    tree = make_tree(budget_tokens=7)
    parent = grow(tree, tree.trunk, [1, 2])
    leaf = grow(tree, parent, [3, 4])
    tree.drop(parent)
    tree.compact(leaf)
    assert lengths(leaf) == [2, 2]
    check(tree)
    tree.memory.device.budget_bytes = 72 * 8
    tree.compact(leaf)
    assert lengths(leaf) == [4] and tree.memory.device.peak_bytes == 72 * 8
    check(tree)


@pytest.mark.parametrize("room", [0, 11, 12, 19])
def test_a_split_without_room_leaves_the_tree_as_it_was(room: int) -> None:
    tree = make_tree(budget_tokens=20 + room)
    segment = grow(tree, tree.trunk, list(range(20)))
    with pytest.raises(OutOfMemory):
        tree.split(segment, 12)
    assert tree.segments() == [segment] and tree.trunk.children == [segment]
    check(tree)
