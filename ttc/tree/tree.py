"""The KV tree: immutable segments with reference counts, shared by every branch below them."""

from __future__ import annotations

from collections.abc import Sequence

from ttc.memory.kv import KV
from ttc.memory.manager import KVMemory
from ttc.memory.states import State
from ttc.tree.branch import Branch
from ttc.tree.segment import MERGE_RATIO, MIN_SHARED_TOKENS, Segment, common_prefix

SNAPSHOT_TOKENS = 1024
"""The state of recurrent layers is kept after each so many tokens of a prompt, for other prompts to
go on from."""


class Tree:
    """All segments. Whoever holds a segment takes a reference with `hold` and gives it back with
    `drop`.

    block_tokens: the largest number of tokens of a segment, None for no limit.
    recuts: how often KV of the tree was cut or joined, which plans made before don't know.
    """

    def __init__(self, memory: KVMemory, block_tokens: int | None = None):
        self.memory = memory
        self.block_tokens = block_tokens
        self.trunk = Segment([], None, None)
        self.recuts = 0

    def hold(self, segment: Segment) -> Segment:
        segment.refs += 1
        return segment

    def drop(self, segment: Segment) -> None:
        segment.refs -= 1
        node: Segment | None = segment
        while node is not None and node.refs == 0 and node.parent is not None:
            parent = node.parent
            parent.children.remove(node)
            parent.refs -= 1
            if node.kv is not None:
                self.memory.free(node.kv)
            node.kv = None
            self.set_state(node, None)
            node = parent

    def move(self, branch: Branch, segment: Segment) -> Segment:
        self.hold(segment)
        self.drop(branch.leaf)
        branch.leaf = segment
        return segment

    def keep_only(self, branch: Branch) -> None:
        segment = branch.leaf
        while segment.end >= len(branch.tokens) and segment.parent is not None:
            segment = segment.parent
        self.move(branch, self.last_state(segment))

    def let_go(self, branch: Branch) -> bool:
        """Take a branch off its leaf, and off what nobody else needs above. Says whether it had any
        KV."""
        segment = branch.leaf.parent
        if segment is None:
            return False
        while segment.refs == 1 and segment.parent is not None:
            segment = segment.parent
        self.move(branch, segment)
        return True

    def attach(self, parent: Segment, tokens: list[int], kv: KV, opening: int = 0) -> Segment:
        """A new child segment. The caller holds it, or it stays unreferenced until somebody
        does."""
        child = Segment(tokens, kv, self.hold(parent), opening)
        parent.children.append(child)
        return child

    def set_state(self, segment: Segment, state: State | None) -> None:
        before = segment.state
        segment.state = state
        if before is not None:
            self.memory.states.free(before)

    def descend(self, segment: Segment, tokens: Sequence[int], opening: int = 0) -> Segment:
        """The deepest segment that holds a prefix of `tokens` below `segment`; it is split where
        they part. opening: see `Segment`.

        With recurrent layers one cannot go on from the middle of a segment: then it is the deepest
            one with a state, which may lie above `segment`.
        """
        recurrent = self.memory.states.shape is not None
        while tokens:
            shared, child = max(
                (
                    (common_prefix(c.tokens, tokens), c)
                    for c in segment.children
                    if c.serves(opening)
                ),
                key=lambda x: x[0],
                default=(0, segment),
            )
            if shared == len(child.tokens) and shared > 0:
                segment, tokens = child, tokens[shared:]
            elif shared >= MIN_SHARED_TOKENS and not recurrent:
                return self.split(child, shared)
            else:
                break
        return self.last_state(segment)

    def last_state(self, segment: Segment) -> Segment:
        """The deepest segment from here up that a branch can go on from: with recurrent layers one
        with a state."""
        recurrent = self.memory.states.shape is not None
        while recurrent and segment.state is None and segment.parent is not None:
            segment = segment.parent
        return segment

    def split(self, segment: Segment, at: int) -> Segment:
        """Cut `segment` after `at` tokens. It becomes the lower part; the new upper part is
        returned."""
        from ttc.memory.recut import recut

        upper_kv, lower_kv = recut(self.memory, [segment.storage], [at, len(segment.tokens) - at])
        self.recuts += 1
        parent = segment.parent
        assert parent is not None
        upper = Segment(segment.tokens[:at], upper_kv, parent)
        parent.children[parent.children.index(segment)] = upper
        upper.children = [segment]
        upper.refs = 1
        segment.tokens = segment.tokens[at:]
        segment.kv = lower_kv
        segment.parent = upper
        segment.start = upper.end
        return upper

    def compact(self, segment: Segment) -> None:
        """Join `segment` with ancestors that only it needs, so that a long private chain is read as
        one run."""
        parent = segment.parent
        while parent is not None and parent.parent is not None and parent.refs == 1:
            if self._may_join(parent, segment):
                self._absorb(parent, segment)
            else:
                segment = parent
            parent = segment.parent

    def _may_join(self, parent: Segment, segment: Segment) -> bool:
        joined = len(parent.tokens) + len(segment.tokens)
        if self.block_tokens is not None and joined > self.block_tokens:
            return False
        if parent.state is not None and parent.end % SNAPSHOT_TOKENS == 0:
            return False
        if len(parent.tokens) > MERGE_RATIO * len(segment.tokens):
            return False
        from ttc.memory.recut import can_recut

        return can_recut(self.memory, [parent.storage, segment.storage])

    def _absorb(self, parent: Segment, child: Segment) -> None:
        from ttc.memory.recut import recut

        assert parent.parent is not None
        (kv,) = recut(
            self.memory, [parent.storage, child.storage], [len(parent.tokens) + len(child.tokens)]
        )
        self.recuts += 1
        above = parent.parent
        if not child.opens(child.opening):
            child.opening = min(parent.opening, parent.end)
        above.children[above.children.index(parent)] = child
        child.tokens = parent.tokens + child.tokens
        child.kv = kv
        child.parent = above
        child.start = parent.start
        parent.kv = None
        parent.parent = None
        parent.children = []
        parent.refs = 0
        self.set_state(parent, None)

    def segments(self) -> list[Segment]:
        segments: list[Segment] = []
        stack = list(self.trunk.children)
        while stack:
            node = stack.pop()
            segments.append(node)
            stack.extend(node.children)
        return segments
