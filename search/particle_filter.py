"""Particle filtering over steps (Puri et al., 2025).

"A Probabilistic Inference Approach to Inference-Time Scaling of LLMs".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from search.base import Case, Requests, SearchSteps, StepwiseSearch, expand
from ttc.branch import Branch
from ttc.checks import PositiveFloat, Probability
from ttc.errors import InvalidInput, UnusableScores
from ttc.protocols import Aggregation, Rate, Release
from ttc.results import comparable

Resampling = Literal["multinomial", "systematic"]
CLIP = 1e-7

Particles = dict[Branch, int]
"""How many particles stand on each branch."""

Weighted = tuple[Particles, dict[Branch, float]]
"""Particles, and the logarithm of what each of those on a branch weighs."""


@dataclass(frozen=True)
class ParticleFilter(StepwiseSearch):
    """After each step all `n` particles are drawn again, the better rated ones more often.

    One that is finished takes part with the score it has and writes nothing. After the last step,
    when all are finished or `max_steps` are done, none is drawn; the best rated one is the answer.

    weight_temperature: a particle is drawn with probability softmax(log(r / (1 - r)) /
        weight_temperature), r its score, from 0 to 1.
    resampling: draw each particle by itself ("multinomial"), or all with one random number
        ("systematic").
    ess_threshold: draw only where the effective sample size is at most this share of n; 1 draws
        after every step, as published. Over steps without a draw a particle's weights are
        multiplied (the product target).

    Tokens: n x max_steps x s.
    Use it where: ratings are probabilities, and may be wrong.
    """

    n: int = 16
    step_tokens: int = 256
    max_steps: int = 40
    delimiter: str | None = "\n\n"
    aggregation: Aggregation = "last"
    weight_temperature: PositiveFloat = 1.0
    resampling: Resampling = "multinomial"
    ess_threshold: Probability = 1.0

    compares_ratings = True

    def check_scores(self, verifier: str, least: float, most: float) -> None:
        super().check_scores(verifier, least, most)
        if least < 0 or most > 1:
            raise InvalidInput(
                f"{type(self).__name__} takes scores as probabilities, and {verifier} gives scores "
                f"from {least:g} to {most:g}; use a verifier whose scores lie from 0 to 1"
            )

    def run(self, root: Branch, case: Case) -> SearchSteps:
        particles, _ = yield from self.sweep(root, case)
        return list(particles)

    def sweep(
        self, root: Branch, case: Case, reference: Sequence[Branch] = ()
    ) -> Requests[Weighted]:
        """Filter once, and give the last step's particles with what they weigh since the last draw.

        reference: the branches of a particle that is given, from the root on. After step t it
        competes with the score it had then, and it is never replaced; the other n - 1 are drawn
        among all.
        """
        step = case.step(self.step_tokens, self.delimiter)
        free: Particles = {root: self.n - bool(reference)}
        log_weights, live = {root: 0.0}, [root]
        for done in range(1, self.max_steps + 1):
            going = [branch for branch in free if not branch.finished]
            children: list[Branch] = []
            if going:
                counts = [free[branch] for branch in going]
                children = yield from expand(going, counts, step, self.sampling)
                yield Rate(children, self.aggregation)
            live += children
            ended = {branch: count for branch, count in free.items() if branch.finished}
            free = ended | dict.fromkeys(children, 1)
            fixed = reference[done : done + 1] or reference[-1:]
            everyone = free | {branch: free.get(branch, 0) + 1 for branch in fixed}
            before = {
                branch: branch if branch in log_weights else branch.parent for branch in everyone
            }
            log_weights = {
                branch: log_weights[parent] + self.log_weight(branch)
                for branch, parent in before.items()
                if parent is not None
            }
            over = all(branch.finished for branch in free) and done + 1 >= len(reference)
            if over or done == self.max_steps:
                break
            if self.too_uneven(everyone, log_weights):
                free = self.draw(everyone, log_weights, self.n - len(fixed), case.rng)
                log_weights = {branch: 0.0 for branch in (*free, *fixed)}
            needed = {ancestor for branch in free for ancestor in self.kept_with(branch)}
            yield Release([branch for branch in live if branch not in needed])
            live = [branch for branch in live if branch in needed]
        return everyone, log_weights

    def kept_with(self, branch: Branch) -> list[Branch]:
        """The branches that must stay while a particle stands on this one."""
        return [branch]

    def log_weight(self, branch: Branch) -> float:
        """log(r / (1 - r)) over the temperature, the score r kept 1e-7 away from 0 and 1."""
        score = comparable(branch.score)
        if not 0 <= score <= 1:
            raise UnusableScores(
                f"{type(self).__name__} takes scores as probabilities, and {score:g} is not from "
                "0 to 1; use another verifier or aggregation"
            )
        score = min(max(score, CLIP), 1 - CLIP)
        return math.log(score / (1 - score)) / self.weight_temperature

    def too_uneven(self, particles: Particles, log_weights: Mapping[Branch, float]) -> bool:
        """Whether the effective sample size, 1 / (sum of squared weights), is at most
        `ess_threshold` of all."""
        shares = weights(particles, log_weights)
        counts = np.array(list(particles.values()))
        size = 1 / float((shares**2 / counts).sum())
        largest = counts.sum() * (1 + 1e-9)  # all equal, but for rounding
        return bool(size <= self.ess_threshold * largest)

    def draw(
        self,
        particles: Particles,
        log_weights: Mapping[Branch, float],
        count: int,
        rng: np.random.Generator,
    ) -> Particles:
        """Draw `count` particles by weight, with replacement; in the order of `particles`."""
        ends = np.cumsum(weights(particles, log_weights))
        ends[-1] = math.inf  # no point lies behind the last share, whatever is rounded
        systematic = self.resampling == "systematic"
        points = (np.arange(count) + rng.random()) / count if systematic else rng.random(count)
        drawn = np.bincount(np.searchsorted(ends, points, side="right"), minlength=len(ends))
        return {branch: int(times) for branch, times in zip(particles, drawn, strict=True) if times}


def weights(particles: Particles, log_weights: Mapping[Branch, float]) -> np.ndarray:
    """The share of each branch in all particles' weights: softmax, times how many stand on it."""
    logs = np.array([log_weights[branch] for branch in particles], dtype=np.float64)
    shares = np.exp(logs - logs.max()) * np.array(list(particles.values()))
    normalised: np.ndarray = shares / shares.sum()
    return normalised
