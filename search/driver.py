"""The driver: advances the searches of many problems together, each as soon as its own request is
answered.

All branches decode in one batch. A search whose branches have ended their step goes on (is rated,
lets branches go, expands others) while those of other problems decode, and new problems begin as
soon as there is room. Problems may be added and cancelled at any time, and each has a configuration
of its own; its result depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

from search.active_search import ActiveSearch, Chat, steps_of
from search.admission import ProblemAdmission
from search.base import Request
from search.config import SearchConfig
from search.expansions import Expansions
from search.under_way import Events, PassEvents, UnderWay, Work
from ttc.backend import Backend
from ttc.branch import Branch
from ttc.errors import InvalidInput, TTCError, VerifierError, on_failure, refusing
from ttc.origin import error_text
from ttc.parts import load
from ttc.protocols import Append, Expand, Handoff, Rate, Release, Vary
from ttc.results import Problem, Progress, Result, Stopped
from ttc.sampling import Sampling
from ttc.step import Step
from ttc.task import Task

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
    with refusing(SystemExit, "code of a search raised {error}", TTCError, said=error_text):
        yield


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
        if (active := self.active.pop(index, None)) is not None:
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
                yield from self._end_done()  # what others have come to is not lost
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
        for active in self.active.values():
            if not active.done and (why := active.overdue):
                self.expansions.stop(active)
                self._free(active, active.break_off(why))
        yield from self._end_done()
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
            searches = list(self.active.values())
            self.active.clear()
            self._release(searches)

    # ------------------------------------------------------------ beginning and end

    def _begin(self, indices: Sequence[int]) -> PassEvents:
        """Let these problems begin, but for those that were cancelled meanwhile. Their prompts are
        computed together; one that cannot be used ends its problem alone."""
        batch = {index: self.waiting.pop(index) for index in indices if index in self.waiting}
        prompts: dict[int, list[int]] = {}
        unusable: dict[int, InvalidInput | None] = {}
        for index, (problem, config) in batch.items():
            if config.options.cancel is not None and config.options.cancel.is_set():
                unusable[index] = None
                continue
            try:
                prompts[index] = config.template.tokens(problem.question, self.engine.tokenizer)
            except InvalidInput as error:
                unusable[index] = error
        tasks = self._roots(batch, prompts, unusable)
        usable = [index for index in prompts if index not in unusable]
        roots = [root for task in tasks for root in task.branches]
        begun = list[ActiveSearch]()
        with on_failure(lambda: self.engine.release(roots[len(begun) :])):
            for index, root in zip(usable, roots, strict=True):
                begun.append(self._search(index, root, *batch[index]))
        try:
            for index, why in unusable.items():
                if why is not None and self.strict:
                    raise why
                yield index, _unsolved(*batch[index], why)
            for task in tasks:
                yield from task.passes()
        finally:
            for task in tasks:
                task.close()
        for active in begun:
            if not active.over:
                active.begin()

    def _roots(
        self,
        batch: Mapping[int, tuple[Problem, SearchConfig]],
        prompts: Mapping[int, list[int]],
        unusable: dict[int, InvalidInput | None],
    ) -> list[Task[list[Branch]]]:
        """What makes a root for each prompt; each by itself where not all of them can be used."""
        if not prompts:
            return []
        seeds = [batch[index][1].seed_of(batch[index][0]) for index in prompts]
        try:
            return [self.engine.roots(list(prompts.values()), seeds=seeds)]
        except InvalidInput as error:
            if len(prompts) == 1:
                unusable |= dict.fromkeys(prompts, error)
                return []
        alone = ({index: prompt} for index, prompt in prompts.items())
        return [task for one in alone for task in self._roots(batch, one, unusable)]

    def _search(
        self, index: int, root: Branch, problem: Problem, config: SearchConfig
    ) -> ActiveSearch:
        case = config.case(problem)
        steps = steps_of(config.search, root, case)
        active = ActiveSearch(problem, index, root, case, steps, config, self.contained)
        active.record(root, None)
        chat = Chat(config.template, (), len(root.tokens))
        active.begin_turn(root, chat, self.engine.tokenizer)
        self.active[index] = active
        return active

    def _end_done(self) -> Events:
        """The results of searches that have ended; a search may first spend its reserve."""
        for active in [a for a in self.active.values() if a.done and not a.growing]:
            active.close()
            if active.done:
                result = active.result(self.engine.tokenizer)
                self._release([active])
                result.error = active.error
                del self.active[active.index]
                self.under_way.withdraw(active.index)
                self.admission.note_end()
                yield active.index, active.progress("finished", result=result)

    def _release(self, searches: Sequence[ActiveSearch]) -> None:
        """Free what these problems still hold; the engine first, whatever the verifiers do."""
        retired = {active: active.retire(list(active.live)) for active in searches}
        self.engine.release([branch for branches in retired.values() for branch in branches])
        for active, branches in retired.items():
            _forget(active, branches)

    def _free(self, active: ActiveSearch, branches: Sequence[Branch]) -> None:
        self.engine.release(branches)
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
            self._free(active, active.released(active.request.branches))
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


def _unsolved(problem: Problem, config: SearchConfig, why: InvalidInput | None) -> Progress:
    """The end of a problem whose prompt cannot be used, or that was cancelled before."""
    error = None if why is None else error_text(why)
    stopped: Stopped | None = "cancelled" if why is None else None
    result = Result.unsolved(problem, config.options.seed, error, stopped)
    return Progress(problem, 0, "finished", [], result.usage, result)
