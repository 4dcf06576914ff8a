"""Particle Gibbs over steps (Puri et al., 2025): particle filters that run after each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from search.base import Case, SearchSteps
from search.particle_filter import ParticleFilter
from ttc.branch import Branch
from ttc.checks import PositiveInt
from ttc.protocols import Release


@dataclass(frozen=True)
class ParticleGibbs(ParticleFilter):
    """Particle filters that run after each other, each beside a result of the last.

    sweeps: how many filters run. All but the first have n - 1 free particles and a reference.

    The reference is drawn from the last sweep's particles by what they weigh at its end: the
    product of all scores since the last draw, with `ess_threshold` 1 the last score alone. In every
    step it competes with the score that it had then, so that free particles may go on from its
    beginnings; it is never replaced. The candidates are the last particles of all sweeps.

    Tokens: (n + (sweeps - 1) (n - 1)) x max_steps x s.
    Use it where: a filter settles too early.
    """

    n: Annotated[int, Ge(2)] = 8
    sweeps: PositiveInt = 2

    def run(self, root: Branch, case: Case) -> SearchSteps:
        candidates: dict[Branch, None] = {}
        reference: list[Branch] = []
        for left in reversed(range(self.sweeps)):
            particles, log_weights = yield from self.sweep(root, case, reference)
            candidates |= dict.fromkeys(particles)
            if not left:
                break
            lines = [self.kept_with(branch) for branch in (*particles, *reference)]
            (drawn,) = self.draw(particles, log_weights, 1, case.rng)
            reference = self.kept_with(drawn)
            needed = {*candidates, *reference}
            yield Release([branch for line in lines for branch in line if branch not in needed])
        return list(candidates)

    def kept_with(self, branch: Branch) -> list[Branch]:
        """The branch and all that it grew from, the root first: particles may start there."""
        line = [branch]
        while line[0].parent is not None:
            line.insert(0, line[0].parent)
        return line
