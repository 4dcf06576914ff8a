"""The tree of segments: who refers to which tokens, and where the next ones are written.

No KV is ever copied. A fork is a reference, a split makes two views of one, and what nobody needs
is cut off a storage's end. Who ends where a storage is written so far goes on in it, others begin
their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from ttc.errors import on_failure
from ttc.memory.storage import Places, Storage
from ttc.tree.segment import MIN_SHARED_TOKENS, SNAPSHOT_TOKENS, Segment, common_prefix

if TYPE_CHECKING:
    from ttc.memory.state_memory import StateMemory
    from ttc.memory.states import State


class Holder(Protocol):
    """A branch, as far as the tree knows it."""

    leaf: Segment


class Path:
    """Who holds a path for the time of a call, with a reference that was taken before."""

    def __init__(self, leaf: Segment):
        self.leaf = leaf


class Tree:
    """All segments. Whoever refers to one takes a reference with `hold` and gives it back with
    `drop`.

    begin: makes a storage for tokens after a segment, with room for so many or fewer; told whether
        they are written one at each pass.
    free: lets go of a storage. resume: makes one ready to be written on in, told the same; says
        whether it can be.
    states: of recurrent layers: one goes on from a segment with a state alone.
    """

    def __init__(
        self,
        begin: Callable[[Segment, int, bool], Storage],
        free: Callable[[Storage], None],
        resume: Callable[[Storage, bool], bool] = lambda storage, one_each: True,
        states: StateMemory | None = None,
    ):
        self.begin = begin
        self.free = free
        self.resume = resume
        self.states = states
        self.trunk = Segment([])

    # ---------------------------------------------------------------- references

    def hold(self, segment: Segment) -> Segment:
        segment.refs += 1
        return segment

    def drop(self, segment: Segment) -> None:
        node = segment
        node.refs -= 1
        while not node.refs and node.parent is not None:
            parent, storage = node.parent, node.storage
            parent.children.remove(node)
            node.own_storage = None
            self.set_state(node, None)
            storage.filled = node.first  # later tokens of it stood below this segment
            if not storage.filled:
                self.free(storage)
            node = parent
            node.refs -= 1

    def move(self, branch: Holder, segment: Segment) -> None:
        self.hold(segment)
        self.drop(branch.leaf)
        branch.leaf = segment

    def let_go(self, branch: Holder) -> bool:
        """Take a branch off its leaf, and off what nobody else needs above. Says whether it had any
        KV."""
        segment = branch.leaf.parent
        if segment is None:
            return False
        while segment.refs == 1 and segment.parent is not None:
            segment = segment.parent
        self.move(branch, segment)
        return True

    # ---------------------------------------------------------------- finding

    def find(self, segment: Segment, tokens: Sequence[int], opening: int = 0) -> Segment:
        """The end of the longest prefix of `tokens` below a segment, one being split where they
        part; with states, the last one that has one. opening: see `Segment`."""
        while tokens:
            shared, child = max(
                (
                    (common_prefix(child.tokens, tokens), child)
                    for child in segment.children
                    if child.opens(opening) == child.opens(child.opening)
                ),
                key=lambda match: (match[0], match[0] == len(match[1].tokens)),
                default=(0, segment),
            )
            if shared < len(child.tokens):
                if shared >= MIN_SHARED_TOKENS:
                    return self.within(child, child.start + shared)
                break
            if not shared:
                break
            segment, tokens = child, tokens[shared:]
        return self.last_state(segment)

    def last_state(self, segment: Segment) -> Segment:
        """The deepest segment from here up that one can go on from."""
        while self.states and segment.state is None and segment.parent is not None:
            segment = segment.parent
        return segment

    def set_opening(self, segment: Segment | None, start: int, opening: int) -> None:
        """Say with what opening the segments of a path from a position on were computed."""
        while opening and segment is not None and segment.start >= start:
            segment.opening = opening
            segment = segment.parent

    def set_state(self, segment: Segment, state: State | None) -> None:
        before = segment.state
        segment.state = state
        if before is not None and self.states is not None:
            self.states.free(before)

    def keep_state(self, segment: Segment, state: State, prompt: int) -> None:
        """Keep the state at a segment's end, and drop those above that nobody else goes on from,
        but not of the first `prompt` tokens: other prompts may begin with them."""
        self.set_state(segment, state)
        above = segment.parent
        while above is not None and above.refs == 1:
            if above.end % SNAPSHOT_TOKENS and above.end > prompt:
                self.set_state(above, None)
            above = above.parent

    def split(self, segment: Segment, at: int) -> Segment:
        """Part a segment after `at` tokens. It becomes the lower one; the upper one is returned."""
        parent = segment.parent
        assert parent is not None
        upper = Segment(segment.tokens[:at], segment.storage, segment.first, parent)
        parent.children[parent.children.index(segment)] = upper
        upper.children = [segment]
        upper.refs = 1
        upper.opening = segment.opening
        segment.tokens = segment.tokens[at:]
        segment.first += at
        segment.start = upper.end
        segment.parent = upper
        return upper

    # ---------------------------------------------------------------- writing

    def write(self, branch: Holder, tokens: Sequence[int], room: int) -> list[Places]:
        """The places of a branch's next tokens, whose KV is to be computed next. room: how many
        tokens it is likely to write from here on. Raises OutOfMemory, and changes nothing then."""
        before = branch.leaf.end
        places = []
        with on_failure(self.rewind, branch, before):
            while tokens:
                segment = self._open(branch, max(room, len(tokens)), one_each=False)
                storage = segment.storage
                count = min(len(tokens), storage.room - storage.filled)
                places.append(Places(storage, storage.filled, count))
                segment.tokens += tokens[:count]
                storage.filled += count
                tokens = tokens[count:]
                room -= count
        return places

    def open(self, branch: Holder, room: int) -> Segment:
        """Where a branch writes its next tokens, one at each pass, until `close`; nobody else gets
        the place. room: as in `write`. Raises OutOfMemory."""
        segment = self._open(branch, room, one_each=True)
        segment.storage.being_written = True
        return segment

    def close(self, branch: Holder, tokens: Sequence[int]) -> None:
        """A branch has written these tokens since `open`."""
        segment = branch.leaf
        storage = segment.storage
        storage.being_written = False
        if tokens and segment.refs > 1:  # others have come to end here, or to go on from here
            self._below(branch, storage)
            segment = branch.leaf
        segment.tokens += tokens
        storage.filled += len(tokens)
        if not segment.tokens and segment.parent is not None:
            self.move(branch, segment.parent)

    def rewind(self, branch: Holder, length: int) -> None:
        """Have a branch end after its first `length` tokens at the latest."""
        self.move(branch, self.within(branch.leaf, length))

    def within(self, segment: Segment, length: int) -> Segment:
        """The end of the first `length` tokens of a path, if it has as many; with states, the last
        one before that has one."""
        while segment.parent is not None and segment.start >= length:
            segment = segment.parent
        if segment.end > length:
            if self.states is None:
                return self.split(segment, length - segment.start)
            assert segment.parent is not None
            segment = segment.parent
        return self.last_state(segment)

    def _open(self, branch: Holder, room: int, one_each: bool) -> Segment:
        """The segment of a branch's next token, with a place for it."""
        leaf = branch.leaf
        goes_on = leaf.is_last and not leaf.storage.full
        goes_on = goes_on and self.resume(leaf.storage, one_each)
        if goes_on and leaf.refs == 1 and leaf.state is None:
            return leaf
        return self._below(branch, leaf.storage if goes_on else self.begin(leaf, room, one_each))

    def _below(self, branch: Holder, storage: Storage) -> Segment:
        """A new segment at the end of a storage."""
        leaf = branch.leaf
        segment = Segment([], storage, storage.filled, leaf)
        self.hold(leaf)
        leaf.children.append(segment)
        self.move(branch, segment)
        return segment

    # ---------------------------------------------------------------- all of it

    def segments(self) -> list[Segment]:
        """All but the trunk, depth first."""
        segments: list[Segment] = []
        waiting = self.trunk.children[::-1]
        while waiting:
            node = waiting.pop()
            segments.append(node)
            waiting += node.children[::-1]
        return segments
