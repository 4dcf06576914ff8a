"""What one problem may cost, what it has cost, and what is left."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING

from ttc.checks import Options, PositiveFloat, PositiveInt
from ttc.usage import Usage

if TYPE_CHECKING:
    from ttc.results import Stopped


@dataclass(frozen=True)
class Budget(Options):
    """What one problem may cost, null for no limit.

    Where a limit runs out, the search ends with the best so far and `Result.stopped` is its name.

    max_tokens: the most generated tokens and tokens that the verifier reads, computed or found in
        the tree, so that other problems and `sharing` change nothing. The last step is cut short to
        fit. Only a rating whose price the verifier cannot tell beforehand may exceed it (see
        `ttc.Priced`).
    max_generated_tokens: the most generated tokens, with rollouts and probes. It is never passed.
    max_calls: the most expansions, requests for one step of any number of branches. It changes
        nothing for searches that make one call, as `best_of_n`.
    max_tool_calls: the most calls of tools, checked before each expansion, so the calls of one step
        may exceed it.
    max_wall_s: seconds since the problem began, its prompt included, checked between any two passes
        of the model. It is the only limit with which results depend on the machine, and on what
        else is solved.
    """

    max_tokens: PositiveInt | None = None
    max_generated_tokens: PositiveInt | None = None
    max_calls: PositiveInt | None = None
    max_tool_calls: PositiveInt | None = None
    max_wall_s: PositiveFloat | None = None

    @property
    def limits(self) -> dict[str, int | float]:
        return {name: value for name, value in asdict(self).items() if value is not None}


LIMITS = tuple(option.name for option in fields(Budget))
UNLIMITED = Budget()


@dataclass(eq=False)
class Spending:
    """Counts what one problem costs against its budget.

    meters: what the branches of each model have cost, by the model's name.
    started: the time at which the search began, by `time.perf_counter`.
    expansions: how many `Expand`s the budget has paid for.
    scarcest: which limit leaves the fewest tokens, as `affordable` has seen it.
    """

    budget: Budget
    meters: dict[str, Usage]
    started: float = field(default_factory=time.perf_counter)
    expansions: int = 0
    scarcest: Stopped = "max_tokens"

    @property
    def usage(self) -> Usage:
        if len(self.meters) == 1:
            return next(iter(self.meters.values()))
        return sum(self.meters.values(), start=Usage())

    def meter(self, model: str, begun: Usage) -> Usage:
        """The meter of a model's branches. begun: what a new one of them has cost already."""
        meter = self.meters.setdefault(model, begun)
        if meter is not begun:
            vars(meter).update(vars(meter + begun))
        return meter

    @property
    def wall_s(self) -> float:
        return time.perf_counter() - self.started

    @property
    def spent_up(self) -> Stopped | None:
        """The limit that forbids another `Expand`, of those that count something else than
        tokens."""
        limits = self.budget
        if limits.max_tool_calls is not None and self.usage.tool_calls >= limits.max_tool_calls:
            return "max_tool_calls"
        if limits.max_calls is not None and self.expansions >= limits.max_calls:
            return "max_calls"
        return None

    @property
    def tokens_left(self) -> int | None:
        limit = self.budget.max_tokens
        return None if limit is None else limit - self.usage.budgeted_tokens

    def affordable(
        self, waiting: int, step: int, price: Callable[[int], int], unrated: int
    ) -> tuple[int, int]:
        """How many of the `waiting` children the budget pays for, and the tokens of each step.

        As many steps of `step` tokens as fit, else one with what is left.

        price: the tokens that rating so many children together takes. unrated: those that are
        still to be rated.
        """
        whole = waiting
        rooms: dict[Stopped, int] = {}
        if (left := self.tokens_left) is not None:
            rooms["max_tokens"] = left - price(unrated + 1)
            whole = bisect_right(
                range(1, waiting + 1), left, key=lambda count: count * step + price(unrated + count)
            )
        if (most := self.budget.max_generated_tokens) is not None:
            rooms["max_generated_tokens"] = left = most - self.usage.generated_tokens
            whole = min(whole, left // step)
        if rooms:
            self.scarcest = min(rooms, key=lambda name: rooms[name])
        room = min([step, *rooms.values()])
        return (whole, step) if whole > 0 else (int(room > 0), room)
