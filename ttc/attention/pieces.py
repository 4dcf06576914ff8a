"""What rows of a pass attend, as runs of KV that lie side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ttc.memory.storage import Storage
from ttc.tree.segment import Segment


@dataclass(frozen=True)
class Piece:
    """Tokens of a storage from its token `first` on, which a range of rows attends in full."""

    kv: Storage
    first: int
    length: int
    rows: slice

    @property
    def start(self) -> int:
        """The position of its first token."""
        return self.kv.start + self.first


def pieces(
    paths: Sequence[Sequence[Segment]], counts: Sequence[int], ends: Sequence[int]
) -> list[Piece]:
    """The pieces for paths in depth-first order (see `depth_first`), with `counts` rows each, of
    their tokens before the positions `ends`. Neighbours in a storage that the same rows attend are
    one piece."""
    spans: dict[tuple[Segment, int], list[int]] = {}
    row = 0
    for path, rows, end in zip(paths, counts, ends, strict=True):
        end_row = row + rows
        for segment in path:
            length = min(len(segment.tokens), end - segment.start)
            if length <= 0:
                break
            span = spans.get((segment, length))
            if span is None:
                spans[segment, length] = [row, end_row]
            elif span[1] == row:
                span[1] = end_row
            else:
                raise RuntimeError("the rows that attend a segment are not side by side")
        row = end_row
    runs: dict[tuple[Storage, int, int], list[int]] = {}
    for (segment, length), (first_row, end_row) in spans.items():
        key = segment.storage, first_row, end_row
        run = runs.get(key)
        if run is None:
            runs[key] = [segment.first, length]
        else:
            run[1] += length
    return [
        Piece(storage, first, length, slice(first_row, end_row))
        for (storage, first_row, end_row), (first, length) in runs.items()
    ]


def depth_first(paths: Sequence[Sequence[Segment]], ends: Sequence[int] | None = None) -> list[int]:
    """An order of the paths in which all that attend any one segment are neighbours. ends: the
    position up to which each is attended, None for all of it."""

    seen = ends or [path[-1].end if path else 0 for path in paths]

    def attended(number: int) -> list[tuple[int, int]]:
        end = seen[number]
        return [(s.serial, min(s.end, end)) for s in paths[number] if s.start < end]

    return sorted(range(len(paths)), key=attended)


def private_pieces(
    paths: Sequence[Sequence[Segment]], counts: Sequence[int], ends: Sequence[int]
) -> list[Piece]:
    """Like `pieces`, but nothing is shared: each path has its own."""
    private = []
    row = 0
    for path, rows, end in zip(paths, counts, ends, strict=True):
        its = pieces([path], [rows], [end])
        private += [replace(piece, rows=slice(row, row + rows)) for piece in its]
        row += rows
    return private
