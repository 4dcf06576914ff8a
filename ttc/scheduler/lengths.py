"""How long the steps of a batch are."""

from __future__ import annotations

from collections import Counter

from ttc.scheduler.rows import Row


class Lengths:
    """What the steps that have ended came to, by the strings that end them."""

    def __init__(self) -> None:
        self.tokens = Counter[tuple[str, ...]]()
        self.steps = Counter[tuple[str, ...]]()

    def note(self, row: Row) -> None:
        """The step of a row has ended."""
        self.tokens[row.request.stops.stop] += row.written
        self.steps[row.request.stops.stop] += 1

    def left(self, row: Row) -> int:
        """How many more tokens a row is likely to write: what steps like this one have come to on
        average, less what it has; but as many again as it has written, as who has written much
        goes on for long."""
        kind = row.request.stops.stop
        mean = self.tokens[kind] // self.steps[kind] if self.steps[kind] else 0
        return min(row.limit - row.start - row.written, max(mean - row.written, row.written))
