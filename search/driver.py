"""The driver: advances the searches of many problems together, each as soon as its own request is
answered.

All branches decode in one batch. A search whose branches have ended their step goes on (is rated,
lets branches go, expands others) while those of other problems decode, and new problems begin as
soon as there is room. Problems may be added and cancelled at any time, and each has a configuration
of its own; its result depends on nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from search.active_search import ActiveSearch, Chat, steps_of
from search.admission import Admission
from search.appends import Appends
from search.config import SearchConfig
from search.prefills import Task, begin_extend, begin_roots, begin_variants, passes_of
from search.rating import aggregate
from search.several_models import backend_of
from search.thinking import GoesOn, ThinkingStep
from search.tool_runs import ToolRuns
from search.tool_steps import PlainStep, ToolStep
from ttc.errors import BranchRefused, ContextExceeded, InvalidInput, RemoteError, VerifierError
from ttc.lookout import BrokenOff, lookout
from ttc.passes.pass_by_pass import Passes
from ttc.protocols import (
    Aggregation,
    Append,
    Backend,
    Expand,
    Handoff,
    OffersModels,
    Prefill,
    Problem,
    Rate,
    Release,
    Step,
    Vary,
)
from ttc.results import Progress, Result, Stopped
from ttc.sampling import Sampling
from ttc.text.chat import following
from ttc.tree.branch import Branch
from ttc.usage import Usage

Events = Generator[tuple[int, Progress], None, None]
"""What happened, each with the number of its problem."""

LOOK_S = 0.02
"""Seconds after which it is seen whether tools have answered, where nothing decodes meanwhile."""


@dataclass(eq=False)
class Work:
    """A task and the problems that it is for, by their numbers.

    tokens: of the prompts or ratings that it computes. begins: whether problems begin with it.
    """

    task: Task
    indices: set[int]
    tokens: int = 0
    begins: bool = False

    def close(self) -> None:
        """Let it be."""
        if isinstance(self.task, Generator):
            self.task.close()


@dataclass
class Driver:
    """Answers the requests of searches. One per call of `solve`, `solve_each` or `stream`, and one
    per server.

    strict: a problem that cannot be used raises, rather than having a result that says so.
        contained: so it is with an error that a search raises, which else ends all.
    each_token: what has been written is said after each token.
    waiting: the problems that have not begun, by their numbers. active: those that have.
    timed: those of them whose time may run out, or that can be cancelled.
    idle: those of them that don't decode, so that no step goes through all that do.
    decoding: the branches whose step is under way, and the problem of each.
    calling: those of them that wait for tools. runs: the tools' calls under way.
    works: what goes on with the next steps, the first of them first.
    """

    engine: Backend
    admission: Admission
    strict: bool = False
    contained: bool = False
    each_token: bool = False
    waiting: dict[int, tuple[Problem, SearchConfig]] = field(default_factory=dict)
    active: dict[int, ActiveSearch] = field(default_factory=dict)
    timed: dict[int, ActiveSearch] = field(default_factory=dict)
    idle: dict[int, ActiveSearch] = field(default_factory=dict)
    decoding: dict[Branch, ActiveSearch] = field(default_factory=dict)
    calling: dict[Branch, ToolStep] = field(default_factory=dict)
    runs: ToolRuns = field(default_factory=ToolRuns)
    works: list[Work] = field(default_factory=list)
    added: int = 0

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
        if (active := self._leave(index)) is not None:
            self._stop_decoding(active)
            try:
                active.end()
            finally:
                self._release([active])
        self._withdraw(index)

    def _enter(self, active: ActiveSearch) -> None:
        """A problem is under way."""
        self.active[active.index] = self.idle[active.index] = active
        if active.can_be_overdue:
            self.timed[active.index] = active

    def _leave(self, index: int) -> ActiveSearch | None:
        """A problem is under way no more; what it was, None if it was not."""
        self.timed.pop(index, None)
        self.idle.pop(index, None)
        return self.active.pop(index, None)

    def _withdraw(self, index: int) -> None:
        """A problem needs no more work."""
        for work in list(self.works):
            work.indices.discard(index)
            if not work.indices:
                self.works.remove(work)
                work.close()

    @property
    def busy(self) -> bool:
        """Whether there is anything left to do."""
        return bool(self.waiting or self.active)

    def events(self) -> Events:
        """Do all that there is to do, then close."""
        try:
            while self.busy:
                yield from self.step()
        except Exception:
            yield from self._finish(self._done())  # what others have come to is not lost
            raise
        finally:
            self.close()

    def step(self) -> Events:
        """One pass of the model, or less: whoever drives may do anything between two steps.

        Searches that were cancelled or whose time is up end, and the results of all that have ended
        are given. Then the requests of those who don't decode are answered. Where there are none,
        new problems begin; where none can, all branches that decode get a token.
        """
        self._break_off_overdue()
        yield from self._finish(self._done())
        self._take_answers()
        work = self.next_work()
        if work is None:
            yield from self.decode()
            return
        for event in work.task:
            if event is None:
                return
            yield event
        if work in self.works:
            self.works.remove(work)

    def next_work(self) -> Work | None:
        """What goes on now, None for a token of all that decode."""
        if not self.works:
            if resting := self.resting():
                self.serve(resting)
            elif count := self.admission.count(len(self.active), len(self.waiting)):
                self.start(list(islice(self.waiting, count)))
        return self.works[0] if self.works else None

    def resting(self) -> list[ActiveSearch]:
        """The searches that don't decode."""
        return self._in_order(self.idle.values())

    def _in_order(self, searches: Iterable[ActiveSearch]) -> list[ActiveSearch]:
        """As they began, whichever of them rested first."""
        return sorted(searches, key=lambda active: active.started)

    def serve(self, searches: list[ActiveSearch], tokens: int = 0) -> None:
        """Have the requests of these searches answered. tokens: that their verifier reads."""
        indices = {active.index for active in searches}
        self.works.append(Work(self._serve(searches), indices, tokens))

    def start(self, indices: Sequence[int], tokens: int = 0) -> None:
        """Have these problems begin. tokens: of their prompts."""
        self.works.append(Work(self._start(indices), set(indices), tokens, begins=True))

    def begin_decoding(
        self, active: ActiveSearch, children: list[Branch], step: Step, sampling: Sampling
    ) -> None:
        """Let new branches decode their step."""
        self.admission.batch.add(children, step, sampling)

    def close(self) -> None:
        """Break off whatever is under way, and free all of it."""
        self._forget_calls(list(self.calling))
        self.decoding.clear()
        self.waiting.clear()
        try:
            for work in self.works:
                work.close()
            self.works.clear()
            self.admission.batch.close()
        finally:
            searches = list(self.active.values())
            self.active.clear()
            self.timed.clear()
            self.idle.clear()
            self._release(searches)

    def _stop_decoding(self, active: ActiveSearch) -> None:
        for child in active.growing:
            self.decoding.pop(child, None)
        self._forget_calls(active.growing)
        self.admission.forget(active.growing)
        self._rest(active)

    def _rest(self, active: ActiveSearch) -> None:
        """A search decodes no more."""
        if active.index in self.active:
            self.idle[active.index] = active

    def _break_off_overdue(self) -> None:
        """End the searches that were cancelled or whose time is up. What they have decoded stays
        theirs."""
        for active in self.timed.values():
            if not active.done and (why := active.overdue):
                self._stop_decoding(active)
                bare = active.break_off(why)
                self.engine.release(bare)
                _forget(active, bare)

    # ------------------------------------------------------------ start and finish

    def _done(self) -> list[ActiveSearch]:
        return self._in_order(active for active in self.idle.values() if active.done)

    def _finish(self, ended: Sequence[ActiveSearch]) -> Events:
        """The results of searches that have ended; a search may first spend its reserve."""
        for active in ended:
            active.close()
            if active.done:
                result = active.result()
                self._release([active])
                result.error = active.error
                self._leave(active.index)
                self._withdraw(active.index)
                self.admission.note_end()
                yield active.index, active.progress("finished", result=result)

    def _start(self, indices: Sequence[int]) -> Task:
        """Let these problems begin, and say why those fail whose prompts cannot be used."""
        failed = list[tuple[int, Progress]]()
        prompts: dict[int, list[int]] = {}
        batch = {index: self.waiting.pop(index) for index in indices if index in self.waiting}
        for index, (problem, config) in batch.items():
            if config.options.cancel is not None and config.options.cancel.is_set():
                failed.append((index, _unsolved(problem, config, stopped="cancelled")))
                continue
            try:
                prompts[index] = config.template.tokens(problem.question, self.engine.tokenizer)
            except InvalidInput as error:
                if self.strict:
                    raise
                failed.append((index, _unsolved(problem, config, _named(error))))
        prefills = self._begin_roots(batch, prompts, failed)
        roots = dict(
            zip(prompts, (root for prefill in prefills for root in prefill.branches), strict=True)
        )
        try:
            for index, root in roots.items():
                problem, config = batch[index]
                case = config.case(problem)
                steps = steps_of(config.search, root, case)
                active = ActiveSearch(
                    problem, index, root, case, steps, config, contained=self.contained
                )
                active.record(root, None)
                active.begin_turn(
                    root, Chat(config.template, (), len(root.tokens)), self.engine.tokenizer
                )
                self._enter(active)
        except BaseException:
            self.engine.release([root for index, root in roots.items() if index not in self.active])
            raise
        begun = [self.active[index] for index in roots]
        yield from failed
        for prefill in prefills:
            yield from passes_of(prefill)
        for active in begun:
            if not active.over:
                active.begin()

    def _begin_roots(
        self,
        batch: Mapping[int, tuple[Problem, SearchConfig]],
        prompts: dict[int, list[int]],
        failed: list[tuple[int, Progress]],
    ) -> list[Prefill]:
        """What makes a root for each prompt, in order. A prompt that cannot be used becomes a
        failure, and is taken out of `prompts`."""
        # of usable text alone
        seeds = {index: batch[index][1].seed_of(batch[index][0]) for index in prompts}
        try:
            return [begin_roots(self.engine, list(prompts.values()), list(seeds.values()))]
        except InvalidInput:
            begun = list[Prefill]()
        try:
            for index, tokens in list(prompts.items()):  # one by one, to say which cannot be used
                try:
                    begun.append(begin_roots(self.engine, [tokens], [seeds[index]]))
                except InvalidInput as error:
                    if self.strict:
                        raise
                    del prompts[index]
                    failed.append((index, _unsolved(*batch[index], _named(error))))
        except BaseException:
            self.engine.release([root for prefill in begun for root in prefill.branches])
            raise
        return begun

    def _release(self, searches: Sequence[ActiveSearch]) -> None:
        """Free what these problems still hold; the engine first, whatever the verifiers do."""
        retired = {active: active.retire(list(active.live)) for active in searches}
        self.engine.release([branch for branches in retired.values() for branch in branches])
        for active, branches in retired.items():
            _forget(active, branches)

    # ------------------------------------------------------------ requests

    def _serve(self, resting: list[ActiveSearch]) -> Task:
        """Answer the requests of those who don't decode, equal kinds merged, and say what was
        done."""
        for active in resting:
            self._let_go(active)
        pending = [(active, active.request) for active in resting]
        for active, request in pending:
            if isinstance(request, Vary) and not active.over:
                yield from self._vary(active, request)
        for active, request in pending:
            if isinstance(request, Handoff) and not active.over:
                yield self._hand_on(active, request)
        appends = [
            (active, r) for active, r in pending if isinstance(r, Append) and not active.over
        ]
        yield from Appends(self.engine).answer(appends)
        rates: dict[tuple[int, Aggregation], list[tuple[ActiveSearch, Rate]]] = defaultdict(list)
        for active, request in pending:
            if active.over:
                continue
            if isinstance(request, Expand):
                self._expand(active, request)
            elif isinstance(request, Rate):
                rates[id(active.config.rater.verifier), request.aggregation].append(
                    (active, request)
                )
        for (_, aggregation), rated in rates.items():
            yield from self._rate(_under_way(rated), aggregation)

    def _let_go(self, active: ActiveSearch) -> None:
        """Free the branches that a search needs no more, until it asks for something else."""
        while isinstance(active.request, Release):
            branches = active.released(active.request.branches)
            self.engine.release(branches)
            _forget(active, branches)
            if active.request is not None:
                active.advance(None)

    def _vary(self, active: ActiveSearch, request: Vary) -> Task:
        template = active.config.template
        templates = [replace(template, instruction=phrasing) for phrasing in request.phrasings] or [
            template
        ]
        question, tokenizer = active.problem.question, self.engine.tokenizer
        phrased = [template.tokens(question, tokenizer) for template in templates]
        hints = [self.engine.encode(hint) for hint in request.hints] or [[]]
        prompts = [phrased[i % len(phrased)] for i in range(request.n)]
        suffixes = [hints[i % len(hints)] for i in range(request.n)]
        try:
            prefill = begin_variants(self.engine, request.root, prompts, suffixes)
        except InvalidInput as error:
            active.fail(_named(error))
            return
        for place, branch in enumerate(prefill.branches):
            active.record(branch, request.root)
            start = len(branch.tokens) - len(suffixes[place])
            active.begin_turn(branch, Chat(templates[place % len(templates)], (), start), tokenizer)
        yield from passes_of(prefill)
        if not active.over:
            progress = active.progress("prompted", prefill.branches)
            active.advance(prefill.branches)
            yield active.index, progress

    def _hand_on(self, active: ActiveSearch, request: Handoff) -> tuple[int, Progress] | None:
        """Children of these branches that another model goes on with."""
        models = self.engine.models if isinstance(self.engine, OffersModels) else {}
        if (backend := models.get(request.model)) is None:
            known = ", ".join(models) or "none: the backend has one model, without a name"
            active.refuse(InvalidInput(f"Handoff.model={request.model!r} is unknown; use {known}"))
            return None
        children = list[Branch]()
        try:
            for branch in request.branches:
                children.append(self._handed(active, branch, request.model, backend))
        except InvalidInput as error:
            self.engine.release(active.retire(children))
            active.refuse(error)
            return None
        progress = active.progress("prompted", children)
        active.advance(children)
        return active.index, progress

    def _handed(self, active: ActiveSearch, branch: Branch, model: str, backend: Backend) -> Branch:
        """The conversation of a branch as another model reads it."""
        template, said, start = active.chats[branch]
        question, tokenizer = active.problem.question, backend.tokenizer
        prompt = template.tokens(question, tokenizer)
        for place in range(0, len(said), 2):
            answer, words = said[place : place + 2]
            before = [*prompt, *following(answer, tokenizer)]
            prompt = template.next_prompt(words, tokenizer, question, said[: place + 1], before)
        written = backend_of(self.engine, branch).decode(branch.tokens[start:])
        text = written.removesuffix(branch.cut)
        given = following(text, tokenizer) if text else []
        child = backend.root([*prompt, *given])
        branch.adopt(child, model, len(given))
        child.usage = active.meter(model, child.usage)
        active.record(child, branch)
        active.begin_turn(child, Chat(template, said, len(prompt)), tokenizer)
        return child

    def _expand(self, active: ActiveSearch, request: Expand) -> None:
        """Let the next children that the budget pays for decode their step."""
        if not active.waiting:
            active.advance([])
            return
        kept = len(active.live) - 1
        self.admission.note_expansion(
            len(active.waiting), len(active.root.tokens), active.step_tokens, kept
        )
        try:
            price = self._child_price(active, request)
        except VerifierError as error:
            active.fail(_named(error))
            return
        count, max_tokens = active.next_part(price)
        if count:
            children = []
            for parent in active.waiting[:count]:
                (child,) = self.engine.fork(parent, 1)
                children.append(active.record(child, parent))
            active.growing = children
            self.decoding.update(dict.fromkeys(children, active))
            self.idle.pop(active.index, None)
            self._begin_steps(active, children, request, max_tokens)
        elif active.made:
            active.cut_short()
        else:
            active.run_out(active.scarcest)

    def _begin_steps(
        self, active: ActiveSearch, children: list[Branch], request: Expand, max_tokens: int
    ) -> None:
        step, thoughts = request.step, active.config.thoughts
        thinks, chat = step.thinking is not None and thoughts is not None, active.config.tools
        if not thinks and chat is None:
            plain = replace(step, max_tokens=max_tokens, thinking=None)
            self.begin_decoding(active, children, plain, request.sampling)
            return
        for child in children:
            backend = backend_of(self.engine, child)
            phases: ThinkingStep | PlainStep | ToolStep
            if step.thinking is None or thoughts is None:
                phases = PlainStep(child, step, backend.tokenizer, max_tokens)
            else:
                phases = ThinkingStep(child, step, step.thinking, thoughts, backend, max_tokens)
                active.thinking[child] = phases
            active.phases[child] = phases if chat is None else ToolStep(phases, chat, backend)
        self._begin_phases(active, children)

    def _begin_phases(self, active: ActiveSearch, children: Sequence[Branch]) -> None:
        """Let branches go on to think or to answer; thoughts that are over their limit are
        closed."""
        assert isinstance(active.request, Expand)
        alike: dict[Step | None, list[Branch]] = defaultdict(list)
        for child in children:
            alike[active.phases[child].phase()].append(child)
        for phase, together in alike.items():
            if phase is None:
                self.works.append(Work(self._close_thoughts(active, together), {active.index}))
            else:
                self.begin_decoding(active, together, phase, active.request.sampling)

    def _close_thoughts(self, active: ActiveSearch, children: Sequence[Branch]) -> Task:
        """Put the end of thinking after what branches have thought, and let them answer."""
        if active.over:
            return
        closings = [active.thinking[child].closing for child in children]
        ends = {child: len(child.tokens) for child in children}
        try:
            prefill = begin_extend(self.engine, children, closings)
        except ContextExceeded:
            for child in children:  # their thoughts have no end
                child.end_step("length")
            yield from self._stepped(children)
            return
        yield from passes_of(prefill)
        if active.over:
            return
        for child in children:
            child.thinking_ended = ends[child]
        follows = {child: active.thinking[child].closed() for child in children}
        for child in children:
            if follows[child] == "over":
                child.end_step("length")
        yield from self._follow(active, follows)

    def _follow(self, active: ActiveSearch, follows: Mapping[Branch, GoesOn]) -> Events:
        """Let branches go on, or end their step, as is said of each."""
        going = [child for child, what in follows.items() if what in ("decode", "close")]
        self._begin_phases(active, going)
        yield from self._stepped([child for child, what in follows.items() if what == "over"])

    def _still_going(self, children: Sequence[Branch]) -> set[Branch]:
        """Those whose step goes on after a phase, which they do from now on."""
        going: dict[ActiveSearch, list[Branch]] = defaultdict(list)
        calling = set[Branch]()
        for child in children:
            active = self.decoding[child]
            follows = active.phases[child].ended() if child in active.phases else "over"
            if follows == "call":
                self._call_tools(active, child)
                calling.add(child)
            elif follows != "over":
                going[active].append(child)
        for active, together in going.items():
            self._begin_phases(active, together)
        return calling.union(*going.values())

    # ------------------------------------------------------------ tools

    def _call_tools(self, active: ActiveSearch, child: Branch) -> None:
        """Let the calls of a branch be answered while others decode. Equal calls of a problem are
        made once."""
        step = active.phases[child]
        assert isinstance(step, ToolStep)
        for call in step.calls:
            if (run := active.tool_runs.get(call.key)) is None or call.error:
                run = self.runs.start(step.chat.tools, call)
            step.runs.append(active.tool_runs.setdefault(call.key, run) if not call.error else run)
        self.calling[child] = step

    def _take_answers(self) -> None:
        """Have those told whose calls have been answered."""
        if not self.calling:
            return
        self.runs.look()
        told: dict[ActiveSearch, dict[Branch, ToolStep]] = defaultdict(dict)
        for child, step in list(self.calling.items()):
            if step.answered:
                told[self.decoding[child]][child] = self.calling.pop(child)
        for active, steps in told.items():
            self.works.append(Work(self._tell(active, steps), {active.index}))

    def _tell(self, active: ActiveSearch, steps: Mapping[Branch, ToolStep]) -> Task:
        """Give branches the answers of their calls, and let them go on."""
        if active.over:
            return
        given: dict[Branch, list[int]] = {}
        follows: dict[Branch, GoesOn] = {}
        for child, step in steps.items():
            try:
                given[child] = step.answers()
            except ContextExceeded:
                child.finish_reason = "context"
                child.end_step("context")
                follows[child] = "over"
            except InvalidInput as error:  # the chat template refuses what was called
                active.refuse(error)
                return
        if given:
            yield from passes_of(begin_extend(self.engine, list(given), list(given.values())))
        if active.over:
            return
        follows |= {child: steps[child].go_on() for child in given}
        yield from self._follow(active, follows)

    def _forget_calls(self, branches: Sequence[Branch]) -> None:
        """Nobody waits for the calls of these branches any more."""
        for branch in branches:
            if (step := self.calling.pop(branch, None)) is not None:
                self.runs.drop(step.runs)

    def decode(self) -> list[tuple[int, Progress]]:
        """The next token of all that decode. A search goes on once all of its children have ended
        their step."""
        if self.calling and not self.works and not len(self.admission.batch):
            self.runs.wait(LOOK_S)
            return []
        try:
            ended = self.admission.batch.step()
        except BranchRefused as refusal:
            self._refuse(refusal)
            return []
        going = self._still_going(ended)
        done = list(self._stepped([child for child in ended if child not in going]))
        if self.each_token:
            under_way = dict.fromkeys(self.decoding.values())
            done += [
                (active.index, progress) for active in under_way if (progress := active.writing())
            ]
        return done

    def _stepped(self, ended: Sequence[Branch]) -> Events:
        """The step of these children is over; so is the request of those whose children all have
        ended theirs."""
        for active in dict.fromkeys(self.decoding.pop(child) for child in ended):
            if any(child in self.decoding for child in active.growing):
                continue
            children, active.growing = active.growing, []
            self._rest(active)
            for child in children:
                child.leave_out(active.config.stops)
                active.count_thinking(child)
                active.tree.wrote(child, child.steps[-1])
            active.thinking, active.phases = {}, {}
            kept = len(active.live) - 1 - len(children)
            self.admission.note_step(children, len(active.root.tokens), kept)
            del active.waiting[: len(children)]
            active.made += children
            yield active.index, active.progress("expanded", children)
            if not active.waiting:
                active.advance(active.made)

    def _refuse(self, refusal: BranchRefused) -> None:
        """End the problem of a branch that a server refuses; the others go on."""
        active = self.decoding[refusal.branch]
        for child in active.growing:
            self.decoding.pop(child, None)
        self._rest(active)
        active.fail(f"{RemoteError.__name__}: {refusal}")

    def _child_price(self, active: ActiveSearch, request: Expand) -> int:
        """What rating the next child costs, as far as its parent shows."""
        if active.tokens_left is None or active.closing is not None:
            return 0
        rater, tokens = active.config.rater, active.step_tokens
        return rater.child_price(active.waiting[0], active.problem.question, self.engine, tokens)

    def _rate(
        self, requests: Sequence[tuple[ActiveSearch, Rate]], aggregation: Aggregation
    ) -> Task:
        paid = [(active, request) for active, request in requests if self._pays(active, request)]
        try:
            given = yield from self._scores(paid)
        except BrokenOff:
            yield None  # the next step ends those who are overdue
            yield from self._rate(_under_way(paid), aggregation)
            return
        for (active, request), scores in zip(paid, given, strict=True):
            if active.over:
                continue
            try:
                if isinstance(scores, VerifierError):
                    raise scores
                if aggregation == "product":
                    active.config.rater.check_product(scores)
                for branch, step_scores in zip(request.branches, scores, strict=True):
                    branch.step_scores = step_scores
                    branch.score = aggregate(step_scores, aggregation)
                    active.tree.rated(branch)
                progress = active.progress("rated", request.branches)
                active.advance([branch.score for branch in request.branches])
            except VerifierError as error:  # a search may say so too, of ratings that it cannot use
                active.fail(_named(error))
            else:
                yield active.index, progress
        if paid:
            yield None

    def _pays(self, active: ActiveSearch, request: Rate) -> bool:
        """Whether the budget has room for a rating; else the search is told, or has failed."""
        try:
            free = active.tokens_left is None
            if active.pays(0 if free else self.price(active, request)):
                return True
        except VerifierError as error:
            active.fail(_named(error))
        else:
            active.run_out("max_tokens")
        return False

    def price(self, active: ActiveSearch, request: Rate) -> int:
        """The most tokens that a rating takes; 0 where the verifier does not say."""
        rater, question = active.config.rater, active.problem.question
        return rater.price(request.branches, question, self.engine)

    def _scores(
        self, requests: Sequence[tuple[ActiveSearch, Rate]]
    ) -> Passes[list[list[list[float]] | VerifierError]]:
        """The step scores of each problem's branches, or why there are none; all have one verifier.
        One problem does not stop the others."""
        if not requests:
            return []
        pairs = [
            (branch, active.problem.question)
            for active, request in requests
            for branch in request.branches
        ]
        before = {
            active: [(meter, replace(meter)) for meter in active.meters.values()]
            for active, _ in requests
        }

        def forget_the_attempt() -> None:
            for active, meters in before.items():
                for meter, usage in [] if active.overdue else meters:
                    vars(meter).update(vars(usage))

        def look() -> None:
            if any(active.overdue for active in before):
                forget_the_attempt()
                raise BrokenOff

        branches, questions = [branch for branch, _ in pairs], [question for _, question in pairs]
        rating = requests[0][0].config.rater.rating(branches, questions, self.engine)
        try:
            while True:
                with lookout(look):
                    next(rating)
                yield None
        except StopIteration as end:
            remaining = iter(end.value)
            return [[next(remaining) for _ in request.branches] for _, request in requests]
        except VerifierError as failure:
            if len(requests) == 1:
                return [failure]
        finally:
            rating.close()
        forget_the_attempt()  # the others do not pay for it
        alone = list[list[list[float]] | VerifierError]()
        for active, request in requests:
            ended = VerifierError("the problem has ended meanwhile")
            alone += [ended] if active.over else (yield from self._scores([(active, request)]))
        return alone


def _under_way(
    requests: Sequence[tuple[ActiveSearch, Rate]],
) -> list[tuple[ActiveSearch, Rate]]:
    """Those of problems that have not ended."""
    return [(active, request) for active, request in requests if not active.over]


def _forget(active: ActiveSearch, branches: Sequence[Branch]) -> None:
    """Tell the verifier that these branches are gone. One that cannot let go of them fails its
    problem."""
    try:
        active.config.rater.released(branches)
    except VerifierError as error:
        active.fail(active.error or _named(error))


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _unsolved(
    problem: Problem, config: SearchConfig, error: str | None = None, stopped: Stopped | None = None
) -> Progress:
    """The end of a problem that has not begun."""
    result = Result(problem, None, [], None, Usage(), [], config.options.seed, error, stopped)
    return Progress(problem, 0, "finished", [], result.usage, result)
