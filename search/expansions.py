"""Answers to `Expand`: children that decode their steps in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from search.active_search import ActiveSearch
from search.admission import ProblemAdmission
from search.under_way import BeginDecoding, Events, PassEvents, UnderWay
from ttc.backend import Backend
from ttc.errors import BranchRefused, RemoteError, VerifierError
from ttc.protocols import Expand
from ttc.results import Progress
from ttc.tree.branch import Branch

if TYPE_CHECKING:
    from search.phases import PhasedSteps


@dataclass
class Expansions:
    """The branches whose step is under way.

    A step is one phase of decoding, or several where a model thinks within limits or calls tools
    (`search.phases`). A search goes on once all of its children have ended their step.

    decoding: the branches, and the search of each. phased: the steps that are several phases, None
        until there is one.
    """

    engine: Backend
    admission: ProblemAdmission
    under_way: UnderWay
    begin_decoding: BeginDecoding
    decoding: dict[Branch, ActiveSearch] = field(default_factory=dict)
    phased: PhasedSteps | None = None

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
        phased = self.phased
        if phased is not None and phased.waits_for_tools:
            return []
        try:
            ended = self.admission.batch.step()
        except BranchRefused as refusal:
            self._refuse(refusal)
            return []
        going = set[Branch]() if phased is None else phased.still_going(ended)
        done = list(self.end_steps([child for child in ended if child not in going]))
        if each_token:
            writing = dict.fromkeys(self.decoding.values())
            done += [(active.index, said) for active in writing if (said := active.writing())]
        return done

    def stop(self, active: ActiveSearch) -> None:
        for child in active.growing:
            self.decoding.pop(child, None)
        if self.phased is not None:
            self.phased.forget(active.growing)
        self.admission.forget(active.growing)
        self.under_way.rests(active)

    def clear(self) -> None:
        if self.phased is not None:
            self.phased.forget(list(self.decoding))
        self.decoding.clear()

    def _refuse(self, refusal: BranchRefused) -> None:
        active = self.decoding[refusal.branch]
        for child in active.growing:
            self.decoding.pop(child, None)
        self.under_way.rests(active)
        active.fail(RemoteError(str(refusal)))

    def end_steps(self, ended: Sequence[Branch]) -> Events:
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

    def take_answers(self) -> None:
        """Those that tools have answered go on."""
        if self.phased is not None:
            self.phased.take_answers()

    def _begin_steps(
        self, active: ActiveSearch, children: list[Branch], request: Expand, max_tokens: int
    ) -> None:
        step = replace(request.step, stop_loops=active.config.stops_loops)
        thinking = step.thinking if active.config.thoughts is not None else None
        closes = thinking is not None and (thinking.tokens is not None or step.stop_loops)
        if closes or active.config.tools is not None:
            if self.phased is None:
                from search.phases import PhasedSteps

                self.phased = PhasedSteps(
                    self.engine,
                    self.admission,
                    self.under_way,
                    self.begin_decoding,
                    self.end_steps,
                    self.decoding,
                )
            self.phased.begin(active, children, step, max_tokens)
        else:
            plain = replace(step, max_tokens=max_tokens, thinking=None)
            self.begin_decoding(active, children, plain, request.sampling)


def expand(driver: Any, requests: Sequence[tuple[ActiveSearch, Expand]]) -> PassEvents:
    """Answers to `Expand`: the children begin to decode."""
    for active, request in requests:
        driver.expansions.answer(active, request)
    yield from ()
