"""The pass of the next token, launched before the processor has read the last one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ttc.attention.plan import Plan
from ttc.memory.storage import Storage
from ttc.passes.runtime import Runtime
from ttc.residency.resident import Resident
from ttc.scheduler.rows import Row, rows_of
from ttc.scheduler.seams import DraftChecks
from ttc.scheduler.stops import Gate

SHARE = 8
"""In the long run, at most one token in so many has a pass made for nothing."""


class PassAhead:
    """One pass, launched as soon as its tokens are drawn on the device. So a GPU computes while the
    processor reads these tokens, looks for stops, and lets the searches go on.

    What it gives is used for the rows that decode on, for no row's logits depend on the others. A
        pass that does not fit the next token is dropped, and made again. It then writes the same KV
        to the same places, and what it has written of rows that ended lies behind theirs. So
        results and usage are those without it.

    launched, used: how many passes were so far.
    """

    def __init__(self, runtime: Runtime):
        self.runtime = runtime
        self.launched = 0
        self.used = 0
        self._rows: dict[Row, tuple[int, Storage]] = {}  # their numbers in the pass, and storages
        self._logits: Tensor | None = None  # None while no pass is ahead
        self._credit = 2 * SHARE  # a token gives 1, a dropped pass takes SHARE

    def may_launch(self, rows: Sequence[Row]) -> bool:
        """Whether a pass may be made of the tokens that are being drawn. Asked once a token.

        Not where draws read tokens, where passes are traced or hooks take part in them, where
        other rows are likely to join, and where the limit of a row ends it with this token.
        """
        self._credit = min(self._credit + 1, 2 * SHARE)
        runtime = self.runtime
        return (
            self._credit >= SHARE
            and not any(runtime.settings.drawing(row.request.sampling).reads_texts for row in rows)
            and not runtime.under_way
            and runtime.runner.trace is None
            and not runtime.runner.watch.last.is_patched()
            and all(len(row.branch.tokens) + 1 < row.limit for row in rows)
        )

    def launch(self, rows: Sequence[Row], plan: Plan, tokens: Tensor) -> None:
        """Make the pass of tokens that the device has. The plan counts it when it is used."""
        self._logits = self.runtime.runner.forward(tokens, plan)
        self._rows = {row: (i, row.branch.leaf.storage) for i, row in enumerate(rows)}
        self.launched += 1

    def take(self, rows: Sequence[Row]) -> Tensor | None:
        """The logits of these rows, which decode now; None where they have to be computed. Raises
        UnsupportedModel where a pass would."""
        if self._logits is None:
            return None
        if not all(self._knows(row) for row in rows):
            self.drop()
            return None
        self.runtime.runner.check_attention()
        logits, places = self._logits, [self._rows[row][0] for row in rows]
        self._logits = None
        self._rows = {}
        self.used += 1
        return logits if places == [*range(len(logits))] else rows_of(logits, places)

    def _knows(self, row: Row) -> bool:
        """Whether a row was in the pass, and still writes where it did."""
        return row in self._rows and self._rows[row][1] is row.branch.leaf.storage

    def drop(self) -> None:
        if self._logits is not None:
            self._logits = None
            self._rows = {}
            self._credit -= SHARE


def pass_ahead(runtime: Runtime, gate: Gate | None, drafts: DraftChecks | None) -> PassAhead | None:
    """A place for passes ahead; None where they would gain nothing or change something: a processor
    computes at once, a gate and drafts need the tokens first, and states of recurrent layers cannot
    be written twice. KV or weights that move do so pass by pass."""
    possible = (
        runtime.run_ahead
        and gate is None
        and drafts is None
        and runtime.runner.recurrent is None
        and type(runtime.residency) is Resident
        and runtime.runner.link is None
    )
    return PassAhead(runtime) if possible else None
