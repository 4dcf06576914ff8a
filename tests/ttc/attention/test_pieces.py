"""What rows of a pass attend, where some of them write what others read."""

from __future__ import annotations

from ttc.attention.pieces import depth_first, pieces
from ttc.memory.storage import Storage
from ttc.tree.tree import Path, Tree


def test_who_writes_a_segment_attends_less_of_it_than_who_shares_it() -> None:
    """Three prompts in one pass: the second one shares four tokens of the first, the third one
    shares five, so that the first one's segment is split twice."""
    tree = Tree(lambda after, room, one_each: Storage(1, after.end, room), lambda storage: None)
    prompts = [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 9], [0, 1, 2, 3, 4, 8]]
    paths, ends = [], []
    for prompt in prompts:
        path = Path(tree.hold(tree.trunk))
        tree.move(path, tree.find(path.leaf, prompt))
        ends.append(path.leaf.end)
        tree.write(path, prompt[path.leaf.end :], 8)
        paths.append(path)
    assert ends == [0, 4, 5]
    ways = [path.leaf.path() for path in paths]
    order = depth_first(ways, ends)
    read: list[set[int]] = [set() for _ in prompts]
    for piece in pieces([ways[i] for i in order], [1] * 3, [ends[i] for i in order]):
        for row in range(piece.rows.start, piece.rows.stop):
            read[order[row]] |= set(range(piece.start, piece.start + piece.length))
    assert read == [set(), set(range(4)), set(range(5))]
