"""The problems that are under way, and the work on them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

from search.active_search import ActiveSearch
from ttc.branch import Branch
from ttc.results import Progress
from ttc.sampling import Sampling
from ttc.step import Step

Events = Generator[tuple[int, Progress], None, None]
"""What happened, each with the number of its problem."""

PassEvents = Iterator[tuple[int, Progress] | None]
"""What happened, and None after each pass of the model, where the work may be left for a while."""

BeginDecoding = Callable[[ActiveSearch, list[Branch], Step, Sampling], None]
"""Lets new branches decode a step, or a part of one."""


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
    """active: the problems that have begun and not ended, by their numbers, in the order in which
    they began. works: what goes on with the next steps, the first of them first."""

    active: dict[int, ActiveSearch] = field(default_factory=dict)
    works: list[Work] = field(default_factory=list)

    def resting(self) -> list[ActiveSearch]:
        """Those that don't decode."""
        return [active for active in self.active.values() if not active.growing]

    def add_work(self, active: ActiveSearch, task: PassEvents) -> None:
        self.works.append(Work(task, {active.index}))

    def withdraw(self, index: int) -> None:
        for work in list(self.works):
            work.indices.discard(index)
            if not work.indices:
                self.works.remove(work)
                work.close()
