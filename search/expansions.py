"""Answers to `Expand`: children that decode their steps in one batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from search.active_search import ActiveSearch
from search.admission import Admission
from search.prefills import Task, begin_extend, passes_of
from search.several_models import backend_of
from search.thinking import GoesOn, ThinkingStep
from search.tool_answers import ToolAnswers
from search.tool_steps import PlainStep, ToolStep
from search.under_way import UnderWay
from ttc.errors import BranchRefused, ContextExceeded, InvalidInput, RemoteError, VerifierError
from ttc.protocols import Backend, Expand, Step
from ttc.results import Progress
from ttc.sampling import Sampling
from ttc.tree.branch import Branch

Events = Generator[tuple[int, Progress], None, None]
"""What happened, each with the number of its problem."""

BeginDecoding = Callable[[ActiveSearch, list[Branch], Step, Sampling], None]
"""Lets new branches decode a step, or a phase of one."""


@dataclass
class Expansions:
    """The branches whose step is under way.

    A step is one phase of decoding, or several where a model thinks within limits or calls tools
    (see `Phases`). A search goes on once all of its children have ended their step.

    decoding: the branches, and the search of each. tools: what those wait for that call tools.
    """

    engine: Backend
    admission: Admission
    under_way: UnderWay
    begin_decoding: BeginDecoding
    decoding: dict[Branch, ActiveSearch] = field(default_factory=dict)
    tools: ToolAnswers = field(default_factory=ToolAnswers)

    def answer(self, active: ActiveSearch, request: Expand) -> None:
        if not active.waiting:
            active.advance([])
            return
        kept = len(active.live) - 1
        self.admission.note_expansion(
            len(active.waiting), len(active.root.tokens), active.step_tokens, kept
        )
        try:
            count, max_tokens = active.next_part(partial(self._children_price, active))
        except VerifierError as error:
            active.fail(error)
            return
        if count:
            children = []
            for parent in active.waiting[:count]:
                (child,) = self.engine.fork(parent, 1)
                children.append(active.record(child, parent))
            active.growing = children
            self.decoding.update(dict.fromkeys(children, active))
            self.under_way.decodes(active)
            self._begin_steps(active, children, request, max_tokens)
        elif active.children:
            active.cut_short()
        else:
            active.run_out(active.spending.scarcest)

    def _children_price(self, active: ActiveSearch, count: int) -> int:
        """What rating so many children will take."""
        if active.closing is not None:
            return 0
        parent, question = active.waiting[0], active.problem.question
        rater, tokens = active.config.rater, active.step_tokens
        return rater.children_price(parent, question, self.engine, tokens, count)

    def decode(self, each_token: bool = False) -> list[tuple[int, Progress]]:
        """A token of all that decode. each_token: say what has been written with it."""
        if self.tools.calling and not self.under_way.works and not len(self.admission.batch):
            self.tools.wait()
            return []
        try:
            ended = self.admission.batch.step()
        except BranchRefused as refusal:
            self._refuse(refusal)
            return []
        going = self._still_going(ended)
        done = list(self._end_steps([child for child in ended if child not in going]))
        if each_token:
            writing = dict.fromkeys(self.decoding.values())
            done += [(active.index, said) for active in writing if (said := active.writing())]
        return done

    def stop(self, active: ActiveSearch) -> None:
        for child in active.growing:
            self.decoding.pop(child, None)
        self.tools.forget(active.growing)
        self.admission.forget(active.growing)
        self.under_way.rests(active)

    def clear(self) -> None:
        self.tools.forget_all()
        self.decoding.clear()

    def _refuse(self, refusal: BranchRefused) -> None:
        active = self.decoding[refusal.branch]
        for child in active.growing:
            self.decoding.pop(child, None)
        self.under_way.rests(active)
        active.fail(RemoteError(str(refusal)))

    def _end_steps(self, ended: Sequence[Branch]) -> Events:
        """These children's steps are over; so are requests whose children all have ended theirs."""
        for active in dict.fromkeys(self.decoding.pop(child) for child in ended):
            if any(child in self.decoding for child in active.growing):
                continue
            self.under_way.rests(active)
            kept = len(active.live) - 1 - len(active.growing)
            children = active.end_steps()
            self.admission.note_step(children, len(active.root.tokens), kept)
            yield active.index, active.progress("expanded", children)
            if not active.waiting:
                active.advance(active.children)

    # ------------------------------------------------------------ phases

    def _begin_steps(
        self, active: ActiveSearch, children: list[Branch], request: Expand, max_tokens: int
    ) -> None:
        step = replace(request.step, stop_loops=active.config.stops_loops)
        thoughts = active.config.thoughts
        thinks, chat = step.thinking is not None and thoughts is not None, active.config.tools
        if not thinks and chat is None:
            plain = replace(step, max_tokens=max_tokens, thinking=None)
            self.begin_decoding(active, children, plain, request.sampling)
            return
        for child in children:
            backend = backend_of(self.engine, child)
            phases: ThinkingStep | PlainStep
            if step.thinking is None or thoughts is None:
                phases = PlainStep(child, step, backend.tokenizer, max_tokens)
            else:
                phases = ThinkingStep(child, step, step.thinking, thoughts, backend, max_tokens)
                active.thinking[child] = phases
            active.phases[child] = phases if chat is None else ToolStep(phases, chat, backend)
        self._begin_phases(active, children)

    def _begin_phases(self, active: ActiveSearch, children: Sequence[Branch]) -> None:
        """Let branches go on to think or to answer; thoughts over their limit are closed."""
        assert isinstance(active.request, Expand)
        alike: dict[Step | None, list[Branch]] = defaultdict(list)
        for child in children:
            alike[active.phases[child].phase()].append(child)
        for phase, together in alike.items():
            if phase is None:
                self.under_way.add_work(active, self._close_thoughts(active, together))
            else:
                self.begin_decoding(active, together, phase, active.request.sampling)

    def _still_going(self, children: Sequence[Branch]) -> set[Branch]:
        """Those whose step goes on after a phase; they are let go on."""
        going: dict[ActiveSearch, list[Branch]] = defaultdict(list)
        calling = set[Branch]()
        for child in children:
            active = self.decoding[child]
            follows = active.phases[child].ended() if child in active.phases else "over"
            if follows == "call":
                self.tools.call(active, child)
                calling.add(child)
            elif follows != "over":
                going[active].append(child)
        for active, together in going.items():
            self._begin_phases(active, together)
        return calling.union(*going.values())

    def _follow(self, active: ActiveSearch, follows: Mapping[Branch, GoesOn]) -> Events:
        going = [child for child, what in follows.items() if what in ("decode", "close")]
        self._begin_phases(active, going)
        yield from self._end_steps([child for child, what in follows.items() if what == "over"])

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
            yield from self._end_steps(children)
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

    def take_answers(self) -> None:
        for active, steps in self.tools.answered(self.decoding).items():
            self.under_way.add_work(active, self._tell(active, steps))

    def _tell(self, active: ActiveSearch, steps: Mapping[Branch, ToolStep]) -> Task:
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
