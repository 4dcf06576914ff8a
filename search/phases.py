"""Steps in several parts: where a model thinks within limits, or calls tools."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from search.active_search import ActiveSearch
from search.admission import ProblemAdmission
from search.thinking import Close, ThinkingStep, plain_step
from search.under_way import BeginDecoding, Events, PassEvents, UnderWay
from ttc.backend import Backend
from ttc.errors import ContextExceeded, InvalidInput
from ttc.parts import handler
from ttc.protocols import Expand
from ttc.step import Step
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
            calls = None
            if chat is not None:
                self.tools = self.tools or handler("tool_use", "steps")()
                calls = self.tools.calls_of(child, chat, backend)
            limits = step.thinking
            if limits is None or thoughts is None:
                parts = plain_step(child, step, backend, max_tokens, tools=calls)
            elif limits.tokens is None:
                parts = plain_step(child, step, backend, max_tokens, limits, thoughts, calls)
            else:
                whole = ThinkingStep(child, step, limits, thoughts, backend, max_tokens, calls)
                parts = whole.parts()
            active.parts[child] = parts
            if limits is not None and thoughts is not None:
                active.counted.add(child)
        self._go_on(active, children)

    def _go_on(self, active: ActiveSearch, children: Sequence[Branch]) -> list[Branch]:
        """Let branches do the next part of their steps. Returns those whose step is over."""
        assert isinstance(active.request, Expand)
        alike: dict[Step | None, list[Branch]] = defaultdict(list)
        closings: list[list[int]] = []
        over = []
        for child in children:
            part = next(active.parts[child], None)
            if part is None:
                over.append(child)
            elif isinstance(part, Step):
                alike[part].append(child)
            elif isinstance(part, Close):
                alike[None].append(child)
                closings.append(part.tokens)
            else:
                self.tools.call(active, child, part)
        for part, together in alike.items():
            if part is None:
                self.under_way.add_work(active, self._close_thoughts(active, together, closings))
            else:
                self.begin_decoding(active, together, part, active.request.sampling)
        return over

    def still_going(self, children: Sequence[Branch]) -> set[Branch]:
        """Those whose step goes on after a part; they are let go on."""
        parted: dict[ActiveSearch, list[Branch]] = defaultdict(list)
        for child in children:
            active = self.decoding[child]
            if child in active.parts:
                parted[active].append(child)
        return {
            child
            for active, together in parted.items()
            for child in set(together).difference(self._go_on(active, together))
        }

    def _close_thoughts(
        self, active: ActiveSearch, children: Sequence[Branch], closings: Sequence[list[int]]
    ) -> PassEvents:
        """Put the end of thinking after what branches have thought, and let them answer."""
        if active.over:
            return
        ends = {child: len(child.tokens) for child in children}
        try:
            task = self.engine.extend(children, closings)
        except ContextExceeded:
            for child in children:  # their thoughts have no end
                child.end_step("length")
            yield from self.end_steps(children)
            return
        yield from task.passes()
        if active.over:
            return
        for child in children:
            child.thinking_ended = ends[child]
        yield from self.end_steps(self._go_on(active, children))

    def forget(self, branches: Sequence[Branch]) -> None:
        """Wait for no answers to these branches."""
        if self.tools is not None:
            self.tools.forget(branches)

    def take_answers(self) -> None:
        if self.tools is None:
            return
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
        if active.over:
            return
        yield from self.end_steps([*over, *self._go_on(active, list(given))])
