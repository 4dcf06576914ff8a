"""What rows of a pass attend."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.tiers import examples
from ttc.attention.pieces import depth_first, pieces
from ttc.memory.storage import Storage
from ttc.tree.segment import Segment
from ttc.tree.tree import Path, Tree


def new_tree() -> Tree:
    return Tree(lambda after, room, one_each: Storage(1, after.end, room), lambda storage: None)


@st.composite
def trees(draw: st.DrawFn) -> list[Path]:
    """Paths that went on from any token of one before, in any order, some of them the same."""
    tree = new_tree()
    paths = [Path(tree.hold(tree.trunk))]
    for number in range(draw(st.integers(1, 8))):
        path = Path(tree.hold(draw(st.sampled_from(paths)).leaf))
        tree.rewind(path, draw(st.integers(0, path.leaf.end)))
        tokens, room = [number] * draw(st.integers(0, 6)), draw(st.integers(1, 9))
        tree.write(path, tokens, room)
        paths.append(path)
    return draw(st.lists(st.sampled_from(paths), min_size=1, max_size=6))


def places(path: list[Segment]) -> list[tuple[Storage, int]]:
    """Where each token of a path lies."""
    return [(s.storage, s.first + n) for s in path for n in range(len(s.tokens))]


@given(trees(), st.data())
@settings(max_examples=examples(150))
def test_a_row_attends_its_path_and_each_token_is_read_once(
    chosen: list[Path], data: st.DataObject
) -> None:
    ways = [path.leaf.path() for path in chosen]
    order = depth_first(ways)
    assert sorted(order) == list(range(len(ways)))
    ways = [ways[i] for i in order]
    counts = [data.draw(st.integers(1, 3)) for _ in ways]
    found = pieces(ways, counts, [way[-1].end if way else 0 for way in ways])
    attended = [(p.kv, p.first + n) for p in found for n in range(p.length)]
    assert len(set(attended)) == len(attended)
    assert set(attended) == {place for way in ways for place in places(way)}
    rows = [way for way, count in zip(ways, counts, strict=True) for _ in range(count)]
    for row, way in enumerate(rows):
        seen = {}
        for piece in found:
            if piece.rows.start <= row < piece.rows.stop:
                seen |= {piece.start + n: (piece.kv, piece.first + n) for n in range(piece.length)}
        assert [seen[position] for position in sorted(seen)] == places(way)
    assert all(piece.rows.stop <= len(rows) for piece in found)


def test_neighbours_in_a_storage_are_one_piece() -> None:
    tree = new_tree()
    long, short = Path(tree.hold(tree.trunk)), Path(tree.hold(tree.trunk))
    tree.write(long, [1, 2, 3, 4, 5, 6], 8)
    tree.move(short, tree.within(long.leaf, 4))
    ways = [long.leaf.path(), short.leaf.path()]
    assert [len(way) for way in ways] == [2, 1]
    assert [p.length for p in pieces(ways[:1], [1], [6])] == [6]
    assert [p.length for p in pieces(ways, [1, 1], [6, 4])] == [4, 2]


def test_who_writes_a_segment_attends_less_of_it_than_who_shares_it() -> None:
    """Three prompts in one pass: the second one shares eight tokens of the first, the third one
    shares sixteen, so that the first one's segment is split twice."""
    tree = new_tree()
    text = [*range(18)]
    prompts = [text, [*text[:8], 20], [*text[:16], 30]]
    paths, ends = [], []
    for prompt in prompts:
        path = Path(tree.hold(tree.trunk))
        tree.move(path, tree.find(path.leaf, prompt))
        ends.append(path.leaf.end)
        tree.write(path, prompt[path.leaf.end :], 8)
        paths.append(path)
    assert ends == [0, 8, 16]
    ways = [path.leaf.path() for path in paths]
    order = depth_first(ways, ends)
    read: list[set[int]] = [set() for _ in prompts]
    for piece in pieces([ways[i] for i in order], [1] * 3, [ends[i] for i in order]):
        for row in range(piece.rows.start, piece.rows.stop):
            read[order[row]] |= set(range(piece.start, piece.start + piece.length))
    assert read == [set(), set(range(8)), set(range(16))]
