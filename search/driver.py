"""The driver: advances the searches of many problems together, each as soon as its own request is
answered.

All branches decode in one batch. A search whose branches have ended their step goes on (is rated,
lets branches go, expands others) while those of other problems decode, and new problems begin as
soon as there is room. Problems may be added and cancelled at any time, and each has a configuration
of its own; its result depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

from search.active_search import ActiveSearch
from search.admission import ProblemAdmission
from search.base import Request
from search.beginnings import Beginnings
from search.config import SearchConfig
from search.expansions import Expansions
from search.under_way import Events, PassEvents, UnderWay, Work, in_order
from ttc.backend import Backend
from ttc.errors import TTCError, VerifierError
from ttc.origin import error_text
from ttc.parts import load
from ttc.protocols import Append, Expand, Handoff, Rate, Release, Vary
from ttc.results import Problem
from ttc.sampling import Sampling
from ttc.step import Step
from ttc.tree.branch import Branch

HANDLERS: dict[type[Request], str] = {
    Vary: "search.prompted:vary",
    Handoff: "search.prompted:hand_on",
    Append: "search.appends:append",
    Expand: "search.expansions:expand",
    Rate: "search.rates:rate",
}
"""What answers each kind of request, in the order in which they are answered: a function of the
driver and of the searches that ask, each with its request. It is loaded with the first request;
`Driver.let_go` answers `Release` before all."""


@contextmanager
def exits_told() -> Iterator[None]:
    """sys.exit in a search of a user's would end the process without a word."""
    try:
        yield
    except SystemExit as error:
        raise TTCError(f"code of a search raised {error_text(error)}") from error


@dataclass
class Driver:
    """Answers the requests of searches. One per call of `solve`, `solve_each` or `stream`, and one
    per server.

    strict: a problem that cannot be used raises, rather than having a result that says so.
        contained: so it is with an error that a search raises, which else ends all.
    each_token: what has been written is said after each token.
    waiting: the problems that have not begun, by their numbers. added: how many there ever were.
    under_way: those that have begun, and the work on them.
    expansions: the branches that decode.
    """

    engine: Backend
    admission: ProblemAdmission
    strict: bool = False
    contained: bool = False
    each_token: bool = False
    waiting: dict[int, tuple[Problem, SearchConfig]] = field(default_factory=dict)
    under_way: UnderWay = field(default_factory=UnderWay)
    added: int = 0
    expansions: Expansions = field(init=False)

    def __post_init__(self) -> None:
        self.expansions = Expansions(
            self.engine, self.admission, self.under_way, self.begin_decoding
        )

    @property
    def active(self) -> dict[int, ActiveSearch]:
        """The problems under way, by their numbers."""
        return self.under_way.active

    @property
    def busy(self) -> bool:
        """Whether there is anything left to do."""
        return bool(self.waiting or self.active)

    def add(self, problem: Problem, config: SearchConfig) -> int:
        """Let a problem begin as soon as there is room. Returns its number: how many were added
        before."""
        self.waiting[self.added] = problem, config
        self.added += 1
        return self.added - 1

    def cancel(self, index: int) -> None:
        """Let go of a problem, waiting or under way, and of all that it holds. Nothing more is said
        of it."""
        self.waiting.pop(index, None)
        if (active := self.under_way.leave(index)) is not None:
            self.expansions.stop(active)
            try:
                active.end()
            finally:
                self._release([active])
        self.under_way.withdraw(index)

    def events(self) -> Events:
        """Do all that there is to do, then close."""
        try:
            while self.busy:
                yield from self.step()
        except Exception:
            with exits_told():
                yield from self._end(self._done())  # what others have come to is not lost
            raise
        finally:
            self.close()

    def step(self) -> Events:
        """One pass of the model, or less: whoever drives may do anything between two steps.

        Searches that were cancelled or whose time is up end, and the results of all that have ended
        are given. Then the requests of those who don't decode are answered. Where there are none,
        new problems begin; where none can, all branches that decode get a token.
        """
        with exits_told():
            yield from self.postprocess()
            yield from self.run(self.schedule())

    def postprocess(self) -> Events:
        """What the last pass has brought about: searches that end, and answers of tools."""
        self._break_off_overdue()
        yield from self._end(self._done())
        self.expansions.take_answers()

    def schedule(self) -> Work | None:
        """What goes on now, None for a token of all that decode."""
        works = self.under_way.works
        if not works:
            if resting := self.under_way.resting():
                self.serve(resting)
            elif count := self.admission.count(len(self.active), len(self.waiting)):
                self.start(list(islice(self.waiting, count)))
        return works[0] if works else None

    def run(self, work: Work | None) -> Events:
        """Go on with it, for one pass at most."""
        if work is None:
            yield from self.expansions.decode(self.each_token)
            return
        for event in work.task:
            if event is None:
                return
            yield event
        if work in self.under_way.works:
            self.under_way.works.remove(work)

    def serve(self, searches: list[ActiveSearch], tokens: int = 0) -> None:
        """Have the requests of these searches answered. tokens: that their verifier reads."""
        indices = {active.index for active in searches}
        self.under_way.works.append(Work(self._answer(searches), indices, tokens))

    def start(self, indices: Sequence[int], tokens: int = 0) -> None:
        """Have these problems begin. tokens: of their prompts."""
        self.under_way.works.append(Work(self._begin(indices), set(indices), tokens, begins=True))

    def begin_decoding(
        self, active: ActiveSearch, children: list[Branch], step: Step, sampling: Sampling
    ) -> None:
        """Let new branches decode their step."""
        self.admission.batch.add(children, step, sampling)

    def close(self) -> None:
        """Break off whatever is under way, and free all of it."""
        self.expansions.clear()
        self.waiting.clear()
        try:
            for work in self.under_way.works:
                work.close()
            self.under_way.works.clear()
            self.admission.batch.close()
        finally:
            self._release(self.under_way.clear())

    # ------------------------------------------------------------ beginning and end

    def _begin(self, indices: Sequence[int]) -> PassEvents:
        """Let these problems begin, but for those that were cancelled meanwhile."""
        batch = {index: self.waiting.pop(index) for index in indices if index in self.waiting}
        beginnings = Beginnings(self.engine, self.under_way, batch, self.strict, self.contained)
        yield from beginnings.task()

    def _break_off_overdue(self) -> None:
        """End the searches that were cancelled or whose time is up. What they have decoded stays
        theirs."""
        for active in self.under_way.timed.values():
            if not active.done and (why := active.overdue):
                self.expansions.stop(active)
                bare = active.break_off(why)
                self.engine.release(bare)
                _forget(active, bare)

    def _done(self) -> list[ActiveSearch]:
        return in_order(active for active in self.under_way.idle.values() if active.done)

    def _end(self, done: Sequence[ActiveSearch]) -> Events:
        """The results of searches that have ended; a search may first spend its reserve."""
        for active in done:
            active.close()
            if active.done:
                result = active.result(self.engine.tokenizer)
                self._release([active])
                result.error = active.error
                self.under_way.leave(active.index)
                self.under_way.withdraw(active.index)
                self.admission.note_end()
                yield active.index, active.progress("finished", result=result)

    def _release(self, searches: Sequence[ActiveSearch]) -> None:
        """Free what these problems still hold; the engine first, whatever the verifiers do."""
        retired = {active: active.retire(list(active.live)) for active in searches}
        self.engine.release([branch for branches in retired.values() for branch in branches])
        for active, branches in retired.items():
            _forget(active, branches)

    # ------------------------------------------------------------ requests

    def _answer(self, resting: list[ActiveSearch]) -> PassEvents:
        """Answer the requests of those who don't decode, equal kinds merged, and say what was
        done."""
        for active in resting:
            self.let_go(active)
        pending = [(active, active.request) for active in resting]
        for kind, place in HANDLERS.items():
            requests = [(a, r) for a, r in pending if isinstance(r, kind) and not a.over]
            if requests:
                yield from load(place)(self, requests)

    def let_go(self, active: ActiveSearch) -> None:
        """Free the branches that a search needs no more, until it asks for something else."""
        while isinstance(active.request, Release):
            branches = active.released(active.request.branches)
            self.engine.release(branches)
            _forget(active, branches)
            if active.request is not None:
                active.advance(None)


def _forget(active: ActiveSearch, branches: Sequence[Branch]) -> None:
    """Tell the verifier that these branches are gone. One that cannot let go of them fails its
    problem."""
    try:
        active.config.rater.released(branches)
    except VerifierError as error:
        if active.error is None:
            active.fail(error)
