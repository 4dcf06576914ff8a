"""A driver for many clients: none of them waits for all that another one asks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, inf
from typing import NamedTuple, TypeVar

from search.active_search import ActiveSearch
from search.admission import PROBLEMS, ProblemAdmission
from search.config import SearchConfig
from search.driver import Driver
from search.expansions import begin_children
from search.rates import price
from search.under_way import Events, Work
from ttc.backend import Backend
from ttc.branch import Branch
from ttc.engine import Engine
from ttc.errors import VerifierError
from ttc.protocols import Expand, Rate, Vary
from ttc.results import Problem
from ttc.sampling import Sampling
from ttc.step import Step

T = TypeVar("T")

SHORT = 256
"""Tokens of a prompt, or of a rating, that is computed together with others."""

PASS_S = 0.2
"""What a pass over a part of a long prompt or rating should take, in seconds."""

LEAST_ROWS = 16
"""The fewest rows of such a pass."""

FEW = 16
"""Branches that a client may have decode beyond the most rows, where it has none there: as many at
most, and half of the rows that are left there."""

SPARE = 4
"""One row in so many is kept beyond the most, for clients that have none."""


class Origin(NamedTuple):
    """Where a problem comes from, and how many tokens its prompt has."""

    client: Hashable
    tokens: int


class Unseated(NamedTuple):
    """New branches that wait for a place in the batch."""

    active: ActiveSearch
    children: list[Branch]
    step: Step
    sampling: Sampling


@dataclass
class FairDriver(Driver):
    """A driver that shares its passes among clients.

    A long prompt or rating is computed by itself, a pass at a time. Short ones are computed as many
    together as a pass has rows for, so that the first of them need not wait for the last. Between
    two passes all that decode get a token. Every other pass is for the oldest work; the rest are
    for short prompts, and for the shortest of the other works where there are none. The next
    problem to begin, and the next branches to decode, are those of the client that has the fewest.
    Where all rows are taken, a client that has none gets spare ones for up to `FEW` branches, the
    fewest branches first.

    origins: of each problem that is waiting or under way. unseated: the branches that wait for
    rows, in order.
    max_rows: the most branches that decode at once, but for the spare rows.
    pace: keeps a pass over a long prompt short. long_passes: how many of these were made.
    decoded, oldest: whether the last step was a token, and whether the last work was the oldest.
    """

    origins: dict[int, Origin] = field(default_factory=dict)
    unseated: list[Unseated] = field(default_factory=list)
    max_rows: int | None = None
    pace: PassPace | None = None
    long_passes: int = 0
    decoded: bool = False
    oldest: bool = False

    @classmethod
    def of(
        cls, engine: Backend, concurrency: int | None, pace: PassPace | None = None
    ) -> FairDriver:
        """concurrency: the most problems under way, None for as many as there is room for."""
        if not engine.joins:
            return cls(engine, ProblemAdmission.of(engine, concurrency), contained=True)
        at_first = PROBLEMS if concurrency is None else inf
        most = engine.most_rows
        admission = ProblemAdmission(engine.running_batch(None), concurrency, most, at_first)
        return cls(engine, admission, contained=True, max_rows=most, pace=pace)

    def add_from(
        self, problem: Problem, config: SearchConfig, client: Hashable, tokens: int
    ) -> int:
        """`add`, for a client. tokens: of the prompt."""
        number = self.add(problem, config)
        self.origins[number] = Origin(client, tokens)
        self.admission.note_expansion(1, tokens, 1)
        return number

    def cancel(self, index: int) -> None:
        super().cancel(index)
        self.origins.pop(index, None)

    def step(self) -> Events:
        began = time.perf_counter()
        passes = self.long_passes
        for number, progress in super().step():
            if progress.result is not None:
                self.origins.pop(number, None)
            yield number, progress
        if self.pace is not None and self.long_passes > passes:
            self.pace.note(time.perf_counter() - began)

    def schedule(self) -> Work | None:
        self._take_on()
        self._seat()
        if not self.works or (self.decoding and not self.decoded):
            self.decoded = True
            return None
        self.decoded = False
        self.oldest = not self.oldest
        work = self.works[0] if self.oldest else min(self.works, key=self._rank)
        self.long_passes += work.tokens > SHORT
        return work

    def _rank(self, work: Work) -> tuple[bool, bool, int]:
        """What comes first of several works: short prompts, as somebody waits for a first token;
        then the shortest, but for the oldest, which has passes of its own."""
        urgent = work.begins and work.tokens <= SHORT * len(work.indices)
        return not urgent, work is self.works[0], work.tokens

    # ------------------------------------------------------------ what begins

    def _take_on(self) -> None:
        """Have requests answered and problems begun: what needs no pass at once, a long prompt or
        rating by itself, the others in pieces."""
        at_work = {index for work in self.works for index in work.indices}
        together = dict[ActiveSearch, int]()
        for active in self.resting():
            if active.index in at_work:
                continue
            self.let_go(active)
            tokens = self._rating_tokens(active)
            if active.over or active.request is None:
                continue
            if isinstance(active.request, Expand):
                begin_children(self, active, active.request)
            elif isinstance(active.request, Vary) or tokens > SHORT:
                self.serve([active], tokens)
            else:
                together[active] = tokens
        for piece in self._pieces(together):
            self.serve(piece, sum(together[active] for active in piece))
        chosen = self._next_problems([index for index in self.waiting if index not in at_work])
        tokens_of = {index: self._origin(index).tokens for index in chosen}
        for beginning in self._pieces(tokens_of):
            self.start(beginning, sum(tokens_of[index] for index in beginning))

    def _pieces(self, tokens: Mapping[T, int]) -> Iterator[list[T]]:
        """What is computed together, in order: short prompts or ratings that fit one pass, and each
        long one by itself. tokens: of each."""
        rows = self.engine.runtime.prefill_tokens if isinstance(self.engine, Engine) else inf
        piece: list[T] = []
        for item, count in tokens.items():
            if count > SHORT:
                yield [item]
                continue
            if piece and sum(tokens[other] for other in piece) + count > rows:
                yield piece
                piece = []
            piece.append(item)
        if piece:
            yield piece

    def _rating_tokens(self, active: ActiveSearch) -> int:
        """What the verifier will read, as far as it says so; 0 for other requests."""
        if not isinstance(active.request, Rate) or active.over:
            return 0
        try:
            return price(self.engine, active, active.request)
        except VerifierError as error:
            active.fail(error)
            return 0

    def _next_problems(self, waiting: list[int]) -> list[int]:
        """Those of the waiting problems that begin now. One of a client that has none needs no free
        row."""
        if not waiting:
            return []
        under_way = len(self.active) + len(self.waiting) - len(waiting)
        count = self.admission.count(under_way, len(waiting))
        begun = Counter(
            origin.client for index, origin in self.origins.items() if index not in waiting
        )
        chosen: list[int] = []
        while waiting:
            index = min(waiting, key=lambda index: begun[self._origin(index).client])
            client = self._origin(index).client
            extra = not begun[client] and self.admission.has_room(under_way + len(chosen))
            if len(chosen) >= count and not extra:
                break
            waiting.remove(index)
            chosen.append(index)
            begun[client] += 1
        return chosen

    def _origin(self, index: int) -> Origin:
        return self.origins.get(index, Origin(None, 0))

    # ------------------------------------------------------------ who decodes

    def begin_decoding(
        self, active: ActiveSearch, children: list[Branch], step: Step, sampling: Sampling
    ) -> None:
        count = len(children)
        parts = ceil(count / (self.max_rows or count))  # each of them finds rows
        for part in range(parts):
            some = children[part * count // parts : (part + 1) * count // parts]
            self.unseated.append(Unseated(active, some, step, sampling))

    def _seat(self) -> None:
        """Give rows to branches that wait for them, in turn, and spare rows where the next ones
        have to wait."""
        decoding = self.decoding
        self.unseated = [group for group in self.unseated if group.children[0] in decoding]
        if not self.unseated:
            return
        waiting = {child for group in self.unseated for child in group.children}
        seated = (active for child, active in decoding.items() if child not in waiting)
        rows = Counter(self._origin(active.index).client for active in seated)
        waiting_groups = list(self.unseated)
        while waiting_groups:
            group = min(waiting_groups, key=lambda group: rows[self._client(group)])
            if not self._has_rows(len(group.children)):
                break
            waiting_groups.remove(group)
            self._seat_group(group, rows)
        for group in sorted(waiting_groups, key=lambda group: len(group.children)):
            few = len(group.children) <= FEW and not rows[self._client(group)]
            if few and self._has_rows(len(group.children), spare=True):
                self._seat_group(group, rows)

    def _client(self, group: Unseated) -> Hashable:
        return self._origin(group.active.index).client

    def _seat_group(self, group: Unseated, rows: Counter[Hashable]) -> None:
        """Let branches decode. rows: of each client."""
        self.unseated.remove(group)
        self.admission.batch.add(group.children, group.step, group.sampling)
        rows[self._client(group)] += len(group.children)

    def _has_rows(self, count: int, spare: bool = False) -> bool:
        if self.max_rows is None:
            return True
        at_work = len(self.admission.batch)
        most = self.max_rows + (max(FEW, self.max_rows // SPARE) if spare else 0)
        needed = 2 * count if spare else count  # as many are left for the next one
        return at_work + needed <= most or not at_work


@dataclass
class PassPace:
    """How many rows a pass over a prompt has, so that it takes about `PASS_S` on whatever
    machine."""

    engine: Engine

    def __post_init__(self) -> None:
        self.most = self.engine.runtime.prefill_tokens
        self.rows = min(self.most, 4 * LEAST_ROWS)

    @classmethod
    def of(cls, backend: Backend) -> PassPace | None:
        """For an engine of this process; another server has its own."""
        return cls(backend) if isinstance(backend, Engine) else None

    def note(self, seconds: float) -> None:
        """A pass has taken so long."""
        if seconds > 1.25 * PASS_S:
            self.rows = max(min(LEAST_ROWS, self.most), int(self.rows * PASS_S / seconds))
        elif seconds < PASS_S / 2:
            self.rows = min(self.most, 2 * self.rows)

    @property
    def rows(self) -> int:
        return self.engine.runtime.prefill_tokens

    @rows.setter
    def rows(self, rows: int) -> None:
        self.engine.runtime.prefill_tokens = rows
