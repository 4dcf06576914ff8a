"""Which beams meet in a group, and in how many rounds. (LBS, Algorithm 1 and Balanced Grouping)"""

from __future__ import annotations

from itertools import combinations, pairwise
from math import ceil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.tiers import examples
from ttc import OutOfMemory
from ttc.memory.storage import Storage
from ttc.residency.beam_scheduling import (
    Beams,
    balanced_grouping,
    balanced_rounds,
    balanced_sizes,
    schedule_beams,
)


def blocks(*sizes: int) -> list[Storage]:
    return [Storage(1, 0, size) for size in sizes]


def size(kv: Storage) -> int:
    return kv.room


def test_balanced_grouping_is_the_papers() -> None:
    assert balanced_sizes(16, 3) == [5, 5, 6]
    shared, *own = blocks(1, *[1] * 16)
    paths = [[shared, kv] for kv in own]
    assert [len(g) for g in schedule_beams(Beams(paths, size, 0, 8))] == [7, 7, 2]
    assert [len(g) for g in balanced_grouping(Beams(paths, size, 0, 8))] == [5, 5, 6]
    assert [len(g) for g in balanced_grouping(Beams(paths, size, 0, 14, shared=False))] == [5, 5, 6]


def test_rounds_are_the_fewest_and_in_order() -> None:
    assert balanced_rounds(5, 2) == [[0], [1, 2], [3, 4]]
    assert balanced_rounds(4, 2) == [[0, 1], [2, 3]]
    assert balanced_rounds(3, 3) == [[0, 1, 2]]


def test_beams_that_share_blocks_meet_in_a_group() -> None:
    a, b, *own = blocks(10, 10, *[1] * 6)
    paths = [[a, own[0]], [b, own[1]], [a, own[2]], [b, own[3]], [a, own[4]], [b, own[5]]]
    assert schedule_beams(Beams(paths, size, 0, 13)) == [[0, 2, 4], [1, 3, 5]]
    assert schedule_beams(Beams(paths, size, 0, 13, resident=lambda kv: kv is b)) == [
        [1, 3, 5],
        [0, 2, 4],
    ]
    assert [len(g) for g in schedule_beams(Beams(paths, size, 0, 33, shared=False))] == [3, 3]


def test_groups_follow_what_is_resident_and_what_they_share() -> None:
    trunk, left, right, *own = blocks(2, 4, 4, *[3] * 6)
    paths = [
        [trunk, left, own[0]],
        [trunk, left, own[1]],
        [trunk, right, own[2]],
        [trunk, right, own[3]],
        [own[4]],
    ]
    assert balanced_grouping(Beams(paths, size, 0, 12)) == [[0, 1], [2, 3], [4]]
    assert balanced_grouping(Beams(paths, size, 0, 12, resident=lambda kv: kv is right)) == [
        [2, 3],
        [0, 1],
        [4],
    ]


@pytest.mark.parametrize("schedule", [schedule_beams, balanced_grouping])
def test_a_group_follows_what_it_shares_with_the_one_before_it_alone(schedule: Any) -> None:
    """Each beam fills a group. One of the last two shares 10 with the first group, and with what
    was on the device before; the other shares 5 with the second group, and goes before it."""
    a, b, c, *own = blocks(10, 20, 5, 10, 15, 30, 35)
    paths = [[a, b, own[0]], [b, c, own[1]], [a, own[2]], [c, own[3]]]
    for resident in ((), (a,)):
        assert schedule(
            Beams(paths, size, 0, 40, resident=lambda kv, there=resident: kv in there)
        ) == [
            [0],
            [1],
            [3],
            [2],
        ]


@st.composite
def trees(draw: Any) -> tuple[list[list[Storage]], int]:
    """The paths of a random tree's leaves in depth-first order, and what each adds in a step."""
    parents = draw(st.lists(st.integers(0, 5), min_size=1, max_size=14))
    nodes = [([], blocks(draw(st.integers(1, 9)))[0])]
    paths: list[list[Storage]] = [[nodes[0][1]]]
    for parent in parents:
        above = paths[parent % len(paths)]
        paths.append([*above, *blocks(draw(st.integers(1, 9)))])
    inner = {id(kv) for path in paths for kv in path[:-1]}
    leaves = [path for path in paths if id(path[-1]) not in inner]
    order = {id(kv): i for i, kv in enumerate(kv for path in paths for kv in path)}
    return sorted(leaves, key=lambda path: [order[id(kv)] for kv in path])[:9], draw(
        st.integers(0, 3)
    )


def group_bytes(paths: list[list[Storage]], group: list[int], tail: int, shared: bool) -> int:
    read = [kv for beam in group for kv in paths[beam]]
    return sum(kv.room for kv in (set(read) if shared else read)) + tail * len(group)


@given(trees(), st.integers(1, 60), st.booleans())
@settings(max_examples=examples(200))
def test_balanced_grouping_takes_the_fewest_rounds_and_spreads_them_evenly(
    tree: tuple[list[list[Storage]], int], budget: int, shared: bool
) -> None:
    """Against every way to cut the beams into runs."""
    paths, tail = tree
    beams = len(paths)
    cuts = [
        [list(range(a, b)) for a, b in pairwise((0, *inner, beams))]
        for count in range(beams)
        for inner in combinations(range(1, beams), count)
    ]
    fitting = [
        cut
        for cut in cuts
        if all(group_bytes(paths, group, tail, shared) <= budget for group in cut)
    ]
    if not fitting:
        with pytest.raises(OutOfMemory, match="at least"):
            balanced_grouping(Beams(paths, size, tail, budget, shared=shared))
        return
    fewest = min(map(len, fitting))
    evenest = min(sum(len(group) ** 2 for group in cut) for cut in fitting if len(cut) == fewest)
    groups = balanced_grouping(Beams(paths, size, tail, budget, shared=shared))
    assert sorted(groups) in fitting
    assert len(groups) == fewest and sum(len(group) ** 2 for group in groups) == evenest


@given(trees(), st.integers(1, 60))
@settings(max_examples=examples(60))
def test_algorithm_1_holds_every_beam_once_within_the_budget(
    tree: tuple[list[list[Storage]], int], budget: int
) -> None:
    paths, tail = tree
    if max(group_bytes(paths, [beam], tail, True) for beam in range(len(paths))) > budget:
        with pytest.raises(OutOfMemory, match="at least"):
            schedule_beams(Beams(paths, size, tail, budget))
        return
    groups = schedule_beams(Beams(paths, size, tail, budget))
    assert sorted(beam for group in groups for beam in group) == list(range(len(paths)))
    assert all(group_bytes(paths, group, tail, True) <= budget for group in groups)


def as_printed(paths: list[list[Storage]], capacity: int) -> list[list[int]]:
    """The paper's Balanced Grouping: Algorithm 1 with as many beams in a group as the balanced
    counts allow."""
    unused, groups = list(range(len(paths))), []
    for limit in balanced_sizes(len(paths), ceil(len(paths) / capacity)):
        cur: list[int] = []
        for _ in range(limit):
            union = {kv for beam in cur for kv in paths[beam]}
            cur.append(max(unused, key=lambda i: sum(kv.room for kv in paths[i] if kv in union)))
            unused.remove(cur[-1])
        groups.append(cur)
    return groups


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=5),
    st.integers(1, 8),
    st.integers(1, 9),
    st.integers(1, 9),
)
@settings(max_examples=examples(200))
def test_balanced_grouping_has_the_papers_sizes_and_loads_no_more(
    leaves: list[int], capacity: int, trunk_size: int, inner_size: int
) -> None:
    """Beams of equal sizes, each with its copy of what it shares, as in the paper: root, inner
    node, leaf."""
    trunk, paths = blocks(trunk_size)[0], list[list[Storage]]()
    for count in leaves:
        inner, *own = blocks(inner_size, *[3] * count)
        paths += [[trunk, inner, kv] for kv in own]
    budget = capacity * (trunk_size + inner_size + 3)
    ours, papers = (
        balanced_grouping(Beams(paths, size, 0, budget, shared=False)),
        as_printed(paths, capacity),
    )
    assert sorted(map(len, ours)) == sorted(map(len, papers))
    loaded = [
        sum(group_bytes(paths, group, 0, shared=True) for group in groups)
        for groups in (ours, papers)
    ]
    assert loaded[0] <= loaded[1]
