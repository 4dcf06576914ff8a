"""How much room tails take at a time, and how much more branches are likely to write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ttc.residency.base import Residency
from ttc.scheduler.rows import Row

SHORT_TOKENS = 256
"""A tail has room for at most so many tokens at a time, and becomes a segment each time it is full.
Steps of so many tokens are short."""

FIRST_TOKENS = 8
"""The room of a tail in a long step where little is written yet."""

SHORT_STEP_TOKENS = 32
"""The same in a short step: most of these end before it is full."""

WRITTEN_PER_ROOM = 4
"""It has room for one more token for each so many that its branch has written: at most a fifth of
the KV is empty then."""


def tail_tokens(rows: Sequence[Row], residency: Residency) -> int:
    """The tokens that each tail of these rows has room for.

    Where the policy is not `roomy`, a full tail has all rows wait and moves KV, so that tails have
    room for `SHORT_TOKENS`.
    """
    longest = max(row.room for row in rows)
    if not residency.roomy:
        return min(longest, SHORT_TOKENS)
    short = max(row.limit - row.start for row in rows) <= SHORT_TOKENS
    first = SHORT_STEP_TOKENS if short else FIRST_TOKENS
    share = sum(row.written for row in rows) // (len(rows) * WRITTEN_PER_ROOM)
    whole = share // FIRST_TOKENS * FIRST_TOKENS
    return min(longest, max(first, min(whole, SHORT_TOKENS)))


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
