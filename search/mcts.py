"""Monte Carlo tree search (UCT: Kocsis & Szepesvári, 2006; PUCT: Silver et al., 2018, as OpenR has
it)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from search.base import Case, Requests, SearchSteps, StepwiseSearch, expand
from search.growing import drop_repeated
from search.selection import Voting, best_first, by_path, complete
from ttc.approximate.branch_confidence import mean_of_own
from ttc.backend import Need
from ttc.branch import Branch
from ttc.checks import NonNegativeFloat, PositiveInt
from ttc.errors import BudgetExceeded
from ttc.protocols import Aggregation, Expand, Extract, Rate, Release
from ttc.results import comparable


def uct(value: float, visits: int, parent_visits: int, c: float = math.sqrt(2)) -> float:
    """Q + c sqrt(ln N_p / n): how good a child was, and how seldom it was tried; inf if never."""
    return value + c * math.sqrt(math.log(parent_visits) / visits) if visits else math.inf


def puct(value: float, prior: float, visits: int, parent_visits: int) -> float:
    """V + P sqrt(N_p) / (1 + n) (ln((N_p + 19653) / 19652) + 1.25), AlphaZero's rule."""
    weight = math.log((parent_visits + 19653) / 19652) + 1.25
    return value + prior * math.sqrt(parent_visits) / (1 + visits) * weight


@dataclass(eq=False)
class StateNode:
    """A state of the tree. total: of the values of its visits. prior: P, its share among its
    siblings."""

    branch: Branch
    parent: StateNode | None = None
    prior: float = 1.0
    visits: int = 0
    total: float = 0.0
    children: list[StateNode] = field(default_factory=list)

    @property
    def value(self) -> float:
        """The mean over its visits; its rating before the first."""
        return self.total / self.visits if self.visits else self.branch.score or 0.0

    def lineage(self) -> list[StateNode]:
        return [self, *(self.parent.lineage() if self.parent else [])]


@dataclass(frozen=True)
class MCTS(StepwiseSearch):
    """Grow the tree where ratings are high or visits few.

    One iteration: go down from the root by `rule` to a state without children, continue it by
    `beam_width` steps (of the same texts the first one stays), rate them, and go on to one of them
    by the same rule. Its value is the rating of a rollout, one answer from there, or its own where
    `rollout` is off or it has finished. The value counts for this state and all above it. A state
    that has finished or is `max_depth` steps deep is not continued; a visit counts its value, or a
    rollout's, again.

    iterations: the most iterations. rollout: rate answers from states, and not these.
        rollout_tokens: the most tokens of such an answer.
    exploration: c of the rule "uct"; the higher, the more often states with few visits.
    rule: "uct", with `exploration` as c and values in [0, 1]; or "puct", where a child's prior is
        exp(mean log-probability of its step's tokens), made to sum to 1 over its siblings. As a
        parent, a state counts one visit from its creation on. Of equal children the first.
    answer: "best_value", the best rated answer; "most_visited", the best rated one under the state
        that the most visited child leads to each time, or under the nearest state above it that has
        one; "weighted_majority".

    An answer is a finished state or a rollout; cut-off ones count only where none has finished, and
    states that can still be continued where there is no answer at all. These keep their keys and
    values; those of the others are freed at once.

    Tokens: iterations x (beam_width x s + L).
    Use it where: whole answers are rated better than steps.
    """

    iterations: PositiveInt = 16
    beam_width: int = 4
    step_tokens: int = 32
    max_depth: PositiveInt = 8
    rule: Literal["uct", "puct"] = "uct"
    exploration: NonNegativeFloat = 2**0.5
    rollout: bool = True
    rollout_tokens: PositiveInt = 256
    answer: Literal["best_value", "most_visited", "weighted_majority"] = "best_value"
    delimiter: str | None = None
    aggregation: Aggregation = "last"

    compares_ratings = True

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("logprobs",) if self.rule == "puct" else ()

    def run(self, root: Branch, case: Case) -> SearchSteps:
        top = StateNode(root)
        rollouts, states = list[tuple[Branch, StateNode]](), list[StateNode]()
        with suppress(BudgetExceeded):
            for _ in range(self.iterations):
                node = top
                while node.children:
                    node = self._select(node)
                if (
                    not node.branch.finished
                    and len(node.branch.path) - len(root.path) < self.max_depth
                ):
                    node.children = yield from self._expand(node, case)
                    states += node.children
                    node = self._select(node)
                value = node.branch.score or 0.0
                if self.rollout and not node.branch.finished:
                    step = case.answer(self.rollout_tokens)
                    (end,) = yield Expand([node.branch], 1, step, self.sampling)
                    yield Rate([end], self.aggregation)
                    yield Release([end])
                    rollouts.append((end, node))
                    value = end.score
                for visited in node.lineage():
                    visited.visits += 1
                    visited.total += value
        ends = rollouts + [(state.branch, state) for state in states if state.branch.finished]
        kept = complete([branch for branch, _ in ends], case.extract)
        ends = [pair for pair in ends if pair[0] in kept]
        ends = ends or [(state.branch, state) for state in states if not state.children]
        if self.answer == "most_visited":
            return self._most_visited(top, ends, case.extract)
        return [branch for branch, _ in ends]

    @property
    def voting(self) -> Voting | None:
        return "weighted" if self.answer == "weighted_majority" else None

    def _expand(self, node: StateNode, case: Case) -> Requests[list[StateNode]]:
        """The children of a state, equal ones left out, rated."""
        step = case.step(self.step_tokens, self.delimiter)
        children = yield from expand([node.branch], self.beam_width, step, self.sampling)
        yield Release([node.branch])
        children = yield from drop_repeated(children)
        yield Rate(children, self.aggregation)
        yield Release([child for child in children if child.finished])
        start = len(node.branch.generated)
        weights = [math.exp(mean_of_own(child.logprobs[start:])) for child in children]
        return [
            StateNode(child, node, weight / sum(weights))
            for child, weight in zip(children, weights, strict=True)
        ]

    def _select(self, parent: StateNode) -> StateNode:
        def number(child: StateNode) -> float:
            if self.rule == "puct":
                return puct(child.value, child.prior, child.visits, parent_visits)
            return uct(child.value, child.visits, parent_visits, self.exploration)

        parent_visits = 1 + sum(child.visits for child in parent.children)
        return max(parent.children, key=lambda child: comparable(number(child)))

    def _most_visited(
        self, top: StateNode, ends: Sequence[tuple[Branch, StateNode]], extract: Extract
    ) -> list[Branch]:
        """The best rated answer under the most visited state that has one."""
        node = top
        while node.children:
            node = max(node.children, key=lambda child: child.visits)  # the first of equals
        for state in node.lineage():
            if under := [branch for branch, at in ends if state in at.lineage()]:
                return best_first(by_path(under), extract)[:1]
        return []
