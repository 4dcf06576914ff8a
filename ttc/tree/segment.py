"""A segment: tokens of a path, and where in a storage their KV lies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count, takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ttc.memory.states import State
    from ttc.memory.storage import Storage

MIN_SHARED_TOKENS = 8
"""A segment is not split for fewer common tokens: they are computed twice."""

SNAPSHOT_TOKENS = 1024
"""A prompt's recurrent state is kept after each so many tokens."""

_serial = count()


class Segment:
    """A node of the tree: `tokens` that follow `parent`, in `storage` from its token `first` on.
    The trunk is the empty one above all others, without a storage.

    refs: the branches that end here, and the children.
    state: of recurrent layers after the last token, where it was kept.
    opening: how many tokens stand before the first generated one of the branch that made it, for
        recurrent layers that compute these differently; else 0.
    """

    def __init__(
        self,
        tokens: list[int],
        storage: Storage | None = None,
        first: int = 0,
        parent: Segment | None = None,
    ):
        self.tokens = tokens
        self.own_storage = storage
        self.first = first
        self.parent = parent
        self.start = parent.end if parent is not None else 0
        self.children: list[Segment] = []
        self.refs = 0
        self.state: State | None = None
        self.opening = 0
        self.serial = next(_serial)

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def storage(self) -> Storage:
        if self.own_storage is None:
            raise RuntimeError("the trunk holds no tokens, or the segment was dropped")
        return self.own_storage

    @property
    def is_last(self) -> bool:
        """Whether its storage is written up to here and nobody writes on, so that one may go on in
        it."""
        own_storage = self.own_storage
        if own_storage is None or own_storage.being_written:
            return False
        return self.first + len(self.tokens) == own_storage.filled

    def opens(self, opening: int) -> int:
        """How many of its tokens lie in an opening of so many."""
        return min(max(opening - self.start, 0), len(self.tokens))

    def path(self) -> list[Segment]:
        """From the first segment below the trunk to this one."""
        chain: list[Segment] = []
        node: Segment | None = self
        while node is not None and node.parent is not None:
            chain.append(node)
            node = node.parent
        return chain[::-1]

    def __repr__(self) -> str:
        return f"Segment({self.start} to {self.end}, refs={self.refs}, {self.own_storage!r})"


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def present(text: Sequence[int], tokens: Sequence[int]) -> int:
    """How many first tokens of a text a tree that holds another surely shares with it."""
    shared = common_prefix(text, tokens)
    return shared if shared == len(text) else max(0, shared - MIN_SHARED_TOKENS + 1)


def tokens_to_read(texts: Iterable[tuple[Sequence[int], Sequence[int]]]) -> int:
    """The tokens of texts beyond what is read already, those of a common beginning once. texts:
    each with one that was read before, or with nothing."""
    ordered = sorted((list(text), list(read)) for text, read in texts)
    before: Sequence[int] = ()
    count = 0
    for text, read in ordered:
        count += len(text) - max(present(read, text), present(before, text))
        before = text
    return count
