"""Answers to `Expand`: children that decode their steps in one batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from search.active_search import ActiveSearch
from search.admission import ProblemAdmission
from search.under_way import BeginDecoding, Events, PassEvents, UnderWay
from ttc.backend import Backend
from ttc.branch import Branch
from ttc.errors import BranchRefused, ContextExceeded, InvalidInput, RemoteError, VerifierError
from ttc.parts import handler
from ttc.protocols import Expand
from ttc.results import Progress
from ttc.step import Step

if TYPE_CHECKING:
    from search.thinking import StepParts


@dataclass
class Expansions:
    """The branches whose step is under way.

    A step is decoded at once, or in parts where a model thinks within limits or calls tools
    (`search.thinking`). A search goes on once all of its children have ended their step.

    decoding: the branches, and the search of each. parts: what is left of their steps in parts.
    tools: what branches wait for that call tools; None before the first.
    """

    engine: Backend
    admission: ProblemAdmission
    under_way: UnderWay
    begin_decoding: BeginDecoding
    decoding: dict[Branch, ActiveSearch] = field(default_factory=dict)
    parts: dict[Branch, StepParts] = field(default_factory=dict)
    tools: Any = None

    def answer(self, active: ActiveSearch, request: Expand) -> None:
        if not active.waiting:
            active.advance([])
            return
        kept, tokens = len(active.live) - 1, active.step_tokens
        self.admission.note_expansion(len(active.waiting), len(active.root.tokens), tokens, kept)
        try:
            count, max_tokens = active.next_part(partial(self._children_price, active))
        except VerifierError as error:
            active.fail(error)
            return
        if count:
            forked = [(self.engine.fork(parent, 1)[0], parent) for parent in active.waiting[:count]]
            active.growing = [active.record(child, parent) for child, parent in forked]
            self.decoding.update(dict.fromkeys(active.growing, active))
            self._begin_steps(active, request, max_tokens)
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
        batch = self.admission.batch
        waits = self.tools is not None and self.tools.calling
        if waits and not self.under_way.works and not len(batch):
            self.tools.wait()
            return []
        try:
            ended = batch.step()
        except BranchRefused as refusal:
            active = self.decoding[refusal.branch]
            self._forget(active.growing)
            active.growing = []
            active.fail(RemoteError(str(refusal)))
            return []
        done = list(self._end_steps(self._go_on(ended))) if ended else []
        if each_token:
            writing = dict.fromkeys(self.decoding.values())
            done += [(active.index, said) for active in writing if (said := active.writing())]
        return done

    def stop(self, active: ActiveSearch) -> None:
        self._forget(active.growing)
        self.admission.batch.withdraw(active.growing)

    def clear(self) -> None:
        self._forget(list(self.decoding))

    def _forget(self, branches: Sequence[Branch]) -> None:
        for child in branches:
            self.decoding.pop(child, None)
            self.parts.pop(child, None)
        if self.tools is not None:
            self.tools.forget(branches)

    def _end_steps(self, ended: Iterable[Branch]) -> Events:
        """These children's steps are over; so are requests whose children all have ended theirs."""
        for active in dict.fromkeys(self.decoding.pop(child) for child in ended):
            if any(child in self.decoding for child in active.growing):
                continue
            kept = len(active.live) - 1 - len(active.growing)
            for child in active.growing:
                if self.parts.pop(child, None) is None:
                    active.count_thinking(child)
            if why := next((c.matcher.error for c in active.growing if c.matcher), ""):
                active.growing = []
                active.fail(InvalidInput(why))
                continue
            children = active.end_steps()
            self.admission.note_step(children, len(active.root.tokens), kept)
            yield active.index, active.progress("expanded", children)
            if not active.waiting:
                active.advance(active.children)

    # ------------------------------------------------------------ steps in parts

    def _begin_steps(self, active: ActiveSearch, request: Expand, max_tokens: int) -> None:
        grammar = active.config.grammar if request.step.is_answer else None
        step = replace(request.step, stop_loops=active.config.stops_loops, grammar=grammar)
        thoughts, chat = active.config.thoughts, active.config.tools
        limits = step.thinking if thoughts is not None else None
        closes = limits is not None and (limits.tokens is not None or step.stop_loops)
        if not closes and chat is None:
            plain = replace(step, max_tokens=max_tokens, thinking=None)
            self.begin_decoding(active, active.growing, plain, request.sampling)
            return
        from search.thinking import StepInParts

        for child in active.growing:
            backend, calls = self.engine.of_branch(child), None
            if chat is not None:
                self.tools = self.tools or handler("tool_use", "steps")()
                calls = self.tools.calls_of(child, chat, backend)
            parts = StepInParts(child, step, limits, thoughts, backend, max_tokens, calls).parts()
            self.parts[child] = parts
        self._go_on(active.growing)

    def _go_on(self, children: Sequence[Branch]) -> list[Branch]:
        """Let branches do the next part of their steps. Returns those whose step is over."""
        alike: dict[tuple[ActiveSearch, Step], list[Branch]] = defaultdict(list)
        closings: dict[ActiveSearch, dict[Branch, list[int]]] = defaultdict(dict)
        over = []
        for child in children:
            active = self.decoding[child]
            part = next(self.parts[child], None) if child in self.parts else None
            if part is None:
                over.append(child)
            elif isinstance(part, Step):
                alike[active, part].append(child)
            elif isinstance(part, list):
                closings[active][child] = part
            else:
                self.tools.call(active, child, part)
        for (active, step), together in alike.items():
            assert isinstance(active.request, Expand)
            self.begin_decoding(active, together, step, active.request.sampling)
        for active, tokens in closings.items():
            self.under_way.add_work(active, self._close_thoughts(active, tokens))
        return over

    def _close_thoughts(
        self, active: ActiveSearch, closings: Mapping[Branch, list[int]]
    ) -> PassEvents:
        """Put the end of thinking after what branches have thought, and let them answer."""
        if active.over:
            return
        ends = {child: len(child.tokens) for child in closings}
        try:
            task = self.engine.extend(list(closings), list(closings.values()))
        except ContextExceeded:
            for child in closings:  # their thoughts have no end
                child.end_step("length")
            yield from self._end_steps(closings)
            return
        yield from task.passes()
        if not active.over:
            for child, end in ends.items():
                child.thinking_ended = end
            yield from self._end_steps(self._go_on(list(closings)))

    def take_answers(self) -> None:
        """Those that tools have answered go on."""
        if self.tools is not None:
            for active, called in self.tools.answered(self.decoding).items():
                self.under_way.add_work(active, self._tell(active, called))

    def _tell(self, active: ActiveSearch, called: Mapping[Branch, Any]) -> PassEvents:
        if active.over:
            return
        given: dict[Branch, list[int]] = {}
        over = []
        for child, calls in called.items():
            try:
                given[child] = calls.answers()
            except ContextExceeded:
                child.finish_reason = "context"
                child.end_step("context")
                over.append(child)
            except InvalidInput as error:  # the chat template refuses what was called
                active.refuse(error)
                return
        if given:
            yield from self.engine.extend(list(given), list(given.values())).passes()
        if not active.over:
            yield from self._end_steps([*over, *self._go_on(list(given))])


def expand(driver: Any, requests: Sequence[tuple[ActiveSearch, Expand]]) -> PassEvents:
    """Answers to `Expand`: the children begin to decode."""
    for active, request in requests:
        driver.expansions.answer(active, request)
    yield from ()
