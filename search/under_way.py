"""The problems that are under way, and the work on them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field

from search.active_search import ActiveSearch
from ttc.results import Progress
from ttc.sampling import Sampling
from ttc.step import Step
from ttc.tree.branch import Branch

Events = Generator[tuple[int, Progress], None, None]
"""What happened, each with the number of its problem."""

PassEvents = Iterator[tuple[int, Progress] | None]
"""What happened, and None after each pass of the model, where the work may be left for a while."""

BeginDecoding = Callable[[ActiveSearch, list[Branch], Step, Sampling], None]
"""Lets new branches decode a step, or a phase of one."""


@dataclass(eq=False)
class Work:
    """What goes on pass by pass, and the problems that it is for, by their numbers.

    tokens: of the prompts or ratings that it computes. begins: whether problems begin with it.
    """

    task: PassEvents
    indices: set[int]
    tokens: int = 0
    begins: bool = False

    def close(self) -> None:
        if isinstance(self.task, Generator):
            self.task.close()


@dataclass(eq=False)
class UnderWay:
    """The problems that have begun and not ended, by their numbers.

    active: all of them. timed: those whose time may run out, or that can be cancelled.
    idle: those that don't decode, so that no step goes through all that do.
    works: what goes on with the next steps, the first of them first.
    """

    active: dict[int, ActiveSearch] = field(default_factory=dict)
    timed: dict[int, ActiveSearch] = field(default_factory=dict)
    idle: dict[int, ActiveSearch] = field(default_factory=dict)
    works: list[Work] = field(default_factory=list)

    def enter(self, active: ActiveSearch) -> None:
        self.active[active.index] = self.idle[active.index] = active
        if active.can_be_overdue:
            self.timed[active.index] = active

    def leave(self, index: int) -> ActiveSearch | None:
        self.timed.pop(index, None)
        self.idle.pop(index, None)
        return self.active.pop(index, None)

    def withdraw(self, index: int) -> None:
        for work in list(self.works):
            work.indices.discard(index)
            if not work.indices:
                self.works.remove(work)
                work.close()

    def decodes(self, active: ActiveSearch) -> None:
        self.idle.pop(active.index, None)

    def rests(self, active: ActiveSearch) -> None:
        if active.index in self.active:
            self.idle[active.index] = active

    def resting(self) -> list[ActiveSearch]:
        return in_order(self.idle.values())

    def add_work(self, active: ActiveSearch, task: PassEvents) -> None:
        self.works.append(Work(task, {active.index}))

    def clear(self) -> list[ActiveSearch]:
        searches = list(self.active.values())
        self.active.clear()
        self.timed.clear()
        self.idle.clear()
        return searches


def in_order(searches: Iterable[ActiveSearch]) -> list[ActiveSearch]:
    return sorted(searches, key=lambda active: active.spending.started)
