"""Step-wise beam search (Locality-aware beam scheduling, section 2.3; Snell et al., 2025)."""

from __future__ import annotations

from dataclasses import dataclass

from search.base import Case, Search, SearchSteps, drop_gated, ranked
from ttc.protocols import Aggregation, Expand, Rate, Release, Step
from ttc.tree.branch import Branch


@dataclass(frozen=True)
class BeamSearch(Search):
    """Expansion, rating, selection, a step of tokens at a time.

    beam_size: beams kept after selection. beam_width: continuations sampled per beam; the root gets
    beam_size x beam_width, so that every step rates equally many. A step is `step_tokens` tokens, or ends at
    `delimiter` before that. Finished beams are kept and compete; the search ends when no kept beam can go on, or
    after `max_steps` steps.
    """

    beam_size: int = 4
    beam_width: int = 4
    step_tokens: int = 32
    max_steps: int = 8
    delimiter: str | None = None
    aggregation: Aggregation = "last"

    @property
    def compares_ratings(self) -> bool:
        return True

    def run(self, root: Branch, case: Case) -> SearchSteps:
        step = Step(self.step_tokens, self.delimiter, case.end)
        beams, width = [root], self.beam_size * self.beam_width
        for _ in range(self.max_steps):
            active = [b for b in beams if not b.finished]
            if not active:
                break
            children: list[Branch] = yield Expand(active, width, step, self.sampling)
            yield Release(active)
            children = yield from drop_gated(children)
            yield Rate(children, self.aggregation)
            candidates = ranked([*(b for b in beams if b.finished), *children])
            beams = candidates[: self.beam_size]
            yield Release(candidates[self.beam_size :])
            width = self.beam_width
        return beams
