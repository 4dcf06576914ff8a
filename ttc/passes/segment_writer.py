"""New tokens on their way into the tree, as segments that passes fill."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ttc.attention.entry import Entry
from ttc.memory.kv import KV
from ttc.passes.runtime import Runtime
from ttc.tree.segment import Segment
from ttc.tree.tree import SNAPSHOT_TOKENS
from ttc.usage import Usage


@dataclass(frozen=True)
class NewRun:
    """New tokens that stand after a segment.

    usage: the meter that their passes are counted on. opening: that of their branch (see
        `Segment`).
    cuts: places in the run where a segment has to end, so that with recurrent layers others can go
        on from there.
    """

    leaf: Segment
    tokens: list[int]
    usage: Usage
    opening: int = 0
    cuts: Collection[int] = ()


class SegmentWriter:
    """A run of new tokens on its way into the tree, block by block; its end is in `held`, with one
    reference."""

    def __init__(self, runtime: Runtime, run: NewRun, needed: set[KV], held: list[Segment]):
        self.runtime = runtime
        self.tokens = run.tokens
        self.opening = run.opening
        self.needed = needed
        self.held = held
        self.index = len(held)
        held.append(runtime.tree.hold(run.leaf))
        self.blocks: list[Segment] = []
        self.done = 0
        self.filled = 0  # tokens of the last block that are there
        # where blocks end that would go on, and the run itself, if states are kept there
        self.cuts: list[int] = []
        self.before = run.leaf  # whose state the last pass began from
        self.passed: Segment | None = None  # this one, if it is no place where a state is kept

    @property
    def left(self) -> list[int]:
        return self.tokens[self.done :]

    @property
    def end(self) -> Segment:
        return self.held[self.index]

    def cut_at(self, places: Collection[int]) -> None:
        """End a block, and the piece of a pass, at each of these places, at every `SNAPSHOT_TOKENS`
        and where the opening ends: there the states of recurrent layers are kept."""
        length, start = len(self.tokens), self.end.end
        regular = range(SNAPSHOT_TOKENS - start % SNAPSHOT_TOKENS, length, SNAPSHOT_TOKENS)
        inside = (place for place in (*places, self.opening - start) if 0 < place < length)
        self.cuts = sorted({length, *regular, *inside})

    @property
    def piece_limit(self) -> int:
        return next((cut - self.done for cut in self.cuts if cut > self.done), len(self.tokens))

    def entries(self, rows: slice) -> list[Entry]:
        lengths = [len(block.tokens) for block in self.blocks[:-1]] + [self.filled] * bool(
            self.blocks
        )
        return [
            Entry(b.storage, b.start, n, rows) for b, n in zip(self.blocks, lengths, strict=True)
        ]

    def grow(self, count: int) -> list[tuple[KV, int, int]]:
        places = []
        self.before = self.end
        self.passed = self.before if self.done and self.done not in self.cuts else None
        while count:
            if not self.blocks or self.filled == len(self.blocks[-1].tokens):
                self._begin_block()
            block = self.blocks[-1]
            taken = min(count, len(block.tokens) - self.filled)
            places.append((block.storage, self.filled, taken))
            self.filled += taken
            self.done += taken
            count -= taken
        return places

    def settle(self) -> None:
        if not self.left:
            for block in self.blocks:
                block.whole = True

    def abandon(self) -> None:
        self.tokens = self.tokens[: self.done]
        self.runtime.tree.drop(self.end)
        self.held[self.index] = self.runtime.tree.hold(self.runtime.tree.trunk)

    def _begin_block(self) -> None:
        residency, tree, above = self.runtime.residency, self.runtime.tree, self.end
        size = residency.block_tokens or len(self.tokens)
        tokens = self.left[: min(size, self.piece_limit)]
        kv = residency.allocate(
            len(tokens), self.needed, [segment.storage for segment in above.path()]
        )
        self.needed.add(kv)
        self.held[self.index] = tree.hold(tree.attach(above, tokens, kv, self.opening))
        tree.drop(above)
        self.end.whole = False
        self.blocks.append(self.end)
        self.filled = 0
