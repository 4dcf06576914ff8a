"""Tree of Thoughts, depth-first (Yao et al., 2023, Algorithm 2)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from search.base import Case, SearchSteps, StepwiseSearch, expand
from search.selection import complete, ranked
from ttc.branch import Branch
from ttc.checks import PositiveInt
from ttc.errors import BudgetExceeded
from ttc.protocols import Aggregation, Rate, Release


@dataclass(frozen=True)
class TreeOfThoughts(StepwiseSearch):
    """Follow the best thought, prune what is not promising, and go back up at an end.

    A state is continued by `beam_width` thoughts of one step each. Bad ones are pruned; the others
    are followed one after the other, the best rated first (the first of equals), each with all that
    comes of it before the next. A state is not continued once it has finished or is `max_depth`
    steps deep. The search ends when nothing is left to follow. It answers with the best rated
    finished state; where none of these has an answer, those that are left and the best of the
    pruned ones compete too.

    threshold: thoughts of this score or less are pruned. max_states: the search ends after so many
        states were continued.

    What is pruned frees its keys and values at once; what waits to be followed keeps them.

    Tokens: max_states x beam_width x s.
    Use it where: the verifier's scale is known, and memory is short.
    """

    beam_width: int = 4
    step_tokens: int = 32
    max_depth: PositiveInt = 8
    max_states: PositiveInt = 16
    threshold: float = 0.5
    delimiter: str | None = None
    aggregation: Aggregation = "last"

    compares_ratings = True

    def run(self, root: Branch, case: Case) -> SearchSteps:
        step = case.step(self.step_tokens, self.delimiter)
        stack = [root]  # what waits to be followed, the next one last
        finished, unrated = list[Branch](), list[Branch]()
        spare = list[Branch]()  # the best of what was pruned or too deep
        continued = 0
        with suppress(BudgetExceeded):
            while stack and continued < self.max_states:
                state = stack[-1]
                pruned: list[Branch] = []
                if state.finished:
                    finished.append(stack.pop())
                    yield Release([state])
                elif len(state.path) - len(root.path) == self.max_depth:
                    pruned = [stack.pop()]
                else:
                    unrated = yield from expand([state], self.beam_width, step, self.sampling)
                    continued += 1
                    stack.pop()
                    yield Release([state])
                    yield Rate(unrated, self.aggregation)
                    thoughts, unrated = ranked(unrated), []
                    stack += [thought for thought in reversed(thoughts) if self._promising(thought)]
                    pruned = [thought for thought in thoughts if not self._promising(thought)]
                candidates = ranked([*spare, *pruned])
                spare = candidates[:1]
                yield Release(candidates[1:])
        finished += [state for state in [*stack, *unrated] if state.finished]
        if not finished:
            return ranked([*stack, *unrated, *spare])
        waiting = [state for state in [*stack, *unrated, *spare] if not state.finished]
        return complete(ranked([*finished, *waiting]), case.extract)

    def _promising(self, state: Branch) -> bool:
        return state.score is not None and state.score > self.threshold
