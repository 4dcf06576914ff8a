"""The tree of segments against a dictionary: whatever branches do, each reads the KV of its own
tokens, and what nobody needs is gone."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tests.helpers.tiers import examples
from ttc.attention.pieces import depth_first, pieces
from ttc.memory.storage import Storage
from ttc.tree.segment import Segment
from ttc.tree.tree import Tree

TOKENS = st.lists(st.integers(0, 2), max_size=12)


@dataclass(eq=False)
class Held:
    tokens: list[int]
    leaf: Segment


class Searches(RuleBasedStateMachine):
    """kept: of each storage, what a token's KV depends on: all tokens up to it."""

    branches = Bundle("branches")

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[Storage, list[tuple[int, ...] | None]] = {}
        self.tree = Tree(self.begin, self.free)
        self.live: list[Held] = []

    def begin(self, after: Segment, room: int, one_each: bool) -> Storage:
        storage = Storage(1, after.end, min(room, 16))
        self.kept[storage] = [None] * storage.room
        return storage

    def free(self, storage: Storage) -> None:
        del self.kept[storage]

    def compute(self, branch: Held, tokens: list[int], room: int) -> None:
        end = branch.leaf.end
        for storage, first, count in self.tree.write(branch, tokens, room):
            for place in range(first, first + count):
                end += 1
                assert end == storage.start + place + 1
                self.kept[storage][place] = tuple(branch.tokens[:end])

    @rule(target=branches, tokens=TOKENS, room=st.integers(1, 20))
    def root(self, tokens: list[int], room: int) -> Held:
        branch = Held(tokens, self.tree.hold(self.tree.trunk))
        self.live.append(branch)
        self.wake(branch, room)
        return branch

    @rule(branch=branches, room=st.integers(1, 20))
    def wake(self, branch: Held, room: int) -> None:
        """Find what stands in the tree, and compute what is missing."""
        missing = branch.tokens[branch.leaf.end :]
        self.tree.move(branch, self.tree.find(branch.leaf, missing))
        self.compute(branch, branch.tokens[branch.leaf.end :], room)
        assert branch.leaf.end == len(branch.tokens)

    @rule(target=branches, branch=branches, keep=st.none() | st.integers(0, 12))
    def fork(self, branch: Held, keep: int | None) -> Held:
        tokens = branch.tokens[:keep]
        child = Held(tokens, self.tree.hold(self.tree.within(branch.leaf, len(tokens))))
        self.live.append(child)
        return child

    @rule(branch=branches, tokens=TOKENS, room=st.integers(1, 20))
    def write(self, branch: Held, tokens: list[int], room: int) -> None:
        self.wake(branch, room)
        branch.tokens += tokens
        self.compute(branch, tokens, room)

    @rule(branch=branches, drafts=TOKENS, kept=st.integers(0, 12))
    def check_drafts(self, branch: Held, drafts: list[int], kept: int) -> None:
        self.write(branch, drafts, 4)
        del branch.tokens[len(branch.tokens) - max(0, len(drafts) - kept) :]
        self.tree.rewind(branch, len(branch.tokens))

    @rule(
        first=branches,
        second=branches,
        tokens=TOKENS,
        room=st.integers(1, 20),
        forked=st.booleans(),
    )
    def write_side_by_side(
        self, first: Held, second: Held, tokens: list[int], room: int, forked: bool
    ) -> None:
        """Two that decode, a token at a pass, until one of them has no more room."""
        if first is second:
            return
        writers = [first, second]
        for branch in writers:
            self.wake(branch, room)
        opened = [self.tree.open(branch, room) for branch in writers]
        left = min(segment.storage.room - segment.storage.filled for segment in opened)
        for branch, segment in zip(writers, opened, strict=True):
            new = tokens[:left]
            branch.tokens += new
            place, end = segment.storage.filled, segment.end
            for n in range(len(new)):
                self.kept[segment.storage][place + n] = tuple(branch.tokens[: end + n + 1])
        if forked:  # while it decodes
            child = Held(
                first.tokens[: first.leaf.end],
                self.tree.hold(self.tree.within(first.leaf, first.leaf.end)),
            )
            self.live.append(child)
        for branch in writers:
            self.tree.close(branch, tokens[:left])

    @rule(branch=branches)
    def evict(self, branch: Held) -> None:
        assert self.tree.let_go(branch) or branch.leaf is self.tree.trunk

    @rule(branch=consumes(branches))
    def release(self, branch: Held) -> None:
        self.tree.drop(branch.leaf)
        self.live.remove(branch)

    @invariant()
    def each_reads_its_own_tokens(self) -> None:
        paths = [branch.leaf.path() for branch in self.live]
        order = depth_first(paths)
        found: list[dict[int, tuple[int, ...] | None]] = [{} for _ in order]
        for piece in pieces(
            [paths[i] for i in order],
            [1] * len(order),
            [self.live[i].leaf.end for i in order],
        ):
            for row in range(piece.rows.start, piece.rows.stop):
                for i in range(piece.length):
                    assert piece.start + i not in found[row]
                    found[row][piece.start + i] = self.kept[piece.kv][piece.first + i]
        for i, read in zip(order, found, strict=True):
            tokens = self.live[i].tokens[: self.live[i].leaf.end]
            assert read == {n: tuple(tokens[: n + 1]) for n in range(len(tokens))}

    @invariant()
    def nothing_is_left_over(self) -> None:
        segments = self.tree.segments()
        assert {segment.storage for segment in segments} == self.kept.keys()
        written = dict.fromkeys(self.kept, 0)
        for segment in segments:
            ends = sum(branch.leaf is segment for branch in self.live)
            assert segment.refs == ends + len(segment.children) > 0
            assert segment.tokens
            written[segment.storage] += len(segment.tokens)
        for storage, tokens in written.items():
            assert 0 < tokens == storage.filled <= storage.room


def test_a_branch_that_is_let_go_leaves_all_that_nobody_else_needs() -> None:
    freed = list[Storage]()
    tree = Tree(lambda after, room, one_each: Storage(1, after.end, 8), freed.append)
    one, two = (Held([], tree.hold(tree.trunk)) for _ in range(2))
    tree.write(one, [1] * 8, 8)
    tree.move(two, one.leaf)
    tree.write(one, [2] * 24, 8)
    assert tree.let_go(one) and one.leaf is two.leaf and len(freed) == 3
    tree.drop(two.leaf)
    assert tree.let_go(one) and one.leaf is tree.trunk and not tree.segments()
    assert not tree.let_go(one)


TestSearches = Searches.TestCase
TestSearches.settings = settings(max_examples=examples(100), stateful_step_count=30)
