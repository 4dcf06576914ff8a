"""New tokens cut into chunks: the rows of one pass each, with a plan, and the segments that their
KV goes to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ttc.attention.entry import Reads, depth_first, shared_entries
from ttc.attention.extend_plan import ExtendPlan, Piece
from ttc.memory.kv import KV
from ttc.memory.states import StateBatch
from ttc.passes.runtime import Runtime
from ttc.passes.segment_writer import NewRun, SegmentWriter
from ttc.tree.branch import Branch, by_problem
from ttc.tree.segment import Segment
from ttc.usage import count_pass

if TYPE_CHECKING:
    from ttc.model.recurrent_layers import PassStates


@dataclass(frozen=True)
class Chunk:
    """The rows of one pass. runs: the run that each piece of the plan is a part of. firsts: the
    first token of that run in the piece."""

    tokens: list[int]
    plan: ExtendPlan
    runs: list[int]
    firsts: list[int]

    @property
    def counts(self) -> dict[int, int]:
        spans = [piece.rows for piece in self.plan.pieces]
        return {run: span.stop - span.start for run, span in zip(self.runs, spans, strict=True)}


class Cutter:
    """Cuts runs of new tokens into chunks that bring their KV into the tree, in depth-first order.

    The new segments are appended to `held` at once, with one reference each.
    states_kept: False where nothing goes on from the new segments: they get no recurrent states.
    """

    def __init__(
        self,
        runtime: Runtime,
        runs: Sequence[NewRun],
        held: list[Segment],
        states_kept: bool = True,
    ):
        self.runtime = runtime
        self.runs = runs
        self.states_kept = states_kept
        self.needed: set[KV] = set()
        self.writers = [SegmentWriter(runtime, run, self.needed, held) for run in runs]
        self._follow_tree()
        self.states = self._room_for_states()
        self.max_runs = len(runs) if self.states is None else self.states.max_runs

    def _follow_tree(self) -> None:
        """Follow the segments that the runs stand on, which calls between passes may cut or
        join."""
        self.recuts = self.runtime.tree.recuts
        self.paths = [
            run.leaf.path() if writer.left else []
            for run, writer in zip(self.runs, self.writers, strict=True)
        ]
        self.order = depth_first(self.paths)
        self.needed |= {segment.storage for path in self.paths for segment in path}

    def _room_for_states(self) -> PassStates | None:
        """Raises OutOfMemory unless there is room for the KV of all runs, and for their recurrent
        states, if any."""
        tokens = sum(len(run.tokens) for run in self.runs)
        recurrent = self.runtime.runner.recurrent
        if recurrent is None:
            self.runtime.residency.require(tokens)
            return None
        if self.states_kept:
            for run, writer in zip(self.runs, self.writers, strict=True):
                writer.cut_at(run.cuts)
        ends = sum(len(writer.cuts) for writer in self.writers)
        return recurrent.pass_states(self.runtime, len(self.runs), tokens, ends, self.states_kept)

    @property
    def left(self) -> bool:
        return any(writer.left for writer in self.writers)

    @contextmanager
    def chunk(self, max_rows: int) -> Iterator[Chunk]:
        chunk = self.next_chunk(max_rows)
        with chunk.plan:
            yield chunk
        self.finish(chunk)

    def next_chunk(self, max_rows: int) -> Chunk:
        if self.recuts != self.runtime.tree.recuts:
            self._follow_tree()
        rows: list[int] = []
        positions: list[int] = []
        taken: list[int] = []
        firsts: list[int] = []
        pieces: list[Piece] = []
        earlier = []
        for i in self.order:
            writer = self.writers[i]
            part = writer.left[: min(max_rows - len(rows), writer.piece_limit)]
            if not part or len(taken) == self.max_runs:
                continue
            span = slice(len(rows), len(rows) + len(part))
            start = self.runs[i].leaf.end + writer.done
            earlier += writer.entries(span)
            taken.append(i)
            firsts.append(writer.done)
            positions += range(start, start + len(part))
            pieces.append(Piece(span, writer.grow(len(part))))
            rows += part
        counts = [piece.rows.stop - piece.rows.start for piece in pieces]
        entries = shared_entries([self.paths[i] for i in taken], counts) + earlier
        states = self._begin_states(taken, firsts, pieces)
        stream = self.runtime.residency.stream(Reads(entries, positions))
        plan = ExtendPlan(entries, positions, pieces, self.runtime.memory, stream)
        plan.states = states
        return Chunk(rows, plan, taken, firsts)

    def _begin_states(
        self, taken: Sequence[int], firsts: Sequence[int], pieces: Sequence[Piece]
    ) -> Sequence[StateBatch]:
        if self.states is None:
            return ()
        before = [self.writers[i].before for i in taken]
        spans = [piece.rows for piece in pieces]
        in_opening = [
            self.runs[i].leaf.end + first < self.runs[i].opening
            for i, first in zip(taken, firsts, strict=True)
        ]
        return self.states.begin(before, spans, in_opening, self.needed)

    def finish(self, chunk: Chunk) -> None:
        self._keep_states(chunk)
        for i in chunk.runs:
            self.writers[i].settle()
        count_pass(self.runs[i].usage for i in chunk.runs)

    def leave_out_released(self, branches: Sequence[Branch]) -> None:
        """branches: whose runs these are."""
        for writer, branch in zip(self.writers, branches, strict=True):
            if branch.released:
                writer.abandon()

    def _keep_states(self, chunk: Chunk) -> None:
        if self.states is None or not self.states_kept:
            return
        ended = [self.writers[i] for i in chunk.runs]
        passing = [writer.done not in writer.cuts for writer in ended]
        self.states.end(
            [writer.end for writer in ended], [writer.passed for writer in ended], passing
        )

    def close(self) -> None:
        if self.states is not None:
            self.states.clear()


@contextmanager
def one_chunk(runtime: Runtime, runs: Sequence[NewRun]) -> Iterator[tuple[Chunk, list[Segment]]]:
    """All of `runs` in a single chunk, and their new segments, which go afterwards unless something
    else holds them by then; they get no recurrent states."""
    held: list[Segment] = []
    cutter: Cutter | None = None
    try:
        rows = sum(len(run.tokens) for run in runs)
        cutter = Cutter(runtime, runs, held, states_kept=False)
        with cutter.chunk(rows) as chunk:
            yield chunk, held
    finally:
        if cutter is not None:
            cutter.close()
        for segment in reversed(held):
            runtime.tree.drop(segment)


def batches(
    runtime: Runtime, branches: Sequence[Branch], runs: Sequence[Sequence[int]], together: bool
) -> Iterator[list[int]]:
    """Which branches share a pass: depth-first, as many as `prefill_tokens` rows hold, problems
    whole."""
    paths = [b.leaf.path() for b in branches]
    order = depth_first(paths)
    units = [[i] for i in order]
    if together:
        problems = by_problem([branches[i] for i in order])
        units = [[order[n] for n in rows] for rows in problems]
    batch: list[int] = []
    for unit in units:
        if batch and sum(len(runs[i]) for i in batch + unit) > runtime.prefill_tokens:
            yield [batch[n] for n in depth_first([paths[i] for i in batch])]
            batch = []
        batch += unit
    if batch:
        yield [batch[n] for n in depth_first([paths[i] for i in batch])]
