"""Adaptive branching Monte Carlo tree search, variant A (Inoue et al., 2025, arXiv 2503.04412)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from search.base import Case, Requests, Search, SearchSteps
from search.turns import REVISE, ask
from ttc.branch import Branch
from ttc.checks import PositiveInt, Words
from ttc.errors import BudgetExceeded, ContextExceeded, VerifierError
from ttc.protocols import Aggregation, Expand, Handoff, Rate, Release


@dataclass(frozen=True)
class NormalInverseChiSquared:
    """A belief about scores: their mean is N(m, sigma^2 / kappa), their variance
    InvGamma(nu / 2, nu tau2 / 2)."""

    m: float
    kappa: float
    nu: float
    tau2: float

    def posterior(self, rewards: Sequence[float]) -> NormalInverseChiSquared:
        n = len(rewards)
        if n == 0:
            return self
        mean = sum(rewards) / n
        spread = sum((reward - mean) ** 2 for reward in rewards)
        kappa, nu = self.kappa + n, self.nu + n
        shift = n * self.kappa * (self.m - mean) ** 2 / kappa
        tau2 = (self.nu * self.tau2 + spread + shift) / nu
        return NormalInverseChiSquared((self.kappa * self.m + n * mean) / kappa, kappa, nu, tau2)

    def draw(self, rng: np.random.Generator) -> float:
        variance = self.nu * self.tau2 / 2 / rng.gamma(self.nu / 2)
        return float(rng.normal(self.m, math.sqrt(variance / self.kappa)))


PRIOR = NormalInverseChiSquared(m=0.0, kappa=1.0, nu=1.0, tau2=0.1)
"""The `GaussianPrior` of TreeQuest, the authors' code (SakanaAI/treequest), for [0, 1]."""


@dataclass(eq=False)
class AnswerNode:
    """An answer, or the root.

    branch: its text. starts: where its next child starts, for each model: the root, or the answer
    with the request for a better one, once it was asked for.
    closed: the models whose context has no room for that.
    rewards: the scores of the answer and of all below it. generated, continued: of these, those of
    its children, and of all further below.
    """

    branch: Branch
    parent: AnswerNode | None = None
    rewards: list[float] = field(default_factory=list)
    starts: dict[str, Branch] = field(default_factory=dict)
    generated: list[float] = field(default_factory=list)
    continued: list[float] = field(default_factory=list)
    children: list[AnswerNode] = field(default_factory=list)
    closed: set[str] = field(default_factory=set)

    def back_up(self, reward: float) -> None:
        """Count a new node's reward at itself and at all nodes above it."""
        self.rewards.append(reward)
        if self.parent is not None:
            self.parent.generated.append(reward)
            node = self.parent
            while node.parent is not None:
                node.rewards.append(reward)
                node.parent.continued.append(reward)
                node = node.parent


@dataclass(frozen=True)
class ABMCTS(Search):
    """Write new answers or refine old ones, whichever promises more.

    A child of the root is a new answer, a child of an answer its refinement: the model is shown the
    answer and told `feedback`. For each new answer the search goes down from the root to a node
    without children, or where a new child seems best. It draws, by Thompson sampling, how good a
    new child would be (from the scores of the node's children) and how good going on is (from the
    scores further below). If going on wins, a draw from each child's scores says which child is
    next. Ratings lie in [0, 1]; the prior is `PRIOR`.

    With several models, one of them is chosen for each new answer, by a draw for each from the
    scores of all answers that it has given so far; it is shown an answer of another as its own.

    The best rated answer wins, the earliest of equals. An answer whose refinement has no room in
    the model's context is not refined; its parent gets another child. All keys and values stay.

    iterations: the most answers.

    Tokens: iterations x L.
    Use it where: the model can improve its answers; ratings lie in [0, 1].
    """

    iterations: PositiveInt = 16
    max_tokens: int = 256
    feedback: Words = REVISE
    aggregation: Aggregation = "last"

    compares_ratings = True

    def run(self, root: Branch, case: Case) -> SearchSteps:
        top = AnswerNode(root)
        answers = list[Branch]()
        top.starts[root.model] = root
        written = dict[str, list[float]]()
        step = case.answer(self.max_tokens)
        with suppress(BudgetExceeded):
            for _ in range(self.iterations):
                node = self.descend(top, case.rng)
                model = self.model(case, root, written)
                start, node = yield from self._start(node, model, case)
                (answer,) = yield Expand([start], 1, step, self.sampling)
                (score,) = yield Rate([answer], self.aggregation)
                if not 0 <= score <= 1:
                    raise VerifierError(
                        f"the verifier rates {score:.6g}, and ABMCTS compares ratings with a prior "
                        "on [0, 1]; use a verifier that rates in [0, 1]"
                    )
                answers.append(answer)
                written.setdefault(model, []).append(score)
                child = AnswerNode(answer, node)
                node.children.append(child)
                child.back_up(score)
        return answers

    def descend(self, node: AnswerNode, rng: np.random.Generator) -> AnswerNode:
        """The node that gets the next child."""
        while node.children:
            generate, go_on = (
                PRIOR.posterior(rewards).draw(rng) for rewards in (node.generated, node.continued)
            )
            if generate >= go_on:
                break
            draws = [PRIOR.posterior(child.rewards).draw(rng) for child in node.children]
            node = node.children[int(np.argmax(draws))]
        return node

    def model(self, case: Case, root: Branch, written: Mapping[str, Sequence[float]]) -> str:
        """The model that writes the next answer. written: the scores of each one's answers so
        far."""
        if len(case.models) < 2:
            return root.model
        draws = [PRIOR.posterior(written.get(name, ())).draw(case.rng) for name in case.models]
        return case.models[int(np.argmax(draws))]

    def _start(
        self, node: AnswerNode, model: str, case: Case
    ) -> Requests[tuple[Branch, AnswerNode]]:
        """Where the node's next child starts; that of the nearest node above it where the model's
        context has no room."""
        while model not in node.starts:
            if model not in node.closed:
                try:
                    yield from self._open(node, model, case)
                    break
                except ContextExceeded:
                    if node.parent is None:
                        raise
                    node.closed.add(model)
            assert node.parent is not None
            node = node.parent
        return node.starts[model], node

    def _open(self, node: AnswerNode, model: str, case: Case) -> Requests[None]:
        """Ask for a better answer than the node's, or a first one. Raises ContextExceeded without
        room."""
        start = node.branch
        if start.model != model:
            (start,) = yield Handoff([start], model)
        if node.parent is not None:
            (turn,) = yield from ask([start], self.feedback)
            if turn is None:
                if start is not node.branch:
                    yield Release([start])
                raise ContextExceeded("there is no room for a refinement")
            if start is not node.branch or len(case.models) < 2:
                yield Release([start])  # another model may still be shown the answer
            start = turn
        node.starts[model] = start
