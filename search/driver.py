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

from search.active_search import ActiveSearch
from search.base import Request
from search.config import SearchConfig
from search.expansions import end_steps, go_on
from search.under_way import Events, PassEvents, UnderWay, Work, tasks_of
from ttc.branch import Branch
from ttc.checks import check_is
from ttc.errors import (
    BranchRefused,
    InvalidInput,
    RemoteError,
    TTCError,
    VerifierError,
    on_failure,
    refusing,
)
from ttc.origin import error_text
from ttc.parts import load
from ttc.protocols import Append, Expand, Handoff, Rate, Release, Vary
from ttc.results import Problem, Progress, Result, Stopped
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
def exits_raised() -> Iterator[None]:
    """sys.exit in a search of a user's would end the process without a word."""
    with refusing(SystemExit, "code of a search raised {error}", TTCError, words=error_text):
        yield


@dataclass
class Driver(UnderWay):
    """Answers the requests of searches. One per call of `solve`, `solve_each` or `stream`, and one
    per server.

    strict: a problem that cannot be used raises, rather than having a result that says so.
        contained: so it is with an error that a search raises, which else ends all.
    each_token: what has been written is said after each token.
    waiting: the problems that have not begun, by their numbers. added: how many there ever were.
    """

    strict: bool = False
    contained: bool = False
    each_token: bool = False
    waiting: dict[int, tuple[Problem, SearchConfig]] = field(default_factory=dict)
    added: int = 0

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
            self.stop_decoding(active)
            try:
                active.end()
            finally:
                self._free({active: active.retire(active.live)})
        self.withdraw(index)

    def events(self) -> Events:
        """Do all that there is to do, then close."""
        try:
            while self.busy:
                yield from self.step()
        except Exception:
            with exits_raised():
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
        with exits_raised():
            yield from self.postprocess()
            yield from self.run(self.schedule())

    def postprocess(self) -> Events:
        """What the last pass has brought about: searches that end, and answers of tools."""
        for active in self.active.values():
            if not active.done and (why := active.overdue):
                self.stop_decoding(active)
                self._free({active: active.break_off(why)})
        yield from self._end_done()
        if self.tools is not None:
            yield from end_steps(self, go_on(self, self.tools.answered()))

    def schedule(self) -> Work | None:
        """What goes on now, None for a token of all that decode."""
        if not self.works:
            if resting := self.resting():
                self.serve(resting)
            elif count := self.admission.count(len(self.active), len(self.waiting)):
                self.start(list(islice(self.waiting, count)))
        return self.works[0] if self.works else None

    def run(self, work: Work | None) -> Events:
        """Go on with it, for one pass at most."""
        if work is None:
            yield from self.decode()
            return
        for event in work.task:
            if event is None:
                return
            yield event
        if work in self.works:
            self.works.remove(work)

    def decode(self) -> list[tuple[int, Progress]]:
        """A token of all that decode."""
        batch = self.admission.batch
        stands = not self.works and not len(batch)
        if stands and self.tools is not None and self.tools.calling:
            self.tools.wait()
            return []
        if stands and self.decoding:
            raise InvalidInput(
                f"{type(batch).__name__}.step has not returned {len(self.decoding)} branches that "
                "it let go of; return each whose step is over"
            )
        try:
            ended = batch.step()
        except BranchRefused as refusal:
            active = self.decoding[refusal.branch]
            self.stop_decoding(active)
            active.growing = {}
            active.fail(RemoteError(str(refusal)))
            return []
        if ended != []:
            self._check_ended(ended)
        done = list(end_steps(self, go_on(self, ended))) if ended else []
        if self.each_token:
            writing = dict.fromkeys(self.decoding.values())
            done += [(active.index, event) for active in writing if (event := active.writing())]
        return done

    def _check_ended(self, branches: list[Branch]) -> None:
        """Raise InvalidInput unless a batch gave branches whose step is over."""
        backend = type(self.engine).__name__
        check_is(f"what a batch of {backend} gave", branches, list, "a list of branches")
        for branch in branches:
            if branch not in self.decoding or branch.step_ends[-1:] != [len(branch.tokens)]:
                raise InvalidInput(
                    f"{backend} has left {branch!r} without an end of its step; call "
                    "branch.end_step(reason) for each branch that was to go on, once"
                )

    def serve(self, searches: list[ActiveSearch], tokens: int = 0) -> None:
        """Have the requests of these searches answered. tokens: that their verifier reads."""
        indices = {active.index for active in searches}
        self.works.append(Work(self._answer(searches), indices, tokens))

    def start(self, indices: Sequence[int], tokens: int = 0) -> None:
        """Have these problems begin. tokens: of their prompts."""
        self.works.append(Work(self._begin(indices), set(indices), tokens, begins=True))

    def close(self) -> None:
        """Break off whatever is under way, and free all of it."""
        for active in self.active.values():
            self.stop_decoding(active)
        self.waiting.clear()
        try:
            for work in self.works:
                work.task.close()
            self.works.clear()
            self.admission.batch.close()
        finally:
            searches = list(self.active.values())
            self.active.clear()
            self._free({active: active.retire(active.live) for active in searches})

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
                config = config.for_problem(problem, self.engine)
                batch[index] = problem, config
                prompts[index] = config.template.tokens(problem.question, self.engine.tokenizer)
            except InvalidInput as error:
                unusable[index] = error

        def rooted(indices: Sequence[int]) -> Task[list[Branch]]:
            seeds = [batch[index][1].seed_of(batch[index][0]) for index in indices]
            return self.engine.roots([prompts[index] for index in indices], seeds=seeds)

        tasks = tasks_of(list(prompts), rooted, unusable.__setitem__)
        roots = {i: root for task, of in tasks for i, root in zip(of, task.branches, strict=True)}
        begun = list[ActiveSearch]()
        with on_failure(lambda: self.engine.release(list(roots.values())[len(begun) :])):
            for index, root in roots.items():
                problem, config = batch[index]
                tokenizer = self.engine.tokenizer
                active = ActiveSearch(problem, index, root, config, tokenizer, self.contained)
                self.active[index] = active
                begun.append(active)
        try:
            for index, why in unusable.items():
                if why is not None and self.strict:
                    raise why
                yield index, _unsolved(*batch[index], why)
            for task, _ in tasks:
                yield from task.passes()
        finally:
            for task, _ in tasks:
                task.close()
        for active in begun:
            if not active.over:
                active.begin()

    def _end_done(self) -> Events:
        """The results of searches that have ended; a search may first spend its reserve."""
        for active in [a for a in self.active.values() if a.done and not a.growing]:
            active.close()
            if active.done:
                result = active.result()
                self._free({active: active.retire(active.live)})
                result.error = active.error
                del self.active[active.index]
                self.withdraw(active.index)
                self.admission.note_end()
                yield active.index, active.progress("finished", result=result)

    def _free(self, retired: Mapping[ActiveSearch, Sequence[Branch]]) -> None:
        """Free these branches: the engine first, whatever the verifiers do. A verifier that cannot
        let go of them fails its problem."""
        self.engine.release([branch for branches in retired.values() for branch in branches])
        for active, branches in retired.items():
            try:
                active.config.rater.released(branches)
            except VerifierError as error:
                if active.error is None:
                    active.fail(error)

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
            needless = [b for b in active.request.branches if b not in active.unpaid]
            self._free({active: active.retire(needless)})
            if active.request is not None:
                active.advance(None)


def _unsolved(problem: Problem, config: SearchConfig, why: InvalidInput | None) -> Progress:
    """The end of a problem whose prompt cannot be used, or that was cancelled before."""
    error = None if why is None else error_text(why)
    stopped: Stopped | None = "cancelled" if why is None else None
    result = Result.unsolved(problem, config.options.seed, error, stopped)
    return Progress(problem, 0, "finished", [], result.usage, result)
