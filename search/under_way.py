"""What a driver and the handlers of requests share: problems under way, and the work on them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from search.active_search import ActiveSearch
from search.admission import ProblemAdmission
from ttc.backend import Backend
from ttc.branch import Branch
from ttc.errors import InvalidInput
from ttc.results import Progress
from ttc.sampling import Sampling
from ttc.step import Step
from ttc.task import Task

Item = TypeVar("Item")
T = TypeVar("T")

Events = Generator[tuple[int, Progress], None, None]
"""What happened, each with the number of its problem."""

PassEvents = Generator[tuple[int, Progress] | None, None, None]
"""What happened, and None after each pass of the model, where the work may be left for a while."""


@dataclass(eq=False)
class Work:
    """What goes on pass by pass, and the problems that it is for, by their numbers.

    tokens: of the prompts or ratings that it computes. begins: whether problems begin with it.
    """

    task: PassEvents
    indices: set[int]
    tokens: int = 0
    begins: bool = False


@dataclass
class UnderWay:
    """active: the problems that have begun and not ended, by their numbers, in the order in which
    they began. works: what goes on with the next steps, the first of them first.
    decoding: the branches whose step is under way, and the search of each.
    tools: what branches wait for that call tools; None before the first.
    """

    engine: Backend
    admission: ProblemAdmission
    active: dict[int, ActiveSearch] = field(init=False, default_factory=dict)
    works: list[Work] = field(init=False, default_factory=list)
    decoding: dict[Branch, ActiveSearch] = field(init=False, default_factory=dict)
    tools: Any = field(init=False, default=None)

    def resting(self) -> list[ActiveSearch]:
        """The searches that don't decode."""
        return [active for active in self.active.values() if not active.growing]

    def begin_decoding(
        self, active: ActiveSearch, children: list[Branch], step: Step, sampling: Sampling
    ) -> None:
        """Let new branches decode a step, or a part of one."""
        self.admission.batch.add(children, step, sampling)

    def stop_decoding(self, active: ActiveSearch) -> None:
        growing = list(active.growing)
        for child in growing:
            self.decoding.pop(child, None)
        if self.tools is not None:
            self.tools.forget(growing)
        self.admission.batch.withdraw(growing)

    def withdraw(self, index: int) -> None:
        """Work for a problem no more."""
        for work in list(self.works):
            work.indices.discard(index)
            if not work.indices:
                self.works.remove(work)
                work.task.close()


def tasks_of(
    items: Sequence[Item],
    call: Callable[[Sequence[Item]], Task[T]],
    refused: Callable[[Item, InvalidInput], object],
) -> list[tuple[Task[T], Sequence[Item]]]:
    """One call of the backend for all of these; where it refuses them, one for each, without those
    that it refuses alone."""
    if not items:
        return []
    try:
        return [(call(items), items)]
    except InvalidInput as error:
        if len(items) == 1:
            refused(items[0], error)
            return []
    return [made for item in items for made in tasks_of([item], call, refused)]
