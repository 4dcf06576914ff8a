"""What one problem may cost, what it has cost, and what is left."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ttc.checks import NonNegativeInt, Options, PositiveFloat, PositiveInt
from ttc.usage import Usage

if TYPE_CHECKING:
    from ttc.results import Stopped

LIMITS = ("max_tokens", "max_generated_tokens", "max_calls", "max_tool_calls", "max_wall_s")
"""The fields of a budget that each end a search by themselves."""


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
    reserve: so many of the last tokens, and the last call, are kept to finish the best branch so
        far, where a budget ended the search before that branch was finished; no time is.
    final_text: put after it first, to ask for the answer.
    """

    max_tokens: PositiveInt | None = None
    max_generated_tokens: PositiveInt | None = None
    max_calls: PositiveInt | None = None
    max_tool_calls: PositiveInt | None = None
    max_wall_s: PositiveFloat | None = None
    reserve: NonNegativeInt = 0
    final_text: str = ""

    def refusals(self) -> Mapping[str, object]:
        tokens = {name: getattr(self, name) for name in ("max_tokens", "max_generated_tokens")}
        return {
            f"reserve={self.reserve} is a part of a budget; give max_tokens or max_calls too": (
                self.reserve and not any((*tokens.values(), self.max_calls))
            ),
            **{
                f"reserve={self.reserve} leaves nothing of {name}={value} to search with; give "
                "less": value is not None and self.reserve >= value
                for name, value in tokens.items()
            },
            "final_text asks for an answer with the reserve; give reserve=N tokens too": (
                self.final_text and not self.reserve
            ),
        }

    @property
    def limits(self) -> dict[str, int | float]:
        return {name: value for name in LIMITS if (value := getattr(self, name)) is not None}


UNLIMITED = Budget()


@dataclass(eq=False)
class Spending:
    """Counts what one problem costs against its budget.

    meters: what the branches of each model have cost, by the model's name.
    started: the time at which the search began, by `time.perf_counter`.
    expansions: how many `Expand`s the budget has paid for.
    reserve_opened: whether the reserve may be spent; until then it is not the search's.
    scarcest: which limit leaves the fewest tokens, as `affordable` has seen it.
    """

    budget: Budget
    meters: dict[str, Usage]
    started: float = field(default_factory=time.perf_counter)
    expansions: int = 0
    reserve_opened: bool = False
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
    def spent_calls(self) -> Stopped | None:
        """The limit of calls that pays for no more `Expand`; the reserve keeps one, and the last
        words may call tools."""
        calls, tool_calls = self.budget.max_calls, self.budget.max_tool_calls
        closed = not self.reserve_opened
        if tool_calls is not None and closed and self.usage.tool_calls >= tool_calls:
            return "max_tool_calls"
        kept = self.budget.reserve > 0 and closed
        return "max_calls" if calls is not None and self.expansions + kept >= calls else None

    @property
    def tokens_left(self) -> dict[Stopped, int]:
        """What is left of each limit of tokens that there is, without the reserve."""
        usage, limits = self.usage, self.budget.limits
        kept = 0 if self.reserve_opened else self.budget.reserve
        spent: dict[Stopped, int] = {
            "max_tokens": usage.budgeted_tokens,
            "max_generated_tokens": usage.generated_tokens,
        }
        return {n: int(limits[n]) - tokens - kept for n, tokens in spent.items() if n in limits}

    def affordable(
        self, waiting: int, step: int, price: Callable[[int], int], unrated: int
    ) -> tuple[int, int]:
        """How many of the `waiting` children the budget pays for, and the tokens of each step.

        As many steps of `step` tokens as fit, else one with what is left.

        price: the tokens that rating so many children together takes. unrated: those that are
        still to be rated.
        """
        whole, rooms = waiting, self.tokens_left
        if (left := rooms.get("max_tokens")) is not None:
            rooms["max_tokens"] = left - price(unrated + 1)
            whole = bisect_right(
                range(1, waiting + 1), left, key=lambda count: count * step + price(unrated + count)
            )
        if (left := rooms.get("max_generated_tokens")) is not None:
            whole = min(whole, left // step)
        if rooms:
            self.scarcest = min(rooms, key=lambda name: rooms[name])
        room = min([step, *rooms.values()])
        return (whole, step) if whole > 0 else (int(room > 0), room)
