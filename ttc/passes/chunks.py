"""New tokens cut into chunks: the rows of one pass each, with a plan, and the segments that their KV goes to."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ttc.attention.entry import Entry
from ttc.attention.plan import ExtendPlan, Piece, depth_first, shared_entries
from ttc.memory.kv import KV
from ttc.memory.states import StateBatch
from ttc.passes.runtime import Runtime
from ttc.passes.states import PassStates
from ttc.tree.branch import Branch, by_problem
from ttc.tree.segment import Segment
from ttc.tree.tree import SNAPSHOT_TOKENS
from ttc.usage import Usage, count_pass


@dataclass(frozen=True)
class Chunk:
    """The rows of one pass. runs: the run that each piece of the plan is a part of. firsts: the first token of that run
    in the piece."""

    tokens: list[int]
    plan: ExtendPlan
    runs: list[int]
    firsts: list[int]


def chunks(
    runtime: Runtime,
    leaves: Sequence[Segment],
    runs: Sequence[list[int]],
    usages: Sequence[Usage],
    held: list[Segment],
    limit: int | None = None,
    cuts: Sequence[Collection[int]] | None = None,
    openings: Sequence[int] | None = None,
    states_kept: bool = True,
) -> Iterator[Chunk]:
    """Chunks that bring the KV of `runs[i]` after `leaves[i]` into the tree, at most `limit` (else `prefill_tokens`)
    rows each. Whoever takes a chunk runs it before the next one, and closes its plan (`with chunk.plan`).

    The new segments are appended to `held` at once, with one reference each. usages[i]: the meter of run i. cuts[i]:
    places in run i where a segment has to end, so that with recurrent layers others can go on from there. openings[i]:
    see `Segment`; that of run i's branch. states_kept: False where nothing goes on from the new segments: they get no
    recurrent states, and runs are not cut for these.
    """
    paths = [leaf.path() for leaf in leaves]
    order = depth_first(paths)
    needed = {segment.storage for path in paths for segment in path}
    states: PassStates | None = None
    openings = openings or [0] * len(runs)
    writers = [SegmentWriter(runtime, *each, needed, held) for each in zip(leaves, runs, openings, strict=True)]
    if runtime.runner.recurrent is None:
        runtime.residency.require(sum(map(len, runs)))
    else:
        for i, writer in enumerate(writers if states_kept else ()):
            writer.cut_at(cuts[i] if cuts else ())
        ends = sum(len(writer.cuts) for writer in writers)
        states = PassStates(runtime, len(runs), sum(map(len, runs)), ends, states_kept)
    most = len(runs) if states is None else states.most
    try:
        while any(writer.left for writer in writers):
            rows: list[int] = []
            positions: list[int] = []
            taken: list[int] = []
            pieces: list[Piece] = []
            own: list[Entry] = []
            firsts: list[int] = []
            for i in order:
                writer = writers[i]
                part = writer.left[: min((limit or runtime.prefill_tokens) - len(rows), writer.most)]
                if part and len(taken) < most:
                    span = slice(len(rows), len(rows) + len(part))
                    own += writer.entries(span)
                    taken.append(i)
                    firsts.append(writer.done)
                    positions += range(leaves[i].end + writer.done, leaves[i].end + writer.done + len(part))
                    pieces.append(Piece(span, writer.grow(len(part))))
                    rows += part
            entries = shared_entries([paths[i] for i in taken], [p.rows.stop - p.rows.start for p in pieces]) + own
            batches: Sequence[StateBatch] = ()
            if states is not None:
                before, spans = [writers[i].before for i in taken], [piece.rows for piece in pieces]
                inside = [leaves[i].end + first < openings[i] for i, first in zip(taken, firsts, strict=True)]
                batches = states.begin(before, spans, inside, needed)
            stream = runtime.residency.stream(entries, positions, None, repeat=False)
            plan = ExtendPlan(entries, positions, pieces, runtime.memory, stream)
            plan.states = batches
            yield Chunk(rows, plan, taken, firsts)
            if states is not None and states_kept:
                ended = [writers[i] for i in taken]
                states.end([w.end for w in ended], [w.passed for w in ended], [w.done not in w.cuts for w in ended])
            count_pass(usages[i] for i in taken)
    finally:
        if states is not None:
            states.clear()


@contextmanager
def one_chunk(
    runtime: Runtime,
    leaves: Sequence[Segment],
    runs: Sequence[list[int]],
    usages: Sequence[Usage],
    openings: Sequence[int] | None = None,
) -> Iterator[tuple[Chunk, list[Segment]]]:
    """All of `runs` after `leaves` in a single chunk, and their new segments, which go afterwards unless something else
    holds them by then; they get no recurrent states. openings: see `chunks`."""
    held: list[Segment] = []
    try:
        rows = sum(map(len, runs))
        for chunk in chunks(runtime, leaves, runs, usages, held, rows, openings=openings, states_kept=False):
            with chunk.plan:
                yield chunk, held
    finally:
        for segment in reversed(held):
            runtime.tree.drop(segment)


def batches(
    runtime: Runtime, branches: Sequence[Branch], runs: Sequence[Sequence[int]], together: bool
) -> Iterator[list[int]]:
    """Which branches share a pass, in depth-first order: as many as `prefill_tokens` rows hold, problems whole."""
    paths = [b.leaf.path() for b in branches]
    order = depth_first(paths)
    units = by_problem([branches[i] for i in order]) if together else [[n] for n in range(len(order))]
    batch: list[int] = []
    for unit in [[order[n] for n in rows] for rows in units]:
        if batch and sum(len(runs[i]) for i in batch + unit) > runtime.prefill_tokens:
            yield [batch[n] for n in depth_first([paths[i] for i in batch])]
            batch = []
        batch += unit
    if batch:
        yield [batch[n] for n in depth_first([paths[i] for i in batch])]


class SegmentWriter:
    """A run of new tokens on its way into the tree, block by block; its end is in `held`, with one reference."""

    def __init__(
        self, runtime: Runtime, leaf: Segment, tokens: list[int], opening: int, needed: set[KV], held: list[Segment]
    ):
        self.runtime, self.tokens, self.opening, self.needed = runtime, tokens, opening, needed
        self.held, self.index = held, len(held)
        held.append(runtime.tree.hold(leaf))
        self.blocks: list[Segment] = []
        self.done = 0
        self.filled = 0  # tokens of the last block that are there
        self.cuts: list[int] = []  # where blocks end that would go on, and the run itself, if states are kept there
        self.before = leaf  # whose state the last pass began from
        self.passed: Segment | None = None  # this one, if it is no place where a state is kept

    @property
    def left(self) -> list[int]:
        return self.tokens[self.done :]

    @property
    def end(self) -> Segment:
        """The segment that the run ends with so far."""
        return self.held[self.index]

    def cut_at(self, places: Collection[int]) -> None:
        """End a block, and the piece of a pass, at each of these places, at every `SNAPSHOT_TOKENS` and where the
        opening ends: there the states of recurrent layers are kept, which others go on from."""
        length, start = len(self.tokens), self.end.end
        regular = range(SNAPSHOT_TOKENS - start % SNAPSHOT_TOKENS, length, SNAPSHOT_TOKENS)
        inside = (place for place in (*places, self.opening - start) if 0 < place < length)
        self.cuts = sorted({length, *regular, *inside})

    @property
    def most(self) -> int:
        """The most tokens of the next piece."""
        return next((cut - self.done for cut in self.cuts if cut > self.done), len(self.tokens))

    def entries(self, rows: slice) -> list[Entry]:
        """What earlier passes left: attended in full by the rows of the next one."""
        lengths = [len(block.tokens) for block in self.blocks[:-1]] + [self.filled] * bool(self.blocks)
        return [Entry(b.storage, b.start, n, rows) for b, n in zip(self.blocks, lengths, strict=True)]

    def grow(self, count: int) -> list[tuple[KV, int, int]]:
        """Make place for the next `count` tokens: (KV, first token to fill, how many), in order."""
        places, size = [], self.runtime.residency.block_tokens or len(self.tokens)
        self.before = self.end
        self.passed = self.before if self.done and self.done not in self.cuts else None
        while count:
            if not self.blocks or self.filled == len(self.blocks[-1].tokens):
                tokens = self.left[: min(size, self.most)]
                tree, above = self.runtime.tree, self.held[self.index]
                path = [segment.storage for segment in above.path()]
                kv = self.runtime.residency.allocate(len(tokens), self.needed, path)
                self.needed.add(kv)
                self.held[self.index] = tree.hold(tree.attach(above, tokens, kv, self.opening))
                tree.drop(above)
                self.blocks.append(self.held[self.index])
                self.filled = 0
            block = self.blocks[-1]
            taken = min(count, len(block.tokens) - self.filled)
            places.append((block.storage, self.filled, taken))
            self.filled += taken
            self.done += taken
            count -= taken
        return places
