"""Entries of a plan: each row attends exactly the segments of its own path, and each segment is
read once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from ttc.attention.entry import depth_first, shared_entries

from tests.helpers.tiers import examples
from ttc.memory.kv import KV
from ttc.tree.segment import Segment


@st.composite
def trees(draw: st.DrawFn) -> list[list[Segment]]:
    """Paths of branches through a random tree, in any order, some of them the same."""
    trunk = Segment([], None, None)
    nodes = [trunk]
    for _ in range(draw(st.integers(1, 8))):
        length, parent = draw(st.integers(1, 5)), draw(st.sampled_from(nodes))
        nodes.append(Segment(list(range(length)), KV(1, length), parent))
    return [leaf.path() for leaf in draw(st.lists(st.sampled_from(nodes), min_size=1, max_size=6))]


@given(trees(), st.data())
@settings(max_examples=examples(150))
def test_a_row_attends_the_segments_of_its_path_and_each_is_read_once(
    paths: list[list[Segment]], data: st.DataObject
) -> None:
    order = depth_first(paths)
    assert sorted(order) == list(range(len(paths)))
    paths = [paths[i] for i in order]
    counts = [data.draw(st.integers(1, 3)) for _ in paths]
    entries = shared_entries(paths, counts)
    kvs = [entry.kv for entry in entries]
    assert len(set(kvs)) == len(kvs) == len({segment for path in paths for segment in path})
    rows = [path for path, count in zip(paths, counts, strict=True) for _ in range(count)]
    for row, path in enumerate(rows):
        attended = {e.kv: (e.start, e.length) for e in entries if e.rows.start <= row < e.rows.stop}
        assert attended == {s.storage: (s.start, len(s.tokens)) for s in path}
    assert all(entry.rows.stop <= len(rows) for entry in entries)
