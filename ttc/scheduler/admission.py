"""Admission: which of the branches that wait decode next, as far as there is room."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from math import inf

from ttc.attention.pieces import depth_first
from ttc.backend import TOGETHER_TOKENS
from ttc.branch import Branch
from ttc.errors import InvalidInput, OutOfMemory
from ttc.passes.runtime import Runtime
from ttc.scheduler.rows import Request, Row, paths
from ttc.scheduler.stops import Gate, check_gate
from ttc.scheduler.writing import Writing, room_of


class Admission:
    """The rows that are not at work, and the choice of those that come next: first come, first
    served, all rows of one request at once where there is room for them.

    What rows are likely to write has to fit, not their limits. Where that was too little, the
    youngest rows wait, and where nothing else makes room they let go of their KV, which is computed
    again. Rows that a gate compares are never parted.

    make_way: has other batches give up their room, and says whether any did. wake: has the KV of
        branches there that was let go of. let_go: makes room for these branches at the cost of all
        others, and says whether there may be more now.
    waiting: the rows of each request, in the order in which they came. crowded: those who wait
        found no room, and nothing has changed since.
    groups: rows that decode their step when those at work have. Those of the first have their
        places when they are chosen.
    """

    def __init__(
        self,
        runtime: Runtime,
        writing: Writing,
        gate: Gate | None,
        max_rows: int | None,
        make_way: Callable[[], bool],
        wake: Callable[[Sequence[Branch]], None],
        let_go: Callable[[Sequence[Branch]], bool],
    ):
        if max_rows is not None and max_rows < 1:
            raise InvalidInput(f"max_rows={max_rows} must be at least 1, or None for no limit")
        self.runtime = runtime
        self.writing = writing
        self.gate = gate
        self.max_rows = inf if max_rows is None else max_rows
        self.make_way = make_way
        self.wake = wake
        self.let_go = let_go
        self.lengths = Lengths()
        self.waiting: list[list[Row]] = []
        self.crowded = False
        self.groups: list[list[Row]] = []

    def __iter__(self) -> Iterator[Row]:
        return chain(*self.groups, *self.waiting)

    def add(self, rows: list[Row]) -> None:
        if rows:
            self.waiting.append(rows)
            self.crowded = False

    def note_end(self, row: Row) -> None:
        """The step of a row is over."""
        self.lengths.note(row)
        self.crowded = False

    def forget(self, branches: set[Branch]) -> None:
        """Rows of branches that are about to be released leave."""
        self.writing.close([row for row in self if row.branch in branches], done=True)
        self.groups = _without(self.groups, branches)
        self.waiting = _without(self.waiting, branches)
        self.crowded = False

    def clear(self) -> None:
        self.writing.close(self, done=True)
        self.waiting = []
        self.groups = []

    def put_back(self, rows: Sequence[Row]) -> None:
        """Rows that were at work, and those of the groups, wait again, the oldest first."""
        self.writing.close([*rows, *self], done=True)
        requests: dict[Request, list[Row]] = {}
        for row in sorted([*rows, *self], key=lambda row: row.number):
            requests.setdefault(row.request, []).append(row)
        self.groups = []
        self.waiting = list(requests.values())
        self.crowded = False

    # ---------------------------------------------------------------- all anew

    def choose_groups(self) -> None:
        """Have the policy say which of the waiting rows decode together: of as many requests as it
        has room for, else of as many rows. Raises OutOfMemory where one row alone does not fit."""
        ends = list(accumulate(map(len, self.waiting)))
        requests = max(1, bisect_right(ends, self.max_rows))
        while requests > 1 and not self._likely_to_fit(chain(*self.waiting[:requests])):
            requests -= 1
        count = ends[requests - 1]
        while True:
            rows = list(chain(*self.waiting))[:count]
            try:
                self._have_kv(rows)
                self.groups = self._grouped(rows)
                self.writing.enter(self.groups[0])
                break
            except OutOfMemory:
                self.groups = []
                if count > ends[0]:
                    count = ends[bisect_left(ends, count) - 1]
                elif self.make_way():
                    continue
                elif count > 1 and self.gate is None:
                    count = count // 2
                elif not self._let_go(rows):
                    raise
        self._take(count)
        self.crowded = bool(self.waiting)

    def _likely_to_fit(self, rows: Iterable[Row]) -> bool:
        left = [row.filled + self._likely(row) for row in rows]
        return self.runtime.residency.has_room(sum(left), len(left))

    def _likely(self, row: Row) -> int:
        """How many more tokens a row is likely to write, at least those that it gets room for."""
        return max(min(row.room, room_of(row)), self.lengths.left(row))

    def _grouped(self, rows: list[Row]) -> list[list[Row]]:
        rows = [rows[i] for i in depth_first([row.branch.leaf.path() for row in rows])]
        tokens = min(TOGETHER_TOKENS, max(row.room for row in rows))
        chosen = self.runtime.residency.begin_step(paths(rows), tokens)
        check_gate(self.gate, len(rows), chosen)
        return [[rows[i] for i in sorted(group)] for group in chosen]

    def _have_kv(self, rows: Sequence[Row]) -> None:
        """Compute the KV again that some have let go of. Raises OutOfMemory."""
        if lost := [row for row in rows if row.filled]:
            self.wake([row.branch for row in lost])

    def _let_go(self, rows: Sequence[Row]) -> bool:
        """Free the KV of the youngest row that waits, not one of `rows`, else of another branch,
        else finish calls that have begun; says whether there was any."""
        youngest = [row.branch for row in reversed(list(chain(*self.waiting))) if row not in rows]
        return any(map(self.runtime.tree.let_go, youngest)) or self.let_go(
            [row.branch for row in rows]
        )

    def _take(self, count: int) -> list[Row]:
        rows: list[Row] = []
        while len(rows) < count:
            part = self.waiting.pop(0)
            left = count - len(rows)
            rows += part[:left]
            if part[left:]:
                self.waiting.insert(0, part[left:])
        return rows

    def next_group(self) -> list[Row]:
        """The group that decodes now. Raises OutOfMemory, and changes nothing then."""
        if self.groups[0][0].begun is None:
            self.writing.enter(self.groups[0])
        return self.groups.pop(0)

    # ---------------------------------------------------------------- beside those at work

    def join(self, rows: Sequence[Row]) -> list[Row]:
        """The rows that wait longest, where they find room with those at work: they have their
        places then."""
        count = self._joining(rows) if self.waiting else 0
        self.crowded = bool(self.waiting) and not count
        return self._take(count)

    def _joining(self, at_work: Sequence[Row]) -> int:
        """How many of the first request's rows find room: all or none, or as many as do of those
        that were parted from others before."""
        coming = self.waiting[0]
        if len(at_work) + len(coming) > self.max_rows:
            return 0
        count = len(coming)
        parted = self.gate is None and count < len(coming[0].request.branches)
        while count and not self._find_room(at_work, coming[:count]):
            count = count // 2 if parted else 0
        return count

    def _find_room(self, at_work: Sequence[Row], coming: Sequence[Row]) -> bool:
        try:
            self._have_kv(coming)
            rows = [*at_work, *coming]
            if not self.runtime.residency.has_room(sum(map(self._likely, rows)), len(rows)):
                return False
            self.writing.open(coming)
        except OutOfMemory:
            return False
        return True


def _without(parts: Sequence[Sequence[Row]], branches: set[Branch]) -> list[list[Row]]:
    left = [[row for row in rows if row.branch not in branches] for rows in parts]
    return [rows for rows in left if rows]


class Lengths:
    """How long steps are: what those that have ended came to, by the strings that end them."""

    def __init__(self) -> None:
        self.tokens = Counter[tuple[str, ...]]()
        self.steps = Counter[tuple[str, ...]]()

    def note(self, row: Row) -> None:
        self.tokens[row.request.stops.stop] += row.written
        self.steps[row.request.stops.stop] += 1

    def left(self, row: Row) -> int:
        """How many more tokens a row is likely to write: what steps like this one have come to on
        average, less what it has; but as many again as it has written, as who has written much goes
        on for long."""
        kind = row.request.stops.stop
        mean = self.tokens[kind] // self.steps[kind] if self.steps[kind] else 0
        return min(row.limit - row.start - row.written, max(mean - row.written, row.written))
