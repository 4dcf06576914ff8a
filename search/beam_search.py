"""Step-wise beam search (Locality-aware beam scheduling, section 2.3; Snell et al., 2025)."""

from __future__ import annotations

from dataclasses import dataclass

from search.base import Case, SearchSteps, StepwiseSearch
from search.growing import grow, rate_ahead, steps_to
from search.selection import ranked
from ttc.branch import Branch
from ttc.checks import NonNegativeInt, PositiveInt
from ttc.protocols import Aggregation, Release


@dataclass(frozen=True)
class BeamSearch(StepwiseSearch):
    """Keep the `beam_size` best rated beams after every step.

    beam_width: continuations sampled per beam; the root gets beam_size x beam_width, so that every
        step rates equally many.
    max_steps: steps after which the search ends; it ends before that when all beams have finished.
        Finished beams are kept and compete.

    Tokens: beam_size x beam_width x max_steps x s.
    Use it where: the verifier can rate unfinished answers.
    """

    beam_size: int = 4
    beam_width: int = 4
    step_tokens: int = 32
    max_steps: int = 8
    delimiter: str | None = None
    aggregation: Aggregation = "last"
    lookahead: NonNegativeInt = 0
    verify_every: PositiveInt = 1
    finish_tokens: NonNegativeInt = 0

    compares_ratings = True

    def run(self, root: Branch, case: Case) -> SearchSteps:
        step = case.step(self.step_tokens, self.delimiter)
        steps = steps_to(self.max_steps, step, self.finish_tokens)
        beams, width = [root], self.beam_size * self.beam_width
        for done in range(0, self.max_steps, self.verify_every):
            finished = [beam for beam in beams if beam.finished]
            active = [beam for beam in beams if not beam.finished]
            if not active:
                break
            coming = steps[done : done + self.verify_every]
            children = yield from grow(active, width, coming, self.sampling)
            yield from rate_ahead(children, self.lookahead, step, self.aggregation)
            candidates = ranked([*finished, *children])
            beams = candidates[: self.beam_size]
            yield Release(candidates[self.beam_size :])
            width = self.beam_width
        return beams
