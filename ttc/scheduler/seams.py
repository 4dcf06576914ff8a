"""What an engine and its batches ask of parts: drafts (`ttc.speculation`), and the pass ahead
(`ttc.cuda`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from torch import Tensor

    from ttc.attention.plan import Plan
    from ttc.branch import Branch
    from ttc.passes.runtime import Runtime
    from ttc.scheduler.rows import Row
    from ttc.tree.branch import StepEnd


class DraftChecks(Protocol):
    """The passes of one batch that check drafted tokens."""

    def check(self, rows: Sequence[Row], pause: Callable[[], None]) -> dict[Row, StepEnd] | None:
        """A pass over drafted tokens, of which each row keeps those that it draws: the rows whose
        step is over then. None where nothing is drafted. pause: called before it, and the tree has
        all that the rows have written."""
        ...


class Drafts(Protocol):
    """Guesses tokens for the branches of an engine. reason: why it does not, "" where it does."""

    reason: str

    def for_engine(self, engine: Any) -> Self:
        """A copy that drafts for this engine."""
        ...

    def checks(self, runtime: Runtime) -> DraftChecks | None:
        """What a batch checks drafts with, None where nothing is drafted."""
        ...

    def released(self, branches: Iterable[Branch]) -> None:
        """These branches were released."""
        ...


class PassAhead(Protocol):
    """A pass that is launched before the last token is read."""

    def may_launch(self, rows: Sequence[Row]) -> bool:
        """Whether a pass may be made of the tokens that are being drawn."""
        ...

    def launch(self, rows: Sequence[Row], plan: Plan, tokens: Tensor) -> None: ...

    def take(self, rows: Sequence[Row]) -> Tensor | None:
        """The logits of these rows, which decode now; None where they have to be computed."""
        ...

    def drop(self) -> None: ...
