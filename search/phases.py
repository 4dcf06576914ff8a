"""Steps in several phases of decoding: where a model thinks within limits, or calls tools."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from search.active_search import ActiveSearch
from search.admission import ProblemAdmission
from search.prefills import Events, Task, begin_extend, passes_of
from search.thinking import GoesOn, ThinkingStep, UnlimitedStep
from search.under_way import BeginDecoding, UnderWay
from ttc.errors import ContextExceeded, InvalidInput
from ttc.parts import handler
from ttc.protocols import Backend, Expand, Step
from ttc.tree.branch import Branch


@dataclass
class PhasedSteps:
    """Lets branches go from phase to phase, and tells when their step is over.

    begin_decoding: lets branches decode a phase. end_steps: told of branches whose step is over.
    decoding: the branches whose step is under way, and the search of each.
    tools: what those wait for that call tools; None before the first.
    """

    engine: Backend
    admission: ProblemAdmission
    under_way: UnderWay
    begin_decoding: BeginDecoding
    end_steps: Callable[[Sequence[Branch]], Events]
    decoding: Mapping[Branch, ActiveSearch]
    tools: Any = None

    @property
    def waits_for_tools(self) -> bool:
        """Whether nothing is left to do but wait for the answers of tools; waits a moment then."""
        if self.tools is None:
            return False
        idle = not self.under_way.works and not len(self.admission.batch)
        if waits := bool(self.tools.calling) and idle:
            self.tools.wait()
        return waits

    def begin(
        self, active: ActiveSearch, children: list[Branch], step: Step, max_tokens: int
    ) -> None:
        thoughts, chat = active.config.thoughts, active.config.tools
        for child in children:
            backend = self.engine.of_branch(child)
            thinking: ThinkingStep | UnlimitedStep | None = None
            if step.thinking is not None and thoughts is not None:
                limits = step.thinking
                if limits.tokens is None:
                    tokenizer = backend.tokenizer
                    thinking = UnlimitedStep(
                        child, step, tokenizer, max_tokens, limits, thoughts, backend
                    )
                else:
                    thinking = ThinkingStep(child, step, limits, thoughts, backend, max_tokens)
                active.thinking[child] = active.phases[child] = thinking
            if chat is not None:
                self.tools = self.tools or handler("tool_use", "steps")()
                active.phases[child] = self.tools.step(
                    child, step, thinking, chat, backend, max_tokens
                )
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

    def still_going(self, children: Sequence[Branch]) -> set[Branch]:
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
        yield from self.end_steps([child for child, what in follows.items() if what == "over"])

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
            yield from self.end_steps(children)
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

    def forget(self, branches: Sequence[Branch]) -> None:
        """Wait for no answers to these branches."""
        if self.tools is not None:
            self.tools.forget(branches)

    def take_answers(self) -> None:
        if self.tools is None:
            return
        for active, steps in self.tools.answered(self.decoding).items():
            self.under_way.add_work(active, self._tell(active, steps))

    def _tell(self, active: ActiveSearch, steps: Mapping[Branch, Any]) -> Task:
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
