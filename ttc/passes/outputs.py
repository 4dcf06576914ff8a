"""What the model gives at chosen tokens, taken as they are computed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ttc.passes.chunks import Chunk


@dataclass(frozen=True)
class Outputs:
    """The outputs of a model (logits, or what another head gives) at places of some sequences.

    places[i]: places in sequence i, counted from its first token. computed[i]: the output (width,)
    at each of them that was computed; what stands in the tree already is missing.
    """

    places: list[set[int]]
    computed: list[dict[int, Tensor]]

    @classmethod
    def at(cls, places: Iterable[Iterable[int]]) -> Outputs:
        sets = [set(numbers) for numbers in places]
        return cls(sets, [{} for _ in sets])

    def of(self, indices: Sequence[int]) -> Outputs:
        """The same for some of the sequences."""
        return Outputs([self.places[i] for i in indices], [self.computed[i] for i in indices])

    def rows(self, chunk: Chunk, starts: Sequence[int]) -> list[tuple[int, int, int]]:
        """(sequence, place, row of the pass) of what a chunk computes. starts[i]: the place of run
        i's first token."""
        rows = []
        for run, first, piece in zip(chunk.runs, chunk.firsts, chunk.plan.pieces, strict=True):
            start = starts[run] + first - piece.rows.start  # the place of the pass's row 0
            places = range(start + piece.rows.start, start + piece.rows.stop)
            rows += [
                (run, place, place - start)
                for place in sorted(self.places[run].intersection(places))
            ]
        return rows
