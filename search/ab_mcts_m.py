"""Adaptive branching Monte Carlo tree search, variant M (Inoue et al., 2025, arXiv 2503.04412)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np

from search.ab_mcts import ABMCTS, AnswerNode
from search.base import Case
from ttc.branch import Branch

CENTRE, CENTRE_SD = 0.5, 0.2
"""The prior of the mean over groups."""
SPREAD_SD, NOISE_SD = 0.2, 0.3
"""The scales of the half-normal priors: of the spread of groups, and of scores in a group."""
POINTS = 40
"""Of the grid, for each of the two."""


@dataclass(frozen=True)
class ABMCTSM(ABMCTS):
    """AB-MCTS that weighs all scores at a node together.

    A mixed model of scores takes the place of a belief for each node by itself. At a node, each
    child is a group: its score and those of all below it. Score i of group j is N(alpha_j,
    sigma_y^2), and alpha_j is N(mu, sigma_alpha^2), so that groups of few scores lean on
    the others. mu is N(0.5, 0.2^2), sigma_alpha and sigma_y are half-normal of scale 0.2 and 0.3. A
    score is drawn for each child, and for a new one, whose alpha is drawn too; the largest says
    what comes next. Models are compared by the same model, each a group of all its answers.

    The authors' code (SakanaAI/treequest) draws from the posterior by NUTS. Here the two scales lie
    on a grid of equally likely values of the prior, each weighed by the likelihood with mu and
    alpha integrated out, and the rest is drawn exactly. Subtrees whose scores are nearly all equal
    are not left out, as they are there.

    Tokens: iterations x L.
    Use it where: as `ab_mcts`, with few answers.
    """

    def descend(self, node: AnswerNode, rng: np.random.Generator) -> AnswerNode:
        while node.children:
            draws = draw_scores([child.rewards for child in node.children], rng)
            best = int(np.argmax(draws))
            if best == len(node.children):
                break
            node = node.children[best]
        return node

    def model(self, case: Case, root: Branch, written: Mapping[str, Sequence[float]]) -> str:
        if len(case.models) < 2:
            return root.model
        names = [name for name in case.models if name in written]
        draws = draw_scores([written[name] for name in names], case.rng)
        scores = dict(zip(names, draws, strict=False))
        unseen = float(draws[-1])
        return max(case.models, key=lambda name: scores.get(name, unseen))


def draw_scores(groups: Sequence[Sequence[float]], rng: np.random.Generator) -> np.ndarray:
    """A score of each group, and of one not seen yet, drawn from the posterior."""
    counts = np.array([len(group) for group in groups])
    means = np.array([np.mean(group) for group in groups])
    spreads, noises, weights = posterior(groups)
    point = rng.choice(len(weights), p=weights)
    spread, noise = spreads[point], noises[point]
    variances = spread**2 + noise**2 / counts
    precision = CENTRE_SD**-2 + np.sum(1 / variances)
    centre = (CENTRE * CENTRE_SD**-2 + np.sum(means / variances)) / precision
    mu = rng.normal(centre, precision**-0.5)
    precisions = spread**-2 + counts / noise**2
    alpha = rng.normal((mu * spread**-2 + counts * means / noise**2) / precisions, precisions**-0.5)
    return rng.normal([*alpha, rng.normal(mu, spread)], noise)


def posterior(groups: Sequence[Sequence[float]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The grid's sigma_alpha and sigma_y, and each point's weight given the scores; mu and alpha
    are integrated out."""
    spreads, noises = (
        grid.ravel() for grid in np.meshgrid(half_normal(SPREAD_SD), half_normal(NOISE_SD))
    )
    precision = np.full(len(spreads), CENTRE_SD**-2)
    shift = np.full(len(spreads), CENTRE * CENTRE_SD**-2)
    logs = np.zeros(len(spreads))
    for group in groups:
        scores = np.asarray(group, dtype=float)
        n = len(scores)
        mean = scores.mean()
        variance = spreads**2 + noises**2 / n
        within = np.sum((scores - mean) ** 2)
        logs -= (n - 1) * np.log(noises) + within / (2 * noises**2)
        logs -= 0.5 * np.log(variance) + mean**2 / (2 * variance)
        precision += 1 / variance
        shift += mean / variance
    logs += shift**2 / (2 * precision) - 0.5 * np.log(precision)
    weights = np.exp(logs - logs.max())
    return spreads, noises, weights / weights.sum()


@cache
def half_normal(scale: float) -> np.ndarray:
    """`POINTS` equally likely values of a half-normal distribution."""
    middle = NormalDist(0, scale)
    return np.array([middle.inv_cdf(0.5 + (i + 0.5) / (2 * POINTS)) for i in range(POINTS)])
