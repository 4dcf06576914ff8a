"""Admission: which of the branches that wait decode next, as far as there is room."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain
from math import inf

from ttc.attention.plan import depth_first
from ttc.errors import InvalidInput, OutOfMemory
from ttc.passes.runtime import Runtime
from ttc.scheduler.rows import Request, Row, paths
from ttc.scheduler.running_tails import RunningTails
from ttc.scheduler.stops import Gate, check_gate
from ttc.tree.branch import Branch


class Admission:
    """The rows that are not at work, and the choice of those that come next: first come, first
    served, all rows of one request at once.

    waiting: the rows of each request, in the order in which they came.
    groups: rows whose groups were chosen, to decode their step when those at work have.
    capacity: the tokens that each tail of the groups has room for.
    """

    def __init__(self, runtime: Runtime, gate: Gate | None, max_rows: int | None):
        if max_rows is not None and max_rows < 1:
            raise InvalidInput(f"max_rows={max_rows} must be at least 1, or None for no limit")
        self.runtime = runtime
        self.gate = gate
        self.max_rows = inf if max_rows is None else max_rows
        self.waiting: list[list[Row]] = []
        self.groups: list[list[Row]] = []
        self.capacity = 0

    def __iter__(self) -> Iterator[Row]:
        return chain(*self.groups, *self.waiting)

    def add(self, rows: list[Row]) -> None:
        """The rows of a request wait from now on."""
        if rows:
            self.waiting.append(rows)

    def forget(self, branches: set[Branch]) -> None:
        """Rows of branches that are about to be released leave."""
        self.groups = _without(self.groups, branches)
        self.waiting = _without(self.waiting, branches)

    def clear(self) -> None:
        self.waiting = []
        self.groups = []

    def put_back(self, rows: Sequence[Row]) -> None:
        """Rows that were at work, and those of the groups, wait again before all others."""
        begun: dict[Request, list[Row]] = {}
        for row in chain(rows, *self.groups):
            begun.setdefault(row.request, []).append(row)
        self.groups = []
        self.waiting = [*begun.values(), *self.waiting]

    def choose_groups(self, make_way: Callable[[], bool]) -> None:
        """Have the policy say which of the waiting rows decode together: of as many requests as it
        has room for.

        make_way: has other batches give up their room, and says whether any did. Raises OutOfMemory
            where one request alone does not fit.
        """
        ends = list(accumulate(map(len, self.waiting)))
        count = max(1, bisect_right(ends, self.max_rows))
        while True:
            try:
                self.groups = self._grouped(list(chain(*self.waiting[:count])))
                break
            except OutOfMemory:
                if count == 1 and not make_way():
                    raise
                count = max(1, count - 1)
        del self.waiting[:count]

    def _grouped(self, rows: list[Row]) -> list[list[Row]]:
        rows = [rows[i] for i in depth_first([row.branch.leaf.path() for row in rows])]
        for leaf in dict.fromkeys(row.branch.leaf for row in rows):
            self.runtime.tree.compact(leaf)
        self.capacity = max(row.room for row in rows)
        chosen = self.runtime.residency.groups(paths(rows), self.capacity)
        check_gate(self.gate, len(rows), chosen)
        return [[rows[i] for i in sorted(group)] for group in chosen]

    def next_group(self) -> tuple[list[Row], list[Row]]:
        """The group that decodes now, and the one after it."""
        rows = self.groups.pop(0)
        return rows, self.groups[0] if self.groups else []

    def join(self, rows: Sequence[Row], tails: RunningTails) -> list[Row]:
        """The waiting rows that find room with those at work, which have their tails then."""
        joined: list[Row] = []
        while self.waiting:
            coming = self.waiting[0]
            at_work = [*rows, *joined]
            if len(at_work) + len(coming) > self.max_rows or not tails.make_room(at_work, coming):
                break
            joined += self.waiting.pop(0)
        for leaf in dict.fromkeys(row.branch.leaf for row in joined):
            self.runtime.tree.compact(leaf)
        return joined


def _without(parts: Sequence[Sequence[Row]], branches: set[Branch]) -> list[list[Row]]:
    left = [[row for row in rows if row.branch not in branches] for rows in parts]
    return [rows for rows in left if rows]
