"""A segment: an immutable run of tokens on one tree edge, with its KV."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count, takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ttc.memory.kv import KV
    from ttc.memory.states import State

MIN_SHARED_TOKENS = 8
"""A common prefix shorter than this is recomputed: one more segment in every later plan would cost
more."""

MERGE_RATIO = 4
"""A segment with one child joins it where it is at most so many times as long: chains stay
logarithmic."""

_serial = count()


class Segment:
    """A run of tokens on one tree edge, with its KV, at positions `start` to `end`.

    refs: the branches that end here plus the children. The trunk is the empty segment above all
        roots.
    state: of models with recurrent layers, their state after the last token, None where none was
        kept.
    whole: whether all of its KV is there. What is being computed is not shared with others.
    opening: how many tokens stand before the first generated one of the branch that made the
        segment, for recurrent layers that compute these differently; 0 for all others.
    """

    def __init__(self, tokens: list[int], kv: KV | None, parent: Segment | None, opening: int = 0):
        self.tokens = tokens
        self.kv = kv
        self.parent = parent
        self.opening = opening
        self.children: list[Segment] = []
        self.state: State | None = None
        self.refs = 0
        self.whole = True
        self.start = parent.end if parent else 0
        self.serial = next(_serial)

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def storage(self) -> KV:
        if self.kv is None:
            raise RuntimeError(
                f"segment {self.serial} at {self.start} holds no KV: it is the trunk, or was freed"
            )
        return self.kv

    def opens(self, opening: int) -> int:
        """How many of its tokens lie in an opening of so many."""
        return min(max(opening - self.start, 0), len(self.tokens))

    def serves(self, opening: int) -> bool:
        return self.whole and self.opens(opening) == self.opens(self.opening)

    def path(self) -> list[Segment]:
        chain: list[Segment] = []
        node: Segment | None = self
        while node is not None and node.parent is not None:
            chain.append(node)
            node = node.parent
        return chain[::-1]


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def worth_sharing(run: Sequence[int], tokens: Sequence[int]) -> bool:
    """Whether a new segment of `run` would serve a branch that needs `tokens` at the same place."""
    shared = common_prefix(run, tokens)
    return shared >= MIN_SHARED_TOKENS or 0 < shared == len(run)


def present(held: Sequence[int], tokens: Sequence[int]) -> int:
    """How many first tokens of a text a tree that holds another surely shares with it."""
    shared = common_prefix(held, tokens)
    return shared if shared == len(held) else max(0, shared - MIN_SHARED_TOKENS + 1)


def tokens_to_read(texts: Iterable[tuple[Sequence[int], Sequence[int]]]) -> int:
    """The tokens of texts beyond what is read already, those of a common beginning once.

    texts: each with one that was read before, or with nothing.
    """
    ordered = sorted((list(text), list(known)) for text, known in texts)
    before: Sequence[int] = ()
    count = 0
    for text, known in ordered:
        count += len(text) - max(present(known, text), present(before, text))
        before = text
    return count
